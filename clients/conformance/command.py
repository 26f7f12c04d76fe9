"""``voiceloop conformance URL``: run the checks, print the table, say it with the exit code.

Exit code 0: no check failed. 1: at least one did. 2: there was no server to check.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from clients.conformance.check import Check, Result, Target
from clients.conformance.suite import ALL, chosen, recorded_speech, run_suite
from clients.terminal import Terminal

STYLES = {"pass": "green", "fail": "bold red", "skip": "yellow"}
EXIT_FAILED = 1


@dataclass(frozen=True, slots=True)
class ConformanceOptions:
    url: str
    key: str | None = None
    model: str = "gpt-realtime"
    names: tuple[str, ...] = ()
    as_json: bool = False
    jobs: int = 1
    timeout_s: float = 15.0


async def run_conformance(options: ConformanceOptions) -> int:
    """Returns the exit code.

    Raises:
        ClientError: no server answers there, or a check is named that does not exist.
    """
    checks = chosen(options.names)
    target = Target(
        options.url,
        recorded_speech(),
        options.key,
        options.model,
        timeout_s=options.timeout_s,
    )
    console = Terminal(file=sys.stderr, highlight=False)
    with console.status("connecting") as status:
        n_done = 0

        def tell(result: Result) -> None:
            nonlocal n_done
            n_done += 1
            status.update(f"{n_done} of {len(checks)}: {result.check.name}")

        try:
            results = await run_suite(target, checks, jobs=options.jobs, on_result=tell)
        except asyncio.CancelledError:
            console.print(f"interrupted after {n_done} of {len(checks)} checks: no result is shown")
            raise
    if options.as_json:
        print(json.dumps(report(options.url, results), indent=1))
    else:
        print_table(results)
    return EXIT_FAILED if any(result.outcome == "fail" for result in results) else 0


def report(url: str, results: Sequence[Result]) -> dict[str, object]:
    """The results as JSON values."""
    rows = [
        {
            "check": result.check.name,
            "topic": result.check.topic,
            "outcome": result.outcome,
            "sentence": result.sentence,
            "rule": result.check.rule,
            "seconds": round(result.seconds, 3),
        }
        for result in results
    ]
    return {"url": url, "counts": dict(Counter(r.outcome for r in results)), "checks": rows}


def print_table(results: Sequence[Result]) -> None:
    """One row a check: the rule where it holds, what was expected and found where it does not."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("check", "result"):
        table.add_column(name, no_wrap=True)
    table.add_column("what holds, or what was expected and found", overflow="fold")
    for result in results:
        style = STYLES[result.outcome]
        sentence = Text(result.sentence, style="" if result.outcome == "pass" else style)
        table.add_row(result.check.name, Text(result.outcome, style=style), sentence)
    counts = Counter(result.outcome for result in results)
    # Not on a terminal there is no width to keep to: a row stays one line that can be searched.
    width = None if sys.stdout.isatty() else 240
    console = Terminal(highlight=False, width=width)
    console.print(table)
    console.print(
        f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped "
        f"of {len(results)} checks"
    )


def print_checks(checks: Sequence[Check] = ALL) -> None:
    """``--list``: every check and its rule."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("topic", "check"):
        table.add_column(name, no_wrap=True)
    table.add_column("rule", overflow="fold")
    for check in checks:
        table.add_row(check.topic, check.name, check.rule)
    Terminal(highlight=False, width=None if sys.stdout.isatty() else 240).print(table)
