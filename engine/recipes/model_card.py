"""Puts new figures and sample calls into the model card: `python -m engine.recipes.model_card`.

The card is prose written by hand; what stands between its `<!-- figures -->` and
`<!-- samples -->` marks and their ends is replaced.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CARD = Path(__file__).resolve().parents[1] / "embedded" / "README.md"


def table(figures: Iterable[dict[str, Any]]) -> str:
    """The figures of `evaluate_agent --json` as a Markdown table."""
    lines = ["| measure | value | cases | bar | |", "|---|---|---|---|---|"]
    for figure in figures:
        bar = verdict = ""
        if figure["bar"] is not None:
            bar = f"{'<=' if figure['at_most'] else '>='} {figure['bar']:g}"
            verdict = "holds" if figure["holds"] else "**missed**"
        lines.append(
            f"| {figure['name']} | {figure['value']:.3f} | {figure['cases'] or ''} "
            f"| {bar} | {verdict} |"
        )
    return "\n".join(lines)


def fill(card: str, section: str, text: str) -> str:
    """The card with what stands between the marks of `section` replaced.

    Raises:
        ValueError: the card lacks the marks.
    """
    opening, closing = f"<!-- {section} -->", f"<!-- /{section} -->"
    before, opened, rest = card.partition(opening)
    _, closed, after = rest.partition(closing)
    if not opened or not closed:
        raise ValueError(f"expected {opening} ... {closing} in the card, found no such section")
    return f"{before}{opening}\n{text.strip()}\n{closing}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Put figures and sample calls into the card.")
    parser.add_argument("--figures", type=Path, help="written by evaluate_agent --json")
    parser.add_argument("--samples", type=Path, help="the output of sample_calls")
    parser.add_argument("--card", type=Path, default=CARD)
    given = parser.parse_args()
    card = given.card.read_text()
    try:
        if given.figures:
            card = fill(card, "figures", table(json.loads(given.figures.read_text())["figures"]))
        if given.samples:
            card = fill(card, "samples", given.samples.read_text())
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"model_card: {error}")
    given.card.write_text(card)


if __name__ == "__main__":
    main()
