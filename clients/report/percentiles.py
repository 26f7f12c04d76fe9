"""Percentiles of measured values, by linear interpolation between the sorted values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which ``percent`` of ``values`` lie.

    Raises:
        ValueError: there are no values, or ``percent`` is outside 0..100.
    """
    if not values:
        raise ValueError("expected at least one value, found none")
    if not 0.0 <= percent <= 100.0:
        raise ValueError(f"expected a percentage of 0 to 100, found {percent}")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100.0
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A set of measurements in one unit; all figures are None where nothing was measured."""

    n: int
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    least: float | None = None
    most: float | None = None

    @classmethod
    def of(cls, values: Sequence[float], n_digits: int = 1) -> Distribution:
        """Rounded to so many decimal places."""
        if not values:
            return cls(0)
        found = [percentile(values, percent) for percent in (50, 90, 95, 99, 0, 100)]
        return cls(len(values), *(round(value, n_digits) for value in found))
