"""The sentences said of passages that were found, where a small model would garble them.

Owns which sentence of them, or which column of a row, answers a question, and how far it is read
on; and where none does, that the agent says so. English. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from voiceloop.knowledge.passages import SENTENCE_END, Passage
from voiceloop.knowledge.sounds import sound_key
from voiceloop.knowledge.told import (
    ASIDE,
    DONT_KNOW,
    DOUBTS,
    OF_KINDS,
    OFFERS,
    PRICE,
    STEMS_OF_COST,
    TALK,
    asks_price,
    is_unknown,
    kind_of,
    question_words,
    quoted,
    told_by,
)
from voiceloop.knowledge.words import EMPTY, stem, stems_of, words_of

# Of the words that a question turns on, so many stand in the sentence or in the heading over it.
# Chosen: "how long can I keep a film" has a film's row, and a third is as often another subject.
LEAST_NEAR = 0.5
MAX_WORDS = 40  # some 15 s of speech
LEAST_LETTERS = 5  # of a word that is known by its sound: shorter ones sound like too many
# A sentence with one of these says more of the one before it.
LEANS = frozenset("it its they them their those these there".split())
ACTS = frozenset("book order appointment call name".split())  # asked how, or whether the agent will
PLAIN = frozenset("what is are it be can a the at of".split())  # of a column's name
SOLD = frozenset(map(stem, ("sell", "sells", "offer")))  # what has a price is
MONEY = re.compile(
    r"[$\u00a3\u20ac]|\b(?:dollars?|cents?|euros?|pounds?|pence|free|charge|cost)\b", re.I
)
COLUMN = re.compile(r"\.\s+(?=[^:.]+: )")


@dataclass(frozen=True, slots=True)
class Sentence:
    """own, over: the marks of its words, and of the heading that it stands under. is_first: there.

    behind: the sentences of its passage that follow it.
    """

    text: str
    own: frozenset[str]
    over: frozenset[str]
    heading: str
    is_first: bool
    behind: tuple[str, ...]


def said_of(
    question: str, found: Sequence[Passage], instructions: str, other: str = ""
) -> str | None:
    """Return what is said to a question for which these passages were found, the best first; None
    where that is the model's. other: as of `quoted`.
    """
    words = question_words(question)
    wanted = frozenset(stem(word) for word in words if word not in EMPTY)
    if not wanted:
        return None
    of_tools = stems_of(other)
    rows = [row for passage in found if (row := _columns(passage))]
    texts = [passage for passage in found if not _columns(passage)]
    is_table = bool(found) and found[0] not in texts
    said = _of_row(words, rows) if is_table else None
    said = said or _of_texts(question, words, texts) or _of_row(words, rows)
    if said is not None:
        # A tool is for the question where its own words are as many of it as the sentence's.
        is_of_tools = 0 < len(wanted & of_tools) >= len(wanted & stems_of(said))
        return None if is_of_tools else " ".join(said.split()[:MAX_WORDS])
    is_nowhere = is_unknown(words, wanted, told_by(instructions).known | of_tools)
    return DONT_KNOW if is_nowhere else None


# --- sentences ---


def _of_texts(question: str, words: list[str], found: Sequence[Passage]) -> str | None:
    headed, near = _nearest(words, found)
    if headed is not None:
        return _read_on(headed)
    whole = " ".join(_ended(passage.text) for passage in found)
    said = quoted(question, whole, knows_all=False)
    is_plain = said is None or said in whole  # and not made of hours, or of a list of prices
    return _read_on(near) if near is not None and is_plain else said


def _nearest(words: list[str], found: Sequence[Passage]) -> tuple[Sentence | None, Sentence | None]:
    """Return the sentence with most of what the question turns on: under a heading that is the
    question, where there is one, and of all.
    """
    telling = [word for word in words if word not in EMPTY | OF_KINDS | OFFERS]
    wanted = [_marks(word) for word in telling if word not in ASIDE] or list(map(_marks, telling))
    is_doubt = words[0] in DOUBTS
    if not wanted or set(words) & (TALK if is_doubt else TALK - ACTS):
        return None, None
    every = [one for passage in found for one in _sentences_of(passage)]
    near = []
    for one in every:
        hits = [bool(marks & (one.own | one.over)) for marks in wanted]
        is_there = any(marks & one.own for marks in wanted) or _is_headed(words, one) > 0
        if is_there and sum(hits) >= LEAST_NEAR * len(wanted) and _is_of_kind(words, one):
            near.append(one)
    # The rarer a word among these sentences, the more it tells.
    n_with = [sum(bool(marks & (one.own | one.over)) for one in every) for marks in wanted]

    def telling_of(one: Sentence) -> tuple[float, bool, bool, int]:
        """How much; of those alike the one with a price, that stands alone, and that has what the
        question names first.
        """
        told = sum(
            1 / (1 + n) for marks, n in zip(wanted, n_with, strict=True)
            if marks & (one.own | one.over)
        )  # fmt: skip
        first = next((n for n, marks in enumerate(wanted) if marks & one.own), len(wanted))
        has_price = asks_price(words) and MONEY.search(one.text) is not None
        leans = bool(LEANS & set(words_of(one.text)[:1]))
        return round(told, 6), has_price, not leans, -first

    most = max((telling_of(one)[0] for one in near), default=0.0)
    best = [one for one in near if telling_of(one)[0] == most]
    headed = max(best, key=lambda one: _is_headed(words, one), default=None)
    if headed is not None and not _is_headed(words, headed):
        headed = None
    return headed, max(best, key=telling_of, default=None)


def _is_of_kind(words: list[str], one: Sentence) -> bool:
    """Whether it has what such a question asks for: a time, a price, that a thing is sold."""
    kind = kind_of(words[:3])
    if kind is not None and kind.search(one.text) is None:
        return False
    if asks_price(words) and MONEY.search(_read_on(one)) is None:
        return False
    told = " ".join((one.text, *one.behind[:1]))
    verbs = {stem(word) for word in words if word in OFFERS} - {"hav", "got", "giv"}
    has_price = PRICE.search(told) is not None
    return all(
        (has_price and verb in SOLD) or any(mark.startswith(verb) for mark in one.own)
        for verb in verbs
    )


def _is_headed(words: list[str], one: Sentence) -> int:
    """How much its heading is the question, nearly: then what stands first there is the answer."""
    headed = [stem(word) for word in words_of(one.heading)]
    n_asked = len(set(headed) & set(map(stem, words)))
    return n_asked if one.is_first and 1 < len(headed) <= 2 * n_asked else 0


def _sentences_of(passage: Passage) -> list[Sentence]:
    over, texts = _all_marks(passage.heading), SENTENCE_END.split(passage.text)
    heading = passage.heading.rpartition(" > ")[2]
    return [
        Sentence(text, _all_marks(text), over, heading, number == 1, tuple(texts[number:]))
        for number, text in enumerate(texts, 1)
    ]


def _read_on(sentence: Sentence) -> str:
    said = sentence.text.split()[:MAX_WORDS]
    for text in sentence.behind:
        if not LEANS & set(words_of(text)) or len(said) + len(text.split()) > MAX_WORDS:
            break
        said += text.split()
    return " ".join(said)


def _ended(text: str) -> str:
    return text if text.rstrip()[-1:] in (".", "!", "?") else f"{text}."


def _all_marks(text: str) -> frozenset[str]:
    return frozenset(mark for word in words_of(text) for mark in _marks(word))


def _marks(word: str) -> frozenset[str]:
    """Return what a word is known by: its stem, and how it sounds, for it may have been
    misheard.
    """
    by_sound = {f"~{sound_key(word)}"} if len(word) >= LEAST_LETTERS else set()
    return frozenset({stem(word), *by_sound})


# --- rows ---


def _columns(passage: Passage) -> tuple[tuple[str, str], ...]:
    """Names and values of a row of a table; none of any other passage."""
    if not passage.path.endswith(".csv"):
        return ()
    pairs = [piece.partition(": ") for piece in COLUMN.split(passage.text.rstrip("."))]
    return tuple((name, value) for name, colon, value in pairs if colon)


def _of_row(words: list[str], rows: Sequence[tuple[tuple[str, str], ...]]) -> str | None:
    """The column of the row of which the question is; a row is of what stands in it first."""
    asked = frozenset(map(stem, words))

    def near(row: tuple[tuple[str, str], ...]) -> float:
        of = stems_of(row[0][1])
        return len(of & asked) / len(of) if of else 0.0

    best = max(rows, key=near, default=None)
    if best is None or near(best) < LEAST_NEAR:
        return None
    subject, left = best[0][1], asked - stems_of(best[0][1])

    def fit(column: tuple[str, str]) -> float:
        named = [stem(word) for word in words_of(column[0]) if word not in PLAIN]
        content = stems_of(column[0]) & left
        is_price = asks_price(words) and bool(STEMS_OF_COST & set(named))
        share = len(left & set(named)) / len(named) if named else 0.0
        return 2.0 * (len(content) + is_price) + share

    told = best[1:]
    if told and fit(column := max(told, key=fit)) >= LEAST_NEAR:
        told = (column,)
    said = ", ".join(f"{name}: {value}" for name, value in told)
    return f"{subject[0].upper()}{subject[1:]}, {said}." if told else None
