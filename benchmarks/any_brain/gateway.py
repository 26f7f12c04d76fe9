"""Calls on services: a gateway, an installation without torch, and services as quick as people's.

People's clips in real time, plain and with a hesitation spliced in, as `benchmarks.peers` plays
them; true words from its stub recognizer. Needs the shared data (VOICELOOP_DATA).
"""

from __future__ import annotations

from typing import Any

from benchmarks.any_brain.served import Found
from benchmarks.harness.harness import Bar
from benchmarks.peers.__main__ import (
    INSTANT,
    Settings,
    figures_of,
)
from benchmarks.peers.__main__ import (
    measure as play,
)
from benchmarks.peers.call import MeasuredTurn

READ = "voiceloop"  # beside both readers, which the others are held against
OTHERS = ("voiceloop-gateway", "voiceloop-bare")
QUICK_SERVICES = "60,100,10,100"
MOST_LATER_MS, MOST_P50_MS, MOST_P95_MS = 15.0, 360.0, 700.0
N_TURNS, N_QUICK = 24, 1


async def measure(found: Found, *, is_quick: bool, seed: int) -> None:
    n_turns = N_QUICK if is_quick else N_TURNS
    instant = await _figures((READ, *OTHERS), INSTANT, n_turns, seed)
    found.figures[INSTANT] = instant
    found.bars += [bar for name in OTHERS for bar in _beside(name, instant)]
    services = await _figures((READ,), QUICK_SERVICES, n_turns, seed)
    found.figures[QUICK_SERVICES] = services
    gap = services[READ]["plain"]["gap_ms"]
    for key, limit in (("p50", MOST_P50_MS), ("p95", MOST_P95_MS)):
        found.bars.append(Bar(f"services of {QUICK_SERVICES} ms: gap {key}", gap[key], limit))


async def _figures(
    names: tuple[str, ...], delays_ms: str, n_turns: int, seed: int
) -> dict[str, dict[str, Any]]:
    measured: dict[str, list[MeasuredTurn]] = {name: [] for name in names}
    await play(Settings(n_turns, 0, names, delays_ms, seed), measured)
    return {name: figures_of(turns) for name, turns in measured.items()}


def _beside(name: str, figures: dict[str, dict[str, Any]]) -> list[Bar]:
    """This variant, held against the one with both readers."""
    own, read = figures[name], figures[READ]
    gaps = [row["plain"]["gap_ms"]["p50"] for row in (own, read)]
    later = gaps[0] - gaps[1] if None not in gaps else None
    bars = [Bar(f"{name}: gap p50 later than beside readers", later, MOST_LATER_MS)]
    for kind in ("plain", "hesitation"):
        bars.append(Bar(f"{name}: turns cut, {kind}", own[kind]["cut"], read[kind]["cut"], "%"))
    return bars
