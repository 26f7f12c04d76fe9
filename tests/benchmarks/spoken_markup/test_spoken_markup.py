"""What is counted as markup and as stuck, and that every agent is asked the same kind of turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.spoken_markup.__main__ import (
    BROKE_OFF,
    n_broke_off,
)
from benchmarks.spoken_markup.judge import holds_markup, is_stuck

# What the cafe said at commit 9806230, to "how can I pay".
SEEN = 'cash_total", "arguments": {"order": ["baguette", "baguette"]}}</tool_call>'


@pytest.mark.parametrize(
    "said", [SEEN, "It costs </tool", 'name": "x', "Sure [pause]", "`ls`", "a_b", "{", "|"]
)
def test_a_piece_of_a_call_is_markup(said: str) -> None:
    assert holds_markup(said)


def test_the_name_of_a_tool_is_markup_though_it_is_a_word() -> None:
    assert holds_markup("I will lookup that.", ["lookup"])
    assert not holds_markup("I will look that up.", ["lookup"])


@pytest.mark.parametrize(
    "said",
    ["It's $4.50, and that's 20 % off: fine?", 'We call it "the usual".', "Noah's, at 9:30; ok!"],
)
def test_what_people_say_is_no_markup(said: str) -> None:
    assert not holds_markup(said)


@pytest.mark.parametrize(
    "said",
    ["cash " * 6, "Yes. " + "one latte, " * 4, "we have the apple pie and " * 4],
)
def test_the_same_again_and_again_is_stuck(said: str) -> None:
    assert is_stuck(said)


@pytest.mark.parametrize(
    "said",
    ["no, no, no, no, no", "bye bye, bye bye", "five five five five five five five", "55 55 55 55"],
)
def test_what_is_said_on_purpose_is_not_stuck(said: str) -> None:
    assert not is_stuck(said)


def test_replies_that_the_server_ended_are_counted_off_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"WARNING {BROKE_OFF}: the model wrote markup\nINFO call\nWARNING {BROKE_OFF}\n")
    assert n_broke_off(log) == 2
    source = Path(__file__).parents[3] / "voiceloop" / "reply" / "generation.py"
    assert f'log.warning("{BROKE_OFF}' in source.read_text(encoding="utf-8")
