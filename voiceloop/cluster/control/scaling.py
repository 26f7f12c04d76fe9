"""How many processes a group should have, from how much of each is used. Pure, counted in ticks.

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
    """Return what is free, 0 to 1, of the processes that would be left without the spare ones."""
    n_left = max(1, len(used) - n_spare)
    return max(0.0, 1.0 - sum(used) / n_left)


def n_for(load: float, n_spare: int) -> int:
    """How many carry this load, in processes fully used, with the least headroom."""
    return max(1, math.ceil(load / (1.0 - LEAST_HEADROOM) - 1e-9)) + n_spare


class Scaler:
    """The number of one group's processes. n_there: how many there are when it begins."""

    def __init__(self, n_there: int = 0) -> None:
        self.n_wanted = n_there
        self._little_s = self._much_s = 0.0  # for how long there has been too little, too much

    def observe(
        self, used: Sequence[float], passed_s: float, *, least: int, most: int, n_spare: int
    ) -> int:
        """How many there are to be. used: of each process that is ready, 0 to 1.

        The spare ones are there from the beginning, as far as `most` has room for them.
        """
        least = min(most, max(least, n_for(0.0, n_spare)))
        self.n_wanted = min(most, max(least, self.n_wanted))
        free = headroom(used, n_spare)
        self._little_s = self._little_s + passed_s if used and free < LEAST_HEADROOM else 0.0
        self._much_s = self._much_s + passed_s if used and free > MOST_HEADROOM else 0.0
        enough = n_for(sum(used), n_spare)
        if self._little_s >= TOO_LITTLE_FOR_S:
            self.n_wanted = min(most, max(self.n_wanted, enough))
            self._little_s = 0.0  # what is started now is given time to take its part
        elif self._much_s >= TOO_MUCH_FOR_S:
            self.n_wanted = max(least, min(self.n_wanted, max(enough, self.n_wanted - 1)))
            self._much_s = 0.0
        return self.n_wanted
