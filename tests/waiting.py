"""Waiting for what another process or a watch does: it sets no event of ours, so it is polled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path


async def until(holds: Callable[[], object], within_s: float = 20.0) -> None:
    """Return once this holds. Raises: TimeoutError: it did not in time."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether this process runs. Of Linux."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # nobody may be there to wait for it
