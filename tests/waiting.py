"""Waiting for what another process or a watch does: it sets no event of ours, so it is polled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], object], within_s: float = 20.0) -> None:
    """Return once this holds. Raises: TimeoutError: it did not in time."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
