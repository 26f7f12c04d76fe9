"""Memory that the gateway's process holds although it has freed it.

glibc gives blocks over 128 KiB back to the system when they are freed, until the first larger one
is: then all up to that size come from the heap, where anything that is kept above such a block
keeps its pages. A frame of megabytes from one client would so make the process larger with the
next large block of any other.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Callable

# Of glibc's malloc.h. To set either also ends the growing of both.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BYTES = 128 * 1024  # glibc's own, before it grows
LOOK_S = 1.0


def give_back_pages() -> None:
    """Have the pages of freed blocks go back to the system; it takes some 3 ms.

    A crowd of calls leaves holes of megabytes below blocks that are kept (280 calls over WebRTC,
    20 at once: 70 kB in use more than before, 12 MB resident). Nothing is done where the C library
    is not glibc.
    """
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


async def watch_memory(n_inside: Callable[[], int]) -> None:
    """Watch memory for ever: once no call is inside any more, let go of what they were served with.

    What is there by now stays out of the collector's sight. A call is a circle that it alone frees,
    and it looks at all objects only once a quarter of them are new: with those that a server begins
    with among them 100 calls over WebRTC left 20 to 70 MB, and without them 0.2.
    """
    gc.collect()
    gc.freeze()
    had_calls = False
    while True:
        await asyncio.sleep(LOOK_S)
        if had_calls and not n_inside():
            gc.collect()
            give_back_pages()
        had_calls = n_inside() > 0


def give_back_large_blocks() -> None:
    """Have blocks from LARGE_BYTES on go back to the system when they are freed, for good.

    Nothing is done where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
