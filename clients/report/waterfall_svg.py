"""One turn's waterfall as inline SVG: a staircase, a row a stage, on a scale all turns share.

Text takes its color from the page (``currentColor`` and the class names), so that one drawing
serves the light and the dark page.
"""

from __future__ import annotations

from html import escape

from clients.report.stage_colors import color_of
from clients.report.waterfall import Waterfall

ROW_PX = 19
LABEL_PX = 118
WIDTH_PX = 680
VALUE_PX = 64  # room for "1234 ms" right of the last bar
SHOWN_FROM_MS = 0.5  # shorter stages would be rows of "0 ms": they are named below the drawing


def waterfall_svg(waterfall: Waterfall, scale_ms: float) -> str:
    """Draw ``waterfall``; ``scale_ms`` is the time at the right edge of the plot.

    One that is longer than the scale gets a scale of its own, which its ticks show.
    """
    scale_ms = max(scale_ms, rounded_up_ms(waterfall.total_ms))
    stages = [stage for stage in waterfall.stages if stage.ms >= SHOWN_FROM_MS]
    plot_px = WIDTH_PX - LABEL_PX - VALUE_PX
    height = ROW_PX * len(stages) + 22
    parts = [
        f'<svg class="waterfall" viewBox="0 0 {WIDTH_PX} {height}" role="img" '
        f'aria-label="Waterfall of {waterfall.total_ms:.0f} ms">'
    ]
    for tick_ms in ticks(scale_ms):
        x = LABEL_PX + plot_px * tick_ms / scale_ms
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height - 18}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 5}">{tick_ms:g}</text>')
    for row, stage in enumerate(stages):
        y = ROW_PX * row
        x = LABEL_PX + plot_px * stage.start_ms / scale_ms
        width = max(1.5, plot_px * stage.ms / scale_ms)
        parts.append(f'<text class="stage" x="{LABEL_PX - 10}" y="{y + 13}">')
        parts.append(f"{escape(stage.name)}</text>")
        parts.append(
            f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{ROW_PX - 6}" rx="2" '
            f'fill="{color_of(stage.name)}"/>'
        )
        parts.append(f'<text class="ms" x="{x + width + 6:.1f}" y="{y + 13}">{stage.ms:.0f}</text>')
    parts.append("</svg>")
    return "".join(parts)


def ticks(scale_ms: float) -> list[float]:
    """Round times from 0 to the scale, at most eight of them."""
    step = next((s for s in (25, 50, 100, 200, 250, 500, 1000) if scale_ms / s <= 7), 2000)
    return [float(tick) for tick in range(0, int(scale_ms) + 1, step)]


def shared_scale_ms(waterfalls: list[Waterfall]) -> float:
    """A round time that holds every waterfall but outliers of over three times the median."""
    totals = sorted(waterfall.total_ms for waterfall in waterfalls) or [100.0]
    median = totals[len(totals) // 2]
    return rounded_up_ms(max(total for total in totals if total <= 3 * median))


def rounded_up_ms(time_ms: float) -> float:
    return max(50.0, 50.0 * -(-time_ms // 50))
