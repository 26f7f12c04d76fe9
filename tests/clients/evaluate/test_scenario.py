"""A file of scenarios is read to its last key, and judged by the rules it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.errors import ScenarioError
from clients.evaluate.command import chosen_of
from clients.evaluate.outcome import Called, Played, PlayedTurn, Surface, failures, holds
from clients.evaluate.report import has_passed, report_of
from clients.evaluate.scenario import Budgets, ScenarioFile, load_scenarios
from tests.tables import each_row

WHOLE = """
[budgets]
chat_ms = 500

[results]
place_order = { status = "ordered" }

[[scenarios]]
name = "an order"
contains = ["latte"]
ends = ["goodbye|bye"]
most_turns = 2
judge = "Was it polite?"

[[scenarios.turns]]
say = "A latte, please."
calls = [{ name = "place_order", arguments = { item = "latte", size = "*" } }]

[[scenarios.turns]]
when = ["anything else"]
say = "No, goodbye."
lacks = ["sorry"]
"""


def read(tmp_path: Path, text: str) -> ScenarioFile:
    path = tmp_path / "scenarios.toml"
    path.write_text(text, encoding="utf-8")
    return load_scenarios(path)


def played(tmp_path: Path, *answers: str, calls: tuple[Called, ...] = ()) -> Played:
    [scenario] = read(tmp_path, WHOLE).scenarios
    turns = [PlayedTurn(turn, text) for turn, text in zip(scenario.turns, answers, strict=False)]
    if turns:
        turns[0].calls.extend(calls)
    return Played(scenario, turns)


ORDERED = Called("place_order", {"item": "Latte", "size": "large"})


@each_row(
    ("text", "wanted"),
    [
        ("", "1 to 200 [[scenarios]], found 0"),
        ("[[scenario]]\nname = 'x'", "budgets, results, scenarios, found 'scenario'"),
        ("[[scenarios]]\nlines = ['hi']", "scenarios[0].name: expected a text"),
        ("[[scenarios]]\nname = 'x'", "expected lines or turns, found neither"),
        ("[[scenarios]]\nname = 'x'\nlines = []", "1 to 200 turns, found 0"),
        ("[[scenarios]]\nname = 'x'\nlines = [1]", "lines: expected a list of texts"),
        ("[[scenarios]]\nname = 'x'\nlines = ['a']\nmost_turns = 0", "whole number from 1"),
        ("[[scenarios]]\nname = 'x'\nturns = [{ sya = 'a' }]", "found 'sya'"),
        ("[[scenarios]]\nname = 'x'\nlines = ['a']\ncalls = [{ nam = 'b' }]", "found 'nam'"),
        ("[[scenarios]]\nname='x'\nlines=['a']\n[[scenarios]]\nname='x'\nlines=['a']", "twice"),
        ("[budgets]\nchat = 5\n[[scenarios]]\nname='x'\nlines=['a']", "found 'chat'"),
        ("[budgets]\nchat_ms = -5\n[[scenarios]]\nname='x'\nlines=['a']", "found -5"),
        ("= no toml", "expected TOML"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, wanted: str) -> None:
    with pytest.raises(ScenarioError) as error:
        read(tmp_path, text)
    assert wanted in str(error.value)


def test_a_file_that_is_not_there_and_a_name_that_is_not_in_it_are_told(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="found none"):
        load_scenarios(tmp_path / "none.toml")
    file = read(tmp_path, WHOLE)
    assert chosen_of(file, []) == file.scenarios == chosen_of(file, ["an order"])
    with pytest.raises(ScenarioError, match="expected a scenario of an order, found 'other'"):
        chosen_of(file, ["other"])


@pytest.mark.parametrize(
    ("text", "phrase", "is_there"),
    [
        ("We open at 10 am.", "10", True),
        ("We open at 10 am.", "1", False),
        ("It is $4.50.", "$4.50", True),
        ("We close at Six.", "6 pm|six", True),
        ("Nobody is there.", "no", False),
        ("You\u2019re booked.", "you're booked", True),
    ],
)
def test_phrases_are_whole_words_in_any_case(text: str, phrase: str, is_there: bool) -> None:
    assert holds(text, phrase) is is_there


def test_an_agent_that_does_all_of_it_passes(tmp_path: Path) -> None:
    one = played(tmp_path, "A latte. Anything else?", "Goodbye!", calls=(ORDERED,))
    assert failures(one) == []
    one.verdict = "Yes. It was."
    assert failures(one) == []


@pytest.mark.parametrize(
    ("answers", "calls", "verdict", "found"),
    [
        (("A latte.", "Bye"), (), None, "expected a call of place_order"),
        (("A latte.", "Bye"), (Called("place_order", {"item": "latte"}),), None, "found place_"),
        (("A tea.", "Bye"), (ORDERED,), None, "the call: expected 'latte'"),
        (("A latte.", "Sorry, bye"), (ORDERED,), None, "expected nothing of 'sorry'"),
        (("A latte.", "Well"), (ORDERED,), None, "expected an end with"),
        (("A latte.", ""), (ORDERED,), None, "expected an answer, found none"),
        (("A latte.", "Bye"), (ORDERED,), "No, it was rude.", "the judge: No, it was rude."),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(
    tmp_path: Path,
    answers: tuple[str, ...],
    calls: tuple[Called, ...],
    verdict: str | None,
    found: str,
) -> None:
    one = played(tmp_path, *answers, calls=calls)
    one.verdict = verdict
    assert any(found in failure for failure in failures(one)), failures(one)


def test_a_call_that_broke_off_or_took_too_many_turns_fails(tmp_path: Path) -> None:
    one = played(tmp_path, "A latte.", "Bye", calls=(ORDERED,))
    one.turns *= 2
    one.broken = "the server hung up"
    assert [failure for failure in failures(one) if "at most 2 turns, found 4" in failure]
    assert "the call broke off: the server hung up" in failures(one)


def test_budgets_are_held_against_the_95th_percentile_of_their_own_surface(tmp_path: Path) -> None:
    one = played(tmp_path, "A latte. Anything else?", "Goodbye!", calls=(ORDERED,))
    tool, chat = one.turns
    tool.wait_ms, chat.wait_ms = 900.0, 300.0
    assert (tool.surface, chat.surface) == (Surface.TOOL, Surface.CHAT)
    report = report_of([one], Budgets(chat_ms=400.0, voice_ms=100.0), "typed")
    assert has_passed(report) and report["latency"]["chat"]["held"] is True
    assert report["latency"]["voice"] == {
        "n": 0, "p50": None, "p95": None, "budget_ms": 100.0, "held": None,
    }  # fmt: skip
    report = report_of([one], Budgets(chat_ms=400.0, tool_ms=800.0), "typed")
    assert not has_passed(report) and report["budgets_missed"] == ["tool"]
    chat.heard = "no goodbye"
    assert chat.surface is Surface.VOICE
