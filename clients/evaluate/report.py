"""The report of an evaluation: what passed, what failed and why, and where callers waited.

Owns the figures in plain JSON values, the latency budgets held against them, and the table that a
person reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.markup import escape
from rich.table import Table

from clients.evaluate.outcome import Played, PlayedTurn, Surface, failures
from clients.evaluate.scenario import Budgets, Scenario
from clients.provenance import provenance
from clients.report.percentiles import Distribution, percentile
from clients.terminal import Terminal


def report_of(played: Sequence[Played], budgets: Budgets, how: str) -> dict[str, Any]:
    """JSON values. how: "typed" or "spoken"."""
    scenarios = [_scenario(one) for one in played]
    latency = _latency(played, budgets)
    return {
        **provenance(),
        "how": how,
        "passed": sum(not one["failures"] for one in scenarios),
        "failed": sum(bool(one["failures"]) for one in scenarios),
        "cut_ins": sum(turn.is_cut for one in played for turn in one.turns),
        "budgets_missed": [name for name, row in latency.items() if row["held"] is False],
        "latency": latency,
        "scenarios": scenarios,
    }


def has_passed(report: dict[str, Any]) -> bool:
    return not report["failed"] and not report["budgets_missed"]


def print_compared(reports: Mapping[str, dict[str, Any]], console: Terminal) -> None:
    """A row for each part of a server's two models: what passed, and the waits of callers."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("who answers", justify="left")
    rows = [report["latency"] for report in reports.values()]
    surfaces = [one for one in Surface if any(row[one.value]["n"] for row in rows)]
    for name in ("passed", "failed", *(f"{one.value} p50, ms" for one in surfaces)):
        table.add_column(name, justify="right")
    for part, report in reports.items():
        waits = (_shown(report["latency"][one.value]["p50"]) for one in surfaces)
        table.add_row(part, str(report["passed"]), str(report["failed"]), *waits)
    console.print(table)


def print_report(report: dict[str, Any], console: Terminal) -> None:
    for one in report["scenarios"]:
        mark = "[red]failed[/red]" if one["failures"] else "[green]passed[/green]"
        part = f" [{one['part']}]" if one["part"] else ""
        told = escape(f"{one['name']}{part}")
        console.print(f"{mark}  {told} ({len(one['turns'])} turns)")
        for failure in one["failures"]:
            console.print(f"        {failure}", markup=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("waits, ms", "n", "p50", "p95", "budget", ""):
        table.add_column(name, justify="left" if name == "waits, ms" else "right")
    for name, row in report["latency"].items():
        if row["n"] or row["budget_ms"] is not None:
            held = {None: "", True: "held", False: "MISSED"}[row["held"]]
            cells = (_shown(row["p50"]), _shown(row["p95"]), _shown(row["budget_ms"]))
            table.add_row(name, str(row["n"]), *cells, held)
    console.print(table)
    cuts = f", {report['cut_ins']} turns cut" if report["cut_ins"] else ""
    console.print(f"{report['passed']} passed, {report['failed']} failed{cuts} ({report['how']})")


def _shown(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.0f}"


def _scenario(played: Played) -> dict[str, Any]:
    return {
        "name": played.scenario.name,
        "part": played.part,
        "failures": failures(played),
        "verdict": played.verdict,
        "turns": [_turn(turn) for turn in played.turns],
    }


def _turn(turn: PlayedTurn) -> dict[str, Any]:
    return {
        "said": turn.turn.say,
        "heard": turn.heard,
        "answer": turn.answer,
        "calls": [{"name": c.name, "arguments": dict(c.arguments)} for c in turn.calls],
        "surface": turn.surface.value,
        "is_cut": turn.is_cut,
        "wait_ms": None if turn.wait_ms is None else round(turn.wait_ms, 1),
    }


def _latency(played: Sequence[Played], budgets: Budgets) -> dict[str, dict[str, Any]]:
    """Return the latency by surface. held: None where there is no budget, or no turn was to be held
    against it.

    A budget is missed where there were such turns and none of them has a wait.
    """
    limits, turns = asdict(budgets), [turn for one in played for turn in one.turns]
    rows = {}
    for surface in Surface:
        waits = [t.wait_ms for t in turns if t.surface is surface and t.wait_ms is not None]
        limit, found = limits[f"{surface.value}_ms"], Distribution.of(waits)
        is_due = any(t.surface is surface for t in turns)
        if surface is Surface.TOOL:
            is_due = is_due or any(_wants_calls(one.scenario) for one in played)
        held = None if limit is None or not is_due else False
        if waits and limit is not None:
            held = percentile(waits, 95) <= limit
        rows[surface.value] = {
            "n": found.n, "p50": found.p50, "p95": found.p95, "budget_ms": limit, "held": held,
        }  # fmt: skip
    return rows


def _wants_calls(scenario: Scenario) -> bool:
    return any(one.calls for one in (scenario.expected, *(t.expected for t in scenario.turns)))
