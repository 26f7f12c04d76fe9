"""A process of ours tells of itself: twice a second a line of JSON on its standard output.

A reader that is slow misses lines; where there is none any more the process drains, as at SIGTERM.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from voiceloop.cluster.control.reports import REPORT_EVERY_S, ProcessReport, encode_line

log = logging.getLogger(__name__)

STANDARD_OUTPUT = 1


async def tell_on(look: Callable[[], ProcessReport], descriptor: int = STANDARD_OUTPUT) -> None:
    """Write what `look` returns twice a second, until cancelled or the reader has gone."""
    os.set_blocking(descriptor, False)
    while True:
        report = look()
        try:
            os.write(descriptor, encode_line(report))
        except BlockingIOError:
            pass
        except BrokenPipeError:
            if report.state == "draining":  # a second signal would cut its calls
                return
            log.warning("nobody reads what this process tells any more: it drains")
            signal.raise_signal(signal.SIGTERM)
            return
        await asyncio.sleep(REPORT_EVERY_S)
