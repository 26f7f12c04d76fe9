"""How many processes a group should have, from how much of each is used. Pure: clock passed in.

Headroom is what would be left of the group if its spare processes went: with less than a quarter
for half a minute there are to be more, as many as make it up; with more than half for ten minutes
one fewer, if that leaves enough still. A burst is not answered within its first second: the spare
is there for that, and admission for what is beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LEAST_HEADROOM = 0.25
MOST_HEADROOM = 0.5
TOO_LITTLE_FOR_S = 30.0
TOO_MUCH_FOR_S = 600.0


def headroom(used: Sequence[float], n_spare: int) -> float:
    """What is free, 0 to 1, of the processes that would be left without the spare ones."""
    n_left = max(1, len(used) - n_spare)
    return max(0.0, 1.0 - sum(used) / n_left)


def n_for(load: float, n_spare: int) -> int:
    """How many carry this load, in processes fully used, with the least headroom."""
    return max(1, math.ceil(load / (1.0 - LEAST_HEADROOM) - 1e-9)) + n_spare


class Scaler:
    """The number of one group's processes. n_there: how many there are when it begins."""

    def __init__(self, n_there: int = 0) -> None:
        self.n_wanted = n_there
        self._little_since: float | None = None
        self._much_since: float | None = None

    def observe(
        self, used: Sequence[float], now_s: float, *, least: int, most: int, n_spare: int
    ) -> int:
        """How many there are to be. used: of each process that is ready, 0 to 1.

        The spare ones are there from the beginning, as far as `most` has room for them.
        """
        least = min(most, max(least, n_for(0.0, n_spare)))
        self.n_wanted = min(most, max(least, self.n_wanted))
        if not used:
            self._little_since = self._much_since = None
            return self.n_wanted
        load, free = sum(used), headroom(used, n_spare)
        self._little_since = _since(self._little_since, free < LEAST_HEADROOM, now_s)
        self._much_since = _since(self._much_since, free > MOST_HEADROOM, now_s)
        if _lasts(self._little_since, TOO_LITTLE_FOR_S, now_s):
            self.n_wanted = min(most, max(self.n_wanted, n_for(load, n_spare)))
            self._little_since = now_s  # what is started now is given time to take its part
        elif _lasts(self._much_since, TOO_MUCH_FOR_S, now_s):
            enough = n_for(load, n_spare)
            self.n_wanted = max(least, min(self.n_wanted, max(enough, self.n_wanted - 1)))
            self._much_since = now_s
        return self.n_wanted


def _since(before: float | None, holds: bool, now_s: float) -> float | None:
    if not holds:
        return None
    return now_s if before is None else before


def _lasts(since: float | None, seconds: float, now_s: float) -> bool:
    return since is not None and now_s - since >= seconds
