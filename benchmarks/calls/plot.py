"""The picture of one variant of ``benchmarks.turn_latency``: gaps, sorted, and their stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clients.report.stage_colors import color_of
from clients.report.waterfall import stage_names


def plot(data: dict[str, Any], path: Path) -> None:
    """Draw one run's results: a bar a turn, the fastest first, split into its stages."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    turns = [turn for turn in data["turns"] if turn["gap_ms"] is not None and turn["waterfall"]]
    turns.sort(key=lambda turn: float(turn["gap_ms"]))
    figure, axes = pyplot.subplots(figsize=(10, 4), layout="constrained")
    below = [0.0] * len(turns)
    for name in stage_names():
        heights = [
            sum(stage["ms"] for stage in turn["waterfall"]["stages"] if stage["name"] == name)
            for turn in turns
        ]
        if any(heights):
            axes.bar(range(len(turns)), heights, bottom=below, label=name, color=color_of(name))
            below = [b + h for b, h in zip(below, heights, strict=True)]
    axes.set(xlabel="turns, by gap", ylabel="ms")
    axes.legend(fontsize=7)
    axes.set_title(
        f"{data['benchmark']}: {data['n_turns']} turns, {data['cut_ins']} cut in; "
        f"commit {data['commit']}, {data['machine']['cpu']}", fontsize=8,
    )  # fmt: skip
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
