"""How many sessions there may be, and how fast one of them may send.

Owns the count of open sessions and the pace of a connection. Pure: clock passed in, no sockets.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from voiceloop.errors import Overloaded

RETRY_AFTER_S = (2, 12)  # a call lasts minutes; a slot may come free at any moment


def retry_after() -> str:
    """Whole seconds for a refused client: each another, so that they do not come back as one."""
    return str(random.randint(*RETRY_AFTER_S))


class Admission:
    """Slots for sessions. ``drain`` stops new ones; those inside go on."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self.n_sessions = 0
        self.is_draining = False

    def check(self) -> None:
        """Raises Overloaded where ``slot`` would."""
        if self.is_draining:
            raise Overloaded("expected a server that takes new sessions, found one shutting down")
        if self.n_sessions >= self._max_sessions:
            raise Overloaded(
                f"expected at most {self._max_sessions} sessions, found all of them taken"
            )

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a slot for one session. Raises Overloaded when there is none."""
        self.check()
        self.n_sessions += 1
        try:
            yield
        finally:
            self.n_sessions -= 1

    def drain(self) -> None:
        self.is_draining = True


class Pace:
    """A bucket of tokens: ``burst`` at once, then ``per_s`` of them a second."""

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._tokens = burst
        self._at = clock()

    def take(self, n_tokens: float = 1.0) -> float:
        """Take tokens, on credit if need be; returns the seconds to wait before the next take."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_s)
        self._at = now
        self._tokens -= n_tokens
        return max(0.0, -self._tokens / self._per_s)
