"""Answers that need no model: which questions get them, and which only look alike."""

from __future__ import annotations

import pytest

from tests.tables import each_row
from voiceloop.errors import ConfigError
from voiceloop.knowledge.answers import MAX_ANSWERS, MAX_WORDINGS, ApprovedAnswer, ApprovedAnswers

OPEN = ApprovedAnswer(("When do you open?", "what are your opening hours"), "At nine.")
PRICE = ApprovedAnswer(("how much is the * bus", "what does the * bus ... cost"), "Two euros.")


def answer_to(heard: str) -> str | None:
    found = ApprovedAnswers((OPEN, PRICE)).find(heard)
    return None if found is None else found.text


@pytest.mark.parametrize(
    "heard, text",
    [
        ("when do you open", "At nine."),
        ("Hello, um, when do you open, please?", "At nine."),
        ("how much is the airport bus", "Two euros."),
        ("what does the night bus cost", "Two euros."),
        ("what does the night bus into town on sundays cost", "Two euros."),
    ],
)
def test_a_question_in_the_authors_words_gets_the_authors_answer(heard: str, text: str) -> None:
    assert answer_to(heard) == text


@each_row(
    "heard",
    [
        "",
        "hello",
        "when do you close",
        "when don't you open",
        "when do you open on sunday",
        "tell me when do you open",
        "do you when open",
        "how much is the bus",
        "how much is the airport bus ticket",
        "what does the night bus one two three four five six seven cost",
    ],
)
def test_a_question_that_only_looks_alike_gets_none(heard: str) -> None:
    assert answer_to(heard) is None


def test_an_exact_wording_goes_before_a_pattern() -> None:
    wide = ApprovedAnswer(("... open ...",), "Ask at the desk.")
    answers = ApprovedAnswers((wide, OPEN))
    assert answers.find("when do you open") is OPEN
    assert answers.find("is the pool open today") is wide


def test_a_pattern_of_many_wildcards_and_a_long_question_take_no_time() -> None:
    answers = ApprovedAnswers((ApprovedAnswer(("... a ... a ... b",), "x"),))
    assert answers.find("a " * 39 + "c") is None
    assert answers.find("a " * 100_000) is None


@each_row(
    "answers, told",
    [
        ((ApprovedAnswer(("when",), " "),), r"answer\[0\].text: expected a text"),
        ((ApprovedAnswer((), "x"),), "expected 1 to 50 wordings, found 0"),
        ((ApprovedAnswer(("a",) * (MAX_WORDINGS + 1), "x"),), "found 51"),
        ((ApprovedAnswer(("... ?",), "x"),), "expected words, found '... \\?'"),
        ((ApprovedAnswer(("a " * 41,), "x"),), "at most 40 words, found 41"),
        ((ApprovedAnswer(("... a ... b ... c ...",), "x"),), "at most 3 times ..., found 4"),
        ((OPEN, ApprovedAnswer(("when do YOU open, please",), "x")), "each question once"),
        ((ApprovedAnswer(("a * b",) * 50, "x"),) * 11, r"answer\[10\].* at most 500 patterns"),
        ((OPEN,) * (MAX_ANSWERS + 1), "at most 1000 answers"),
    ],
)
def test_what_an_author_cannot_mean_is_told_with_its_place(
    answers: tuple[ApprovedAnswer, ...], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        ApprovedAnswers(answers)
