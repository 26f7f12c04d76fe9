"""A file that is read again each time somebody has replaced or saved it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

Stamp = tuple[int, int, int]
NEVER: Stamp = (-1, -1, -1)  # before the first writing


def stamp_of(path: Path) -> Stamp:
    """Return what tells one writing of a file from the next; an editor may take it away for a
    moment.
    """
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_ctime_ns, found.st_size


async def writings(path: Path, look_every_s: float, before: Stamp) -> AsyncGenerator[Stamp, None]:
    """Each writing after this one, for ever."""
    while True:
        stamp = await asyncio.to_thread(stamp_of, path)
        if stamp != before:
            before = stamp
            yield stamp
        await asyncio.sleep(look_every_s)
