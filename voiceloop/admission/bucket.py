"""A bucket of tokens, for every rate and every hourly quota. Pure: the clock is passed in."""

from __future__ import annotations

from collections.abc import Callable


class Bucket:
    """``most`` at once, filled by ``per_s`` a second. It may be overdrawn. most 0: no bound."""

    def __init__(self, most: float, per_s: float, clock: Callable[[], float]) -> None:
        self._most = most
        self._per_s = per_s
        self._clock = clock
        self._left = most
        self._at_s = clock()

    @property
    def is_bounded(self) -> bool:
        return self._most > 0

    @property
    def is_empty(self) -> bool:
        return self.is_bounded and self.left() <= 0.0

    def left(self, drained_per_s: float = 0.0) -> float:
        """Return what is in it, if so much has run out of it in each second since the last look."""
        now_s = self._clock()
        gained = (now_s - self._at_s) * (self._per_s - drained_per_s)
        self._left = min(self._most, self._left + gained)
        self._at_s = now_s
        return self._left

    def has(self, amount: float) -> bool:
        """Whether so much may be taken."""
        return not self.is_bounded or self.left() >= amount

    def take(self, amount: float = 1.0) -> float:
        """Take it, on credit if need be; returns the seconds until the debt is filled."""
        self._left = self.left() - amount
        return max(0.0, -self._left / self._per_s) if self.is_bounded else 0.0
