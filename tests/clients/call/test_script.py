"""The bundled call holds what a demo must show, and expected words are judged fairly."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.call.script import load_call, load_utterances, missing_words, words_found
from clients.errors import CallScriptError, RecordingError

SCRIPT = load_call()
VOICES = [voice for cast in SCRIPT.casts.values() for voice in cast]


def test_the_bundled_call_has_its_turns() -> None:
    assert len(SCRIPT.turns) >= 6
    assert any(turn.after == "barge_in" for turn in SCRIPT.turns)
    assert any(len(turn.text.split()) == 1 for turn in SCRIPT.turns)
    assert all(turn.expect for turn in SCRIPT.turns)
    assert any(
        word.isdigit() and len(word) >= 4 for t in SCRIPT.turns for w in t.expect for word in w
    )


@pytest.mark.parametrize("voice", VOICES)
def test_every_voice_hesitates_once_for_600_to_900_ms_and_nowhere_else(voice: str) -> None:
    for utterance in load_utterances(SCRIPT, voice, 16_000):
        lengths = [(end - begin) / 16.0 for begin, end in utterance.hesitations]
        if "|" in utterance.turn.text:
            assert len(lengths) == 1
            assert 600 <= lengths[0] <= 900
        else:
            assert lengths == []


def test_an_unknown_voice_or_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CallScriptError, match="expected a voice of heart, deep, bright, slt"):
        load_utterances(SCRIPT, "kal", 16_000)
    with pytest.raises(RecordingError, match="expected a FLAC file"):
        load_utterances(SCRIPT, "slt", 16_000, folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("turns = 3 = 4", "found a mistake"),
        ("title = 'x'", r"expected \[\[turns\]\]"),
        ("[[turns]]\nname = 'a'", "expected 'text' in turn 1"),
        (
            "casts = {flite=['slt']}\n[[turns]]\nname='a'\ntext='a'\nfile='a'\nafter='agent'\n"
            "expect=[]",
            "expected the voices of 'hibari'",
        ),
        (
            "[[turns]]\nname='a'\ntext='a'\nfile='a'\nafter='noon'\nexpect=[]",
            "found 'noon'",
        ),
    ],
)
def test_a_script_that_lacks_something_is_refused(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "call.toml"
    path.write_text(text)
    with pytest.raises(CallScriptError, match=found):
        load_call(path)


def test_an_absent_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CallScriptError, match="found none"):
        load_call(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "answer",
    [
        "555-0142",
        "five five five, zero one four two.",
        "555 oh one 42",
        "Five five five 0142, right?",
    ],
)
def test_digits_match_however_they_are_written(answer: str) -> None:
    assert missing_words((("5550142",),), answer) == []


def test_every_list_needs_one_of_its_words() -> None:
    expect = (("latte",), ("muffin", "cake"))
    assert missing_words(expect, "A latte and two Muffins.") == []
    assert missing_words(expect, "A latte, sure.") == ["muffin/cake"]
    assert words_found(expect, "cake") == ["cake"]
