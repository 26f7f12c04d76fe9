"""How long a session lasts: its longest time, the notice before its end, a server that lets it go.

Owns the wait for whichever end comes first, when a client is told of it, and the exception that
ends a session's tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

EXPIRY_WARNING_S = 60.0


class SessionOver(Exception):
    """Ends the session's task group; carries what the close frame says."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason

    @classmethod
    def of(cls, group: BaseExceptionGroup[SessionOver]) -> SessionOver:
        """The first of those that a task group has ended by."""
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        assert isinstance(error, SessionOver)
        return error


class Ending(Enum):
    """Why a session is to end, and what its close frame says."""

    EXPIRED = 1001, "session expired"
    DRAINED = 1012, "the server restarts"
    SHED = 1013, "the server has too many calls; nobody has spoken in this one for long"


class Lifetime:
    """One session's time. whole_s: its longest; notify: tells the client how many seconds are left.

    drain_s: how long a turn under way may take once the server shuts down.
    """

    def __init__(self, whole_s: float, drain_s: float, notify: Callable[[int], None]) -> None:
        self.whole_s = whole_s
        self.drain_s = drain_s
        self._notify = notify
        self._draining = asyncio.Event()
        self._why = Ending.DRAINED

    def drain(self, why: Ending = Ending.DRAINED) -> None:
        """The server shuts down, or has too much to do: the turn under way is the last."""
        if not self._draining.is_set():
            self._why = why
            self._draining.set()
            self._notify(round(self.drain_s))

    @property
    def is_shed(self) -> bool:
        """Whether it was told to leave room for others."""
        return self._why is Ending.SHED

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
        return self._why
