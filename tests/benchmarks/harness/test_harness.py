from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.calls.bars import EMBEDDED, HUMAN, bars_of
from benchmarks.harness.harness import Bar, bar_table, interleaved, results, write_results
from clients.call.result import Ahead, BargeIn, CallResult, TurnResult
from clients.report.call_summary import summary_of
from clients.report.waterfall import STAGES, waterfall_of
from tests.tables import each_row

WATERFALL = waterfall_of(
    {"marks": {mark: 0.023 * i for i, (mark, _) in enumerate(STAGES)}}, 0.0, 0.3, 0.3
)
TURN = TurnResult(
    "a", "", "", "latte", (("latte",),), (), 0.0, 1.0, 1.3, 2.0, 300.0, 340.0,
    False, False, False, True, BargeIn(100.0, 140.0, 500.0, 60.0, 100.0), WATERFALL,
    Ahead(10, 9, 3, 20, 2, 0, True), interrupts=True,
)  # fmt: skip


def bars(*turns: TurnResult, chosen: str = EMBEDDED) -> dict[str, Bar]:
    data = summary_of([CallResult("slt", "", turns, (), 0, 0)])
    return {bar.name: bar for bar in bars_of(data, 2.0, 500.0, chosen)}


def test_variants_take_turns_and_each_goes_first_in_every_other_round() -> None:
    rounds = list(interleaved(["a", "b"], repeats=2, warm_up=1))
    assert [r.variant for r in rounds] == ["a", "b", "b", "a", "a", "b"]
    assert [r.is_warm_up for r in rounds] == [True, True, False, False, False, False]
    assert [r.index for r in rounds] == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("value", "at_least", "holds"),
    [(9.0, False, True), (10.0, False, True), (11.0, False, False), (11.0, True, True),
     (9.0, True, False), (None, False, False), (None, True, False)],
)  # fmt: skip
def test_a_bar_holds_up_to_its_limit_and_never_unmeasured(
    value: float | None, at_least: bool, holds: bool
) -> None:
    bar = Bar("x", value, 10, at_least=at_least)
    assert bar.holds is holds
    assert ("MISSED" not in bar_table([bar])) is holds


def test_a_good_call_holds_every_bar() -> None:
    for chosen in (EMBEDDED, HUMAN, "fakes 250"):
        missed = [bar.name for bar in bars(TURN, chosen=chosen).values() if not bar.holds]
        assert missed == []


@each_row(
    ("change", "missed"),
    [
        ({"answered": False, "gap_ms": None, "waterfall": None}, "unanswered turns"),
        ({"cut_in": True, "gap_ms": None, "waterfall": None}, "cut-ins"),
        ({"cut_in": True, "gap_ms": None, "waterfall": None}, "hard cuts"),
        ({"cut_in": True, "cut_is_soft": True, "gap_ms": None}, "soft cuts: taken back"),
        ({"cut_in": True, "cut_is_soft": True, "heard_over_ms": 220.0},
         "heard over the caller after a soft cut, p95"),
        ({"cut_in": True, "cut_is_soft": True, "heard_over_ms": 20.0, "said": "one latte please",
          "heard": "one please"},
         "words lost around soft cuts"),
        ({"hesitation_cut": True}, "hesitations cut"),
        ({"missing": ("latte",)}, "answers with the scripted words"),
        ({"gap_ms": 5000.0}, "gap p95"),
        ({"barge_in": BargeIn(301.0, 310.0, 1.0, 60.0, 100.0)},
         "barge-in p95, silent on the wire"),
        ({"barge_in": BargeIn(1.0, 321.0, 1.0, 60.0, 100.0)},
         "barge-in p95, audible at the client"),
        ({"waterfall": None}, "turns without a waterfall"),
        ({"waterfall": replace(WATERFALL, sum_error_ms=-11.0)},  # type: ignore[type-var]
         "waterfall: sum against gap, worst"),
        ({"waterfall": replace(WATERFALL, missing_marks=("x",))},  # type: ignore[type-var]
         "waterfall: marks missing"),
    ],
)  # fmt: skip
def test_each_failure_misses_its_bar(change: dict[str, object], missed: str) -> None:
    turns = [TURN] * 5 + [replace(TURN, **change)] * 5  # type: ignore[arg-type]
    assert not bars(*turns)[missed].holds


@pytest.mark.parametrize(
    ("ahead", "missed"),
    [
        (Ahead(10, 7, 3, 20, 2, 0, True), "tokens of this turn resident"),
        (Ahead(10, 9, 17, 20, 2, 0, True), "tokens left to prefill, p90"),
        (Ahead(10, 9, 3, 20, 2, 0, False), "held clause ready at release"),
        (Ahead(10, 9, 3, 20, 12, 0, True), "reply tokens discarded"),
        (None, "tokens of this turn resident"),
    ],
)
def test_what_was_not_done_ahead_misses_its_bar(ahead: Ahead | None, missed: str) -> None:
    assert not bars(replace(TURN, ahead=ahead), chosen=EMBEDDED)[missed].holds


def test_results_say_where_they_come_from(tmp_path: Path) -> None:
    data = results("bench", 7, {"turns": 1}, [Bar("x", 1.0, 2.0)], p50=3.0)
    path = write_results(data, tmp_path)
    read = json.loads(path.read_text())
    assert {"commit", "machine", "seed", "date", "settings", "bars"} <= read.keys()
    assert read["bars"][0]["holds"] is True
    assert read["p50"] == 3.0
    assert path.name.startswith("bench-2")
