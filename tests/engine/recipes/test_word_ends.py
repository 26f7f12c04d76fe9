"""Word ends of caller turns: where they lie, which of them end the turn, and what never comes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import pytest

from engine.recipes.conversations.calls import is_held_out_turn
from engine.recipes.training import word_ends
from engine.recipes.training.corpus import Corpus
from engine.recipes.training.word_ends import (
    LAST_SENTENCES,
    WordEnds,
    conversations,
    encode,
)
from engine.text.text import Text

AGENT = Path(__file__).resolve().parents[3] / "engine" / "embedded" / "agent"
USER = "<|user|>"
MARKS = ".,!?"


@pytest.fixture(scope="module")
def corpus(dialogues: Path) -> Corpus:
    return Corpus(dialogues)


@pytest.fixture(scope="module")
def text() -> Text:
    return Text.read(AGENT)


@pytest.fixture(scope="module")
def drawn(corpus: Corpus, text: Text) -> list[WordEnds]:
    return list(islice(conversations(corpus, text, random.Random(1), 2048), 250))


def roles(text: Text, tokens: list[int]) -> Iterator[tuple[str, bool]]:
    """Of each token: the mark that its turn began with, and whether it is a mark itself."""
    role = ""
    for token in tokens:
        mark = text.special.get(token)
        role = mark if mark is not None else role
        yield role, mark is not None


def caller_turns(text: Text, found: WordEnds) -> list[str]:
    """What the caller says in a conversation."""
    turns = list[list[int]]()
    for token, (role, is_mark) in zip(found.tokens, roles(text, found.tokens), strict=True):
        if role == USER and is_mark:
            turns.append([])
        elif role == USER:
            turns[-1].append(token)
    return [text.decode(turn).strip() for turn in turns]


def heard(text: Text, found: WordEnds) -> list[tuple[str, bool]]:
    """The caller's turn up to each place, in order, and whether it is said to end there."""
    starts = [at for at, token in enumerate(found.tokens) if text.special.get(token) == USER]
    said = []
    for place, is_last in sorted(zip(found.places, found.is_last, strict=True)):
        start = max(at for at in starts if at < place)
        said.append((text.decode(found.tokens[start + 1 : place + 1]).strip(), is_last))
    return said


def test_no_place_lies_outside_a_callers_turn(text: Text, drawn: list[WordEnds]) -> None:
    for found in drawn:
        of = list(roles(text, found.tokens))
        assert [of[place] for place in found.places] == [(USER, False)] * len(found.places)


def test_no_last_word_is_followed_by_a_word(text: Text, drawn: list[WordEnds]) -> None:
    n_last = 0
    for found in drawn:
        for place in (p for p, is_last in zip(found.places, found.is_last, strict=True) if is_last):
            behind = takewhile(lambda t: t not in text.special, found.tokens[place + 1 :])
            assert not text.decode(list(behind)).strip(MARKS)
            n_last += 1
    assert n_last > 400


def test_every_turn_has_its_last_word_but_one_that_is_cut(
    text: Text, drawn: list[WordEnds]
) -> None:
    n_cut = 0
    for found in drawn:
        turns = caller_turns(text, found)
        ends = {said for said, is_last in heard(text, found) if is_last}
        # A conversation ends with the agent, unless it was cut within the caller's turn.
        is_cut = list(roles(text, found.tokens))[-2][0] == USER
        assert set(turns[: -1 if is_cut else None]) <= ends
        if is_cut:
            assert found.style == "written" and turns[-1].endswith(LAST_SENTENCES)
            start = max(at for at, t in enumerate(found.tokens) if text.special.get(t) == USER)
            cut = [last for p, last in zip(found.places, found.is_last, strict=True) if p > start]
            assert cut and not any(cut)
            n_cut += 1
    assert n_cut > 10


def test_words_and_their_marks_are_places_of_their_own(text: Text) -> None:
    messages = [
        {"role": "system", "content": "You say: Two lattes, please."},
        {"role": "assistant", "content": "Two lattes, please."},
        {"role": "user", "content": " Two lattes, please. "},
        {"role": "assistant", "content": "Thanks!"},
        {"role": "user", "content": "Thanks!"},
    ]
    found = encode(text, messages, [], "written", 512)
    assert heard(text, found) == [
        ("Two", False),
        ("Two lattes", False),
        ("Two lattes,", False),
        ("Two lattes, please", True),
        ("Two lattes, please.", True),
        ("Thanks", True),
        ("Thanks!", True),
    ]
    cut = encode(text, messages, [], "written", 512, last_is_cut=True)
    assert [last for _, last in heard(text, cut)] == [False, False, False, True, True, False, False]


@pytest.mark.parametrize("style", ["recognized", "noisy", "written"])
def test_no_turn_of_the_demo_comes_out(
    corpus: Corpus, text: Text, monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    for name in word_ends.STYLES:
        monkeypatch.setitem(word_ends.STYLES, name, int(name == style))
    found = list(islice(conversations(corpus, text, random.Random(2), 2048), 150))
    turns = [turn for one in found for turn in caller_turns(text, one)]
    assert not [turn for turn in turns if is_held_out_turn(turn)]
    # What stood before it is there, and so is a longer turn that begins with the same words.
    plain = [turn.lower() for turn in turns]
    assert any("station" in turn for turn in plain)
    assert style == "noisy" or any("carrot cake" in turn for turn in plain)


def test_a_turn_that_becomes_one_of_the_demos_by_a_cut_does_not_come_out(
    corpus: Corpus, text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(word_ends, "STYLES", {"written": 1})
    monkeypatch.setattr(word_ends, "CUT_SHARE", 1.0)
    cut, kept = word_ends._cut, list[str]()

    def noted(messages: list[dict[str, Any]], rng: random.Random) -> bool:
        was_cut = cut(messages, rng)
        kept.extend(m["content"] for m in messages if m["role"] == "user")
        return was_cut

    monkeypatch.setattr(word_ends, "_cut", noted)
    found = list(islice(conversations(corpus, text, random.Random(3), 2048), 200))
    assert any(map(is_held_out_turn, kept))
    assert not any(is_held_out_turn(turn) for one in found for turn in caller_turns(text, one))
