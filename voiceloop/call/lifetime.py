"""How long a session lasts: its longest time, the notice before its end, a server shutting down.

Owns the wait for whichever end comes first, and when a client is told of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

EXPIRY_WARNING_S = 60.0


class Ending(Enum):
    """Why a session is to end."""

    EXPIRED = "expired"
    DRAINED = "drained"


class Lifetime:
    """One session's time. whole_s: its longest; notify: tells the client how many seconds are left.

    drain_s: how long a turn under way may take once the server shuts down.
    """

    def __init__(self, whole_s: float, drain_s: float, notify: Callable[[int], None]) -> None:
        self.whole_s = whole_s
        self.drain_s = drain_s
        self._notify = notify
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """The server shuts down: the turn under way is the last."""
        if not self._draining.is_set():
            self._draining.set()
            self._notify(round(self.drain_s))

    async def end(self) -> Ending:
        """Wait for the end; a minute before the longest time is over the client is told."""
        warning_s = min(EXPIRY_WARNING_S, self.whole_s / 2)
        try:
            async with asyncio.timeout(self.whole_s):
                try:
                    async with asyncio.timeout(self.whole_s - warning_s):
                        await self._draining.wait()
                except TimeoutError:
                    self._notify(round(warning_s))
                await self._draining.wait()
        except TimeoutError:
            return Ending.EXPIRED
        return Ending.DRAINED
