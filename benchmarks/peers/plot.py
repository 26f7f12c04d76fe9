"""The picture of `benchmarks.peers`: every gap as a point, and the share of turns cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

KINDS = ("plain", "hesitation")


def plot(data: dict[str, Any], path: Path) -> None:
    """Draw one run's results. data: what `benchmarks.harness.harness.results` made of it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(data["turns"])
    figure, axes = pyplot.subplots(
        1, 2 * len(KINDS), figsize=(13, 0.6 + 0.5 * len(names)), sharey=True,
        width_ratios=[3, 1] * len(KINDS), layout="constrained",
    )  # fmt: skip
    for place, kind in enumerate(KINDS):
        points, cuts = axes[2 * place], axes[2 * place + 1]
        for row, name in enumerate(names):
            turns = [turn for turn in data["turns"][name] if turn["kind"] == kind]
            gaps = [turn["gap_ms"] for turn in turns if turn["gap_ms"] is not None]
            points.plot(gaps, [row] * len(gaps), "|", markersize=12, color="C0", alpha=0.7)
            median = data["figures"][name][kind]["gap_ms"]["p50"]
            if median is not None:
                points.plot([median], [row], "o", color="C3")
            cuts.barh(row, data["figures"][name][kind]["cut"] or 0.0, color="C1")
        points.set(xlabel=f"gap, {kind} turns, ms (dot: median)", xlim=(0, None))
        cuts.set(xlabel="turns cut, %", xlim=(0, 100))
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    figure.suptitle(f"commit {data['commit']}, {data['machine']['cpu']}", fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
