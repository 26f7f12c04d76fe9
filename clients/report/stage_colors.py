"""One color for each stage of the waterfall, the same in the terminal, the picture and the report.

Stages in which the server listens are warm, those in which it thinks are blue, those in which it
speaks are green, the wire is grey; each pair reads on white and on near-black.
"""

from __future__ import annotations

COLORS = {
    "speech tail": "#f0c05a",
    "vad lag": "#eda23f",
    "silence wait": "#e57f45",
    "final transcript": "#d65a5f",
    "before reply": "#cf6488",
    "retrieval": "#c76fb0",
    "prompt": "#a873d1",
    "tools": "#8a6fe0",
    "thinks": "#7b77e8",
    "first token": "#6d80e3",
    "first clause": "#3fa0dc",
    "synthesis": "#2bb3a3",
    "playout": "#6dbb63",
    "writer": "#a3c94a",
    "downlink": "#98a2ad",
    "lead-in silence": "#c2c8ce",
}
UNKNOWN = "#888888"


def color_of(stage: str) -> str:
    return COLORS.get(stage, UNKNOWN)
