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
    RESUMED = 1000, "the call goes on over another connection"
    OVERLOADED = 1013, "the server has no place for a call that says nothing"
    REVOKED = 1008, "the key of the call was removed"
    LAPSED = 1008, "no call was resumed on a line that was kept for one"

    @property
    def lets_turn_end(self) -> bool:
        """Whether what is being said is said to its end."""
        return self is Ending.DRAINED


class Lifetime:
    """One session's time. whole_s: its longest; notify: tells the client how many seconds are left.

    drain_s: how long a turn under way may take once the server shuts down.
    """

    def __init__(self, whole_s: float, drain_s: float, notify: Callable[[int], None]) -> None:
        self.whole_s = whole_s
        self.drain_s = drain_s
        self._notify = notify
        self._earlier_s = 0.0
        self._begun_s: float | None = None
        self._let_go: Ending | None = None
        self._changed = asyncio.Event()

    def drain(self, why: Ending = Ending.DRAINED) -> None:
        """The server shuts down: the turn under way is the last."""
        if self._let_go is None or why is Ending.REVOKED:
            self._let_go = why
            self._changed.set()
            if why.lets_turn_end:
                self._notify(round(self.drain_s))

    @property
    def is_ending(self) -> bool:
        return self._let_go is not None

    @property
    def lived_s(self) -> float:
        """For how long the call has lasted, on this connection and earlier ones."""
        now_s = asyncio.get_running_loop().time()
        return self._earlier_s + (now_s - self._begun_s if self._begun_s is not None else 0.0)

    def resume(self, earlier_s: float) -> None:
        """The call has lasted so long before this connection: that counts too."""
        self._earlier_s = earlier_s
        self._changed.set()

    async def end(self) -> Ending:
        """Wait for the end; a minute before the longest time is over the client is told."""
        self._begun_s = asyncio.get_running_loop().time()
        warning_s = min(EXPIRY_WARNING_S, self.whole_s / 2)
        for left_s in (warning_s, 0.0):
            if (let_go := await self._until_left(left_s)) is not None:
                return let_go
            if left_s:
                self._notify(round(left_s))
        return Ending.EXPIRED

    async def _until_left(self, left_s: float) -> Ending | None:
        """Wait until only so much is left of the longest time, or for the server to let it go."""
        while self._let_go is None and (wait_s := self.whole_s - left_s - self.lived_s) > 0.0:
            self._changed.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return self._let_go
