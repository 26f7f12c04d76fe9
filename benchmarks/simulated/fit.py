"""This machine's costs from two measured points, and other measured points held against them.

A measured point is a level of `benchmarks.capacity`: so many calls at once, begun a little apart,
each in real time. The same is simulated: one gateway, one worker with every role.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.simulated.cell import Cell, Size
from benchmarks.simulated.costs import Z95, Caller, Costs, one_machine
from benchmarks.simulated.traffic import Traffic
from clients.report.percentiles import percentile

APART_S = 0.73  # as benchmarks.capacity begins its callers
REPEATS = 12  # of one point: a measured one has few turns, a simulated one shall not be luck
# The grid, coarse, and by which factors its best is then tried larger and smaller.
TURN_S = (0.04, 0.08, 0.15, 0.25, 0.4)
CALL_SHARES = (0.01, 0.04, 0.08, 0.12, 0.16, 0.2)
MISSED = (0.03, 0.1)
STEPS = (1.3, 1.3, 1.15, 1.07)
NO_CALLS = Traffic(0.0)


@dataclass(frozen=True, slots=True)
class Point:
    """So many callers at once, and what came of it. n_let_in: of them."""

    n_calls: int
    n_turns: int
    p50_ms: float
    p95_ms: float
    n_let_in: int

    @classmethod
    def of_level(cls, level: dict[str, Any]) -> Point:
        """Of one level of a result of `benchmarks.capacity`."""
        gap, n_calls = level["gap_ms"], int(level["n_calls"])
        per_call = max(1, round(level["n_turns"] / max(1, level["calls"])))
        return cls(n_calls, per_call, gap["p50"], gap["p95"], int(level["calls"]))


def simulated(
    costs: Costs, n_calls: int, n_turns: int, *, admits_by_load: bool, repeats: int = REPEATS
) -> Point:
    """The same in simulation, over several draws."""
    gaps_ms: list[float] = []
    n_let_in = 0
    for seed in range(repeats):
        cell = Cell(
            costs, Size(1, {"machine": 1}), NO_CALLS, seed=seed, admits_by_load=admits_by_load
        )
        length_s = n_turns * costs.caller.turn_s
        for number in range(n_calls):
            cell.at(APART_S * number, partial(cell.offer, length_s))
        found = cell.run(APART_S * n_calls + length_s)
        gaps_ms += [1000.0 * gap_s for _, gap_s in found.gaps]
        n_let_in += found.n_offered - found.n_blocked
    p50, p95 = percentile(gaps_ms, 50), percentile(gaps_ms, 95)
    return Point(n_calls, n_turns, p50, p95, round(n_let_in / repeats))


def fit(few: Point, many: Point, caller: Caller | None = None) -> Costs:
    """Costs under which both points come out.

    The wait is that of the first, where hardly anything waits for anything; what a turn costs, what
    an open call costs, and how many answers are not made ahead, are sought on a grid and then
    closer, for the smallest error of both.
    """
    sigma = max(0.02, math.log(few.p95_ms / few.p50_ms) / Z95)
    known = replace(caller or Caller(), wait_p50_s=few.p50_ms / 1000.0, wait_sigma=sigma)
    grid = [
        _Guess(replace(known, missed=missed), turn_s, share)
        for missed in MISSED
        for turn_s in TURN_S
        for share in CALL_SHARES
    ]
    best = min(grid, key=lambda guess: guess.error(few, many))
    for step in STEPS:
        best = min((best, *best.near(step)), key=lambda guess: guess.error(few, many))
    return best.costs()


@dataclass(frozen=True, slots=True)
class _Guess:
    caller: Caller
    turn_s: float
    call_share: float

    def costs(self) -> Costs:
        return one_machine(self.turn_s, self.call_share, self.caller)

    def near(self, step: float) -> Iterator[_Guess]:
        for times in (step, 1.0 / step):
            yield replace(self, turn_s=self.turn_s * times)
            yield replace(self, call_share=self.call_share * times)
            missed = min(1.0, self.caller.missed * times)
            yield replace(self, caller=replace(self.caller, missed=missed))

    def error(self, few: Point, many: Point) -> float:
        """Of the logarithms of both points' p50 and p95, squared."""
        total = 0.0
        for point in (few, many):
            repeats = max(2, 24 // point.n_calls)
            found = simulated(
                self.costs(), point.n_calls, max(8, point.n_turns), admits_by_load=False,
                repeats=repeats,
            )  # fmt: skip
            total += math.log(found.p50_ms / point.p50_ms) ** 2
            total += math.log(found.p95_ms / point.p95_ms) ** 2
        return total


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measured point beside the simulated one. Apart: as a share of what was measured."""

    measured: Point
    found: Point

    @property
    def p95_apart(self) -> float:
        return abs(self.found.p95_ms / self.measured.p95_ms - 1.0)


def compare(costs: Costs, levels: Sequence[dict[str, Any]]) -> list[Comparison]:
    """Each level of a ramp without admission, beside the simulated one."""
    points = [Point.of_level(level) for level in levels]
    return [
        Comparison(point, simulated(costs, point.n_calls, point.n_turns, admits_by_load=False))
        for point in points
    ]
