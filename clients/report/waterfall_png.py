"""``waterfall.png``: every turn of a call as one bar of stages, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clients.call.result import TurnResult
from clients.errors import ClientError
from clients.report.stage_colors import COLORS, color_of
from clients.report.waterfall_svg import ticks

INK, SOFT, GRID, PAPER = "#1f2328", "#6a737d", "#e6e3dc", "#fbfaf7"


def check_matplotlib(picture: str = "waterfall.png") -> None:
    """Called before a call is played, not after it. ``picture``: what it is wanted for.

    Raises:
        ClientError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ClientError(
            f"expected matplotlib for {picture}, found none: pip install 'voiceloop[embedded]'"
        )


def draw_waterfall(path: Path, turns: Sequence[TurnResult], title: str, note: str) -> None:
    """Write the picture; turns without a gap keep their row and say why."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    longest = max((turn.gap_ms or 0.0 for turn in turns), default=0.0)
    scale_ms = max(100.0, longest * 1.14)
    figure = Figure(figsize=(11, 1.9 + 0.5 * len(turns)), dpi=160, facecolor=PAPER)
    FigureCanvasAgg(figure)
    height = figure.get_figheight()
    axes = figure.add_axes((0.13, 0.6 / height, 0.84, 1.0 - 1.75 / height), facecolor=PAPER)
    used: set[str] = set()
    for row, turn in enumerate(turns):
        used |= _draw_turn(axes, row, turn, scale_ms)
    axes.set(xlim=(0, scale_ms), ylim=(len(turns) - 0.4, -0.6), yticks=range(len(turns)))
    axes.set_yticklabels([f"{i}  {turn.name}" for i, turn in enumerate(turns, 1)], color=INK)
    axes.set_xticks(ticks(scale_ms))
    axes.tick_params(length=0, labelsize=9.5, colors=SOFT)
    axes.tick_params(axis="y", labelsize=10.5, labelcolor=INK, pad=8)
    axes.grid(axis="x", color=GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("ms after the caller's last sound", color=SOFT, fontsize=9.5, loc="left")
    figure.text(0.03, 1 - 0.38 / height, title, color=INK, fontsize=15, weight="bold")
    figure.text(0.03, 1 - 0.66 / height, note, color=SOFT, fontsize=9.5)
    handles = [Patch(color=color, label=name) for name, color in COLORS.items() if name in used]
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.021, 1 - 0.76 / height), fontsize=8,
        ncols=len(COLORS), frameon=False, labelcolor=SOFT, handlelength=0.9, handleheight=0.9,
        columnspacing=1.1, handletextpad=0.45,
    )  # fmt: skip
    figure.savefig(path, facecolor=PAPER)


def _draw_turn(axes: Any, row: int, turn: TurnResult, scale_ms: float) -> set[str]:
    """Draw one row; returns the names of the stages in it."""
    if turn.gap_ms is None:
        why = "cut in" if turn.cut_in else "no answer"
        axes.text(scale_ms * 0.005, row, why, va="center", color="#c0392b", fontsize=10)
        return set()
    if turn.waterfall is None:
        axes.barh(row, turn.gap_ms, height=0.56, color=GRID)
    stages = turn.waterfall.stages if turn.waterfall is not None else ()
    for stage in stages:
        axes.barh(
            row, stage.ms, left=stage.start_ms, height=0.56, color=color_of(stage.name),
            edgecolor=PAPER, linewidth=0.8,
        )  # fmt: skip
    axes.text(
        turn.gap_ms + scale_ms * 0.008, row, f"{turn.gap_ms:.0f} ms", va="center",
        color=INK, fontsize=10.5, weight="bold",
    )  # fmt: skip
    return {stage.name for stage in stages if stage.ms >= 0.5}
