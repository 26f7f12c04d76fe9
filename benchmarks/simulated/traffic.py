"""Who calls when: a steady rate, a crowd, tenants few of which call often."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

ZIPF = 1.1


@dataclass(frozen=True, slots=True)
class Crowd:
    """times: how many times the usual rate of calls, for so long."""

    at_s: float
    lasts_s: float = 60.0
    times: float = 10.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """per_s: calls in the busiest hour, which lasts."""

    per_s: float
    n_tenants: int = 200
    crowds: tuple[Crowd, ...] = ()

    def rate(self, at_s: float) -> float:
        times = max(
            (one.times for one in self.crowds if one.at_s <= at_s < one.at_s + one.lasts_s),
            default=1.0,
        )
        return self.per_s * times

    def arrivals(self, until_s: float, draw: random.Random) -> Iterator[float]:
        """Poisson, of a rate that changes: drawn at the highest and thinned."""
        highest = self.per_s * max((crowd.times for crowd in self.crowds), default=1.0)
        if not highest:
            return
        at_s = 0.0
        while (at_s := at_s + draw.expovariate(highest)) < until_s:
            if draw.random() < self.rate(at_s) / highest:
                yield at_s

    def tenants(self) -> Tenants:
        return Tenants(self.n_tenants)


class Tenants:
    """Drawn by Zipf's law: the first of 200 makes a fifth of the calls."""

    def __init__(self, n_tenants: int) -> None:
        self._names = [f"tenant {rank}".encode() for rank in range(n_tenants)]
        self._weights = [1.0 / (rank + 1) ** ZIPF for rank in range(n_tenants)]
        total, self._up_to = 0.0, list[float]()
        for weight in self._weights:
            total += weight
            self._up_to.append(total)

    def one(self, draw: random.Random) -> bytes:
        [name] = draw.choices(self._names, cum_weights=self._up_to)
        return name
