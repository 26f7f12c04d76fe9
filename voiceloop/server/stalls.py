"""The stacks of a gateway whose event loop stands still: the one evidence of what held it.

They are written by a thread that needs no interpreter, to the standard error: files, lines and
functions, no values.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
from time import monotonic

log = logging.getLogger(__name__)

STALLED_S = 2.0  # a caller hears 50 ms of it; what takes so long is a call that blocks
LOOK_S = 0.5


async def watch_stalls() -> None:
    """Have the stacks of all threads written whenever the loop does not run for `STALLED_S`."""
    try:  # 2: whoever replaces sys.stderr may have no descriptor
        while True:
            faulthandler.dump_traceback_later(STALLED_S + LOOK_S, file=2)
            looked_s = monotonic()
            await asyncio.sleep(LOOK_S)
            if (late_s := monotonic() - looked_s - LOOK_S) > STALLED_S:
                log.error("the event loop stood still for %.1f s; its stacks are above", late_s)
    finally:
        faulthandler.cancel_dump_traceback_later()
