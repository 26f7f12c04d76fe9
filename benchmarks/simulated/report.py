"""What a simulated cell came to: the figures of a page, and how long it took to recover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.simulated.calls import Outcome
from benchmarks.simulated.cell import WINDOW_S, Size
from benchmarks.simulated.costs import Costs
from clients.report.percentiles import percentile

HOUR_S = 3600.0
RECOVERED = 1.2  # times the p95 before the fault
LEAST_TURNS = 20  # of a window whose p95 says something
STEADY_WINDOWS = 2


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. Costs are of the priced stage alone, in its own currency; None: not known."""

    offered: int
    blocked_share: float
    most_at_once: int
    turns: int
    gap_p50_ms: float | None
    gap_p95_ms: float | None
    gap_p99_ms: float | None
    failed_turns: int
    resumed: int
    dropped: int
    prefix_hit_share: float
    units: int
    units_per_1000_calls: float | None
    cost_per_1000_calls: float | None
    cost_per_1000_turns: float | None
    recovered_s: float | None
    levels_share: dict[str, float]

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def figures(
    costs: Costs, size: Size, seconds: float, found: Outcome, fault_at_s: float | None = None
) -> Figures:
    gaps_ms = [1000.0 * gap_s for _, gap_s in found.gaps]
    units = size.n_workers[costs.priced]
    spent = costs.price_hour * units * seconds / HOUR_S
    n_served = found.n_offered - found.n_blocked
    in_levels = sum(found.levels.values())
    return Figures(
        offered=found.n_offered,
        blocked_share=found.n_blocked / max(1, found.n_offered),
        most_at_once=found.most_at_once,
        turns=len(gaps_ms),
        gap_p50_ms=percentile(gaps_ms, 50) if gaps_ms else None,
        gap_p95_ms=percentile(gaps_ms, 95) if gaps_ms else None,
        gap_p99_ms=percentile(gaps_ms, 99) if gaps_ms else None,
        failed_turns=found.n_failed_turns,
        resumed=found.n_resumed,
        dropped=found.n_dropped,
        prefix_hit_share=found.n_prefix_hits / max(1, found.n_prefix_asked),
        units=units,
        units_per_1000_calls=1000 * units / found.most_at_once if found.most_at_once else None,
        cost_per_1000_calls=1000 * spent / n_served if n_served else None,
        cost_per_1000_turns=1000 * spent / len(gaps_ms) if gaps_ms else None,
        recovered_s=recovered_s(found.gaps, fault_at_s) if fault_at_s is not None else None,
        levels_share={name: held / in_levels for name, held in found.levels.items()},
    )


def windows(gaps: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The p95 of each ten seconds: its end, and the seconds; only where there are enough turns."""
    by_window: dict[int, list[float]] = {}
    for at_s, gap_s in gaps:
        by_window.setdefault(int(at_s // WINDOW_S), []).append(gap_s)
    return [
        (WINDOW_S * (number + 1), percentile(values, 95))
        for number, values in sorted(by_window.items())
        if len(values) >= LEAST_TURNS
    ]


def recovered_s(gaps: Sequence[tuple[float, float]], fault_at_s: float) -> float | None:
    """From a fault until the gap's p95 stays within `RECOVERED` of what it was; None: it did not.

    To a window's end, so that nothing is told finer than it was seen.
    """
    seen = windows(gaps)
    before = [p95 for end_s, p95 in seen if end_s <= fault_at_s]
    after = [(end_s, p95) for end_s, p95 in seen if end_s > fault_at_s]
    if not before:
        return None
    most = RECOVERED * median(before)
    for index in range(len(after) - STEADY_WINDOWS + 1):
        if all(p95 <= most for _, p95 in after[index : index + STEADY_WINDOWS]):
            return after[index][0] - fault_at_s
    return None
