"""How many sessions there may be, and how fast one of them may send.

Owns the count of what is inside and the pace of a connection. Pure: clock passed in, no sockets.
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
    """Slots, n_most of them, for what is named. ``drain`` stops new ones; those inside go on.

    on_empty: called when the last one has left.
    """

    def __init__(
        self, n_most: int, named: str, on_empty: Callable[[], None] = lambda: None
    ) -> None:
        self._n_most = n_most
        self._named = named
        self.n_inside = 0
        self.is_draining = False
        self._on_empty = on_empty

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a slot. Raises Overloaded when there is none."""
        if self.is_draining:
            raise Overloaded(
                f"expected a server that takes new {self._named}, found one shutting down"
            )
        if self.n_inside >= self._n_most:
            raise Overloaded(
                f"expected at most {self._n_most} {self._named}, found all of them taken"
            )
        self.n_inside += 1
        try:
            yield
        finally:
            self.n_inside -= 1
            if not self.n_inside:
                self._on_empty()

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
