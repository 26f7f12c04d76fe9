"""A plot of percentiles for a terminal: one line a row, all on one axis. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from clients.report.percentiles import percentile

WIDTH = 56
LEGEND = "─ least to most   ━ p5 to p95   ● p50"


def range_plot(rows: Sequence[tuple[str, Sequence[float]]], unit: str = "ms") -> list[str]:
    """Return a plot of each label's values: their range, the middle nine tenths, the median.

    The axis begins at 0, so that lengths may be compared. Rows without a value say so.
    """
    most = max((max(values) for _, values in rows if values), default=0.0)
    if most <= 0.0:
        return []
    width = max(len(label) for label, _ in rows)
    lines = [f"{label:<{width}} │{_row(values, most)}" for label, values in rows]
    axis = f"{'0':<{WIDTH - 12}}{f'{most:.4g} {unit}':>12}"
    return [*lines, f"{'':<{width}} └{'─' * WIDTH}", f"{'':<{width}}  {axis}", f"  {LEGEND}"]


def _row(values: Sequence[float], most: float) -> str:
    if not values:
        return " nothing measured"
    cells = [" "] * WIDTH

    def column(value: float) -> int:
        return min(WIDTH - 1, int(WIDTH * max(0.0, value) / most))

    for begin, end, mark in ((0, 100, "─"), (5, 95, "━"), (50, 50, "●")):
        for index in range(column(percentile(values, begin)), column(percentile(values, end)) + 1):
            cells[index] = mark
    return "".join(cells).rstrip()
