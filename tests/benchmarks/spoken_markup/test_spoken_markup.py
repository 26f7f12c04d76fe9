"""What is counted as markup and as stuck, and that every agent is asked the same kind of turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.spoken_markup.__main__ import (
    BROKE_OFF,
    n_broke_off,
)
from benchmarks.spoken_markup.judge import holds_markup

# What the cafe said at commit 9806230, to "how can I pay".
SEEN = 'cash_total", "arguments": {"order": ["baguette", "baguette"]}}</tool_call>'


@pytest.mark.parametrize(
    "said", [SEEN, "It costs </tool", 'name": "x', "Sure [pause]", "`ls`", "a_b", "{", "|"]
)
def test_a_piece_of_a_call_is_markup(said: str) -> None:
    assert holds_markup(said)


@pytest.mark.parametrize(
    "said",
    ["It's $4.50, and that's 20 % off: fine?", 'We call it "the usual".', "Noah's, at 9:30; ok!"],
)
def test_what_people_say_is_no_markup(said: str) -> None:
    assert not holds_markup(said)


def test_replies_that_the_server_ended_are_counted_off_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"WARNING {BROKE_OFF}: the model wrote markup\nINFO call\nWARNING {BROKE_OFF}\n")
    assert n_broke_off(log) == 2
    source = Path(__file__).parents[3] / "voiceloop" / "reply" / "generation.py"
    assert f'log.warning("{BROKE_OFF}' in source.read_text(encoding="utf-8")
