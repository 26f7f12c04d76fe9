"""Moments in which nobody speaks and nothing is owed.

Owns the wait for such a moment (a server that drains) and the timer of a caller who stays silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Idleness:
    """Told of every change by turn-taking; `on_timeout(since_ms)` after `timeout_ms` of it."""

    def __init__(self, on_timeout: Callable[[float], None], clock: Callable[[], float]) -> None:
        self._on_timeout = on_timeout
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._quiet_since_s: float | None = clock()

    @property
    def quiet_s(self) -> float:
        """For how long nobody has spoken and nothing has been owed; 0 while that is not so."""
        since_s = self._quiet_since_s
        return self._clock() - since_s if since_s is not None else 0.0

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
