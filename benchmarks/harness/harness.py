"""What every benchmark shares: bars, interleaved rounds, and results that say where they come from.

A bar is one line of an issue's table with the value measured against it. Variants that are
compared take turns, call by call and each going first in every other round, so that a machine that
warms up or slows down treats them alike. Results are JSON with commit, machine, seed and date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clients.outputs import prepare_folder, writing
from clients.provenance import provenance

RESULTS = Path("out") / "benchmarks"


def percent(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None


def cell(value: float | None, unit: str = "") -> str:
    """A whole number of a table."""
    return "-" if value is None else f"{value:.0f}{unit}"


@dataclass(frozen=True, slots=True)
class Bar:
    """``value`` must be at most ``limit`` (or at least, where ``at_least``); None: not measured.

    ``n``: how many measurements a percentile is of, where they are so few that it must be said.
    """

    name: str
    value: float | None
    limit: float
    unit: str = "ms"
    at_least: bool = False
    n: int | None = None

    @property
    def holds(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement of one variant; a warm-up is run and not counted."""

    index: int
    variant: str
    is_warm_up: bool


def interleaved(variants: Sequence[str], repeats: int, warm_up: int = 0) -> Iterator[Round]:
    """All rounds: warm-ups first, each round one measurement of every variant.

    Each round begins with the next variant, so that of three or more none ever follows itself.

    >>> [r.variant for r in interleaved(["a", "b"], repeats=2)]
    ['a', 'b', 'b', 'a']
    """
    for index in range(warm_up + repeats):
        first = index % len(variants)
        for variant in [*variants[first:], *variants[:first]]:
            yield Round(max(0, index - warm_up), variant, index < warm_up)


def bar_table(bars: Sequence[Bar]) -> str:
    """The bars as text, one a line: what it is, what was measured, what it must be."""
    width = max((len(bar.name) for bar in bars), default=0)
    lines = []
    for bar in bars:
        value = "-" if bar.value is None else f"{bar.value:.1f}"
        sign = ">=" if bar.at_least else "<="
        verdict = "ok" if bar.holds else "MISSED"
        of = "" if bar.n is None else f" (n {bar.n})"
        lines.append(
            f"{bar.name:<{width}}  {value:>9} {bar.unit:<3} {sign} {bar.limit:<7g} {verdict}{of}"
        )
    return "\n".join(lines)


def results(
    benchmark: str,
    seed: int,
    settings: dict[str, Any],
    bars: Sequence[Bar],
    *,
    partial: str | None = None,
    **figures: Any,
) -> dict[str, Any]:
    """One benchmark's results as JSON values; ``partial``: why it ended early, if it did."""
    return {
        "benchmark": benchmark,
        "partial": partial,
        **provenance(),
        "seed": seed,
        "settings": settings,
        "bars": [{**asdict(bar), "holds": bar.holds} for bar in bars],
        **figures,
    }


def write_results(data: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write results beside earlier ones; the name holds the benchmark, the date and the commit.

    Raises:
        OutputError: it cannot be written.
    """
    prepare_folder(folder)
    stamp = data["date"][:19].replace(":", "").replace("-", "")
    part = "-partial" if data["partial"] else ""
    path = folder / f"{data['benchmark']}-{stamp}-{data['commit'].rstrip('+')}{part}.json"
    with writing(path):
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return path
