"""Moments in which nobody speaks and nothing is owed.

Owns the wait for such a moment (a server that drains), the timer of a caller who stays silent, and
how much of a place a call takes while that lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# A call in which nobody has spoken for so long, or one whose client has sent nothing by then, costs
# next to nothing. It has a tenth of a place all the same: anybody can hold many such lines.
QUIET_CALL_S = 30.0
BEGINS_WITHIN_S = 1.0
SILENT_SHARE = 0.1


class Idleness:
    """Told of every change by turn-taking; `on_timeout(since_ms)` after `timeout_ms` of it."""

    def __init__(self, on_timeout: Callable[[float], None], clock: Callable[[], float]) -> None:
        self._on_timeout = on_timeout
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._quiet_since_s: float | None = clock()
        self._begins_by_s = clock() + BEGINS_WITHIN_S
        self.has_begun = False

    @property
    def place_share(self) -> float:
        """What the call takes of a place: all of it, or `SILENT_SHARE`."""
        now_s, since_s = self._clock(), self._quiet_since_s
        if not self.has_begun:
            return 1.0 if now_s < self._begins_by_s else SILENT_SHARE
        return SILENT_SHARE if since_s is not None and now_s - since_s >= QUIET_CALL_S else 1.0

    @property
    def is_silent(self) -> bool:
        """Whether the client has said nothing yet, for so long that the call has no place."""
        return not self.has_begun and self.place_share < 1.0

    def begin(self) -> None:
        """The client says something: the call takes its place."""
        if not self.has_begun:
            self.has_begun = True
            if self._quiet_since_s is not None:
                self._quiet_since_s = self._clock()

    def observe(self, is_idle: bool, *, timeout_ms: int | None, now_ms: float) -> None:
        """The call changed; idle time counts from here, on the session's audio clock too."""
        self.stop()
        if not is_idle:
            self._idle.clear()
            self._quiet_since_s = None
            return
        if self._quiet_since_s is None:
            self._quiet_since_s = self._clock()
        self._idle.set()
        if timeout_ms is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(timeout_ms / 1000, self._on_timeout, now_ms)

    def stop(self) -> None:
        """The timer, for good unless `observe` starts it again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def wait(self) -> None:
        await self._idle.wait()
