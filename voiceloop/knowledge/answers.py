"""Answers that an author approved word for word: given where a caller asks exactly for them.

Owns the match. A question matches where it is one of the author's wordings, or of their patterns,
in all its words: never by likeness alone, for "can I" and "can't I" are as like as questions get.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from voiceloop.config_reader import key
from voiceloop.errors import ConfigError
from voiceloop.knowledge.words import words_of

MAX_ANSWERS = 1000
MAX_WORDINGS = 50  # of one answer
MAX_WORDING_WORDS = 40
# In all answers: each is tried at every turn, some 2 us apiece on the event loop.
MAX_PATTERNS = 500
# Said before or after a question without changing it; only whole words, and only at its ends.
COURTESIES = frozenset("please thanks hi hello hey um uh er well so okay ok yes yeah sorry".split())
# What stands for exactly one or for any few words in a wording.
ONE_WORD, FEW_WORDS = "*", "..."
MAX_FEW_WORDS = 6
MAX_FEW = 3  # of these in one wording: each multiplies the ways in which a line can be read by 7


@dataclass(frozen=True, slots=True)
class ApprovedAnswer:
    """One `[[answer]]` of an agent file: wordings of a question, and the answer to them."""

    questions: tuple[str, ...] = key(
        ...,
        "Up to 50 wordings of one question, compared without case, marks, and courtesies at "
        'their ends ("hello", "please"). In a question `*` stands for one word, and `...` for'
        " none to six words.",
    )
    text: str = key(..., "What is said.")


class ApprovedAnswers:
    """All those of an agent.

    Raises:
        ConfigError: an answer or a question without words, more of them than are allowed, or one
            question with two answers: which of them would be given?
    """

    def __init__(self, answers: Iterable[ApprovedAnswer] = ()) -> None:
        self._exact: dict[tuple[str, ...], ApprovedAnswer] = {}
        self._patterns: list[tuple[re.Pattern[str], ApprovedAnswer]] = []
        for number, answer in enumerate(answers):
            if number == MAX_ANSWERS:
                raise ConfigError(f"answer: expected at most {MAX_ANSWERS} answers, found more")
            self._add(answer, f"answer[{number}]")

    def _add(self, answer: ApprovedAnswer, where: str) -> None:
        if not answer.text.strip():
            raise ConfigError(f"{where}.text: expected a text, found nothing")
        if not 1 <= len(answer.questions) <= MAX_WORDINGS:
            found = len(answer.questions)
            wanted = f"1 to {MAX_WORDINGS} wordings"
            raise ConfigError(f"{where}.questions: expected {wanted}, found {found}")
        for index, wording in enumerate(answer.questions):
            self._add_wording(answer, wording, f"{where}.questions[{index}]")

    def _add_wording(self, answer: ApprovedAnswer, wording: str, where: str) -> None:
        parts = wording.split()
        if len(parts) > MAX_WORDING_WORDS:
            most = f"at most {MAX_WORDING_WORDS} words"
            raise ConfigError(f"{where}: expected {most}, found {len(parts)}")
        if not words_of(wording):
            raise ConfigError(f"{where}: expected words, found {wording[:40]!r}")
        if not {ONE_WORD, FEW_WORDS} & set(parts):
            question = _question(wording)
            if self._exact.setdefault(question, answer) is not answer:
                raise ConfigError(f"{where}: expected each question once, found {wording!r} twice")
            return
        if parts.count(FEW_WORDS) > MAX_FEW:
            most = f"at most {MAX_FEW} times {FEW_WORDS}"
            raise ConfigError(f"{where}: expected {most}, found {parts.count(FEW_WORDS)}")
        few = rf"(?:\S+ ){{0,{MAX_FEW_WORDS}}}"
        wild = {ONE_WORD: r"\S+ ", FEW_WORDS: few}
        # Each word ends with a space, so that a part can stand for none of them.
        pattern = "".join(
            wild.get(part) or "".join(f"{re.escape(word)} " for word in words_of(part))
            for part in parts
        )
        if len(self._patterns) == MAX_PATTERNS:
            raise ConfigError(f"{where}: expected at most {MAX_PATTERNS} patterns, found more")
        self._patterns.append((re.compile(pattern), answer))

    def find(self, heard: str) -> ApprovedAnswer | None:
        """The answer to what was heard; an exact wording goes before a pattern, then the first."""
        question = _question(heard)
        if not question or len(question) > MAX_WORDING_WORDS:
            return None
        if (exact := self._exact.get(question)) is not None:
            return exact
        line = "".join(f"{word} " for word in question)
        found = (answer for pattern, answer in self._patterns if pattern.fullmatch(line))
        return next(found, None)


def _question(text: str) -> tuple[str, ...]:
    """The words of a question without the courtesies at its ends; all of them if that is all."""
    words = words_of(text)
    first, last = 0, len(words)
    while first < last and words[first] in COURTESIES:
        first += 1
    while last > first and words[last - 1] in COURTESIES:
        last -= 1
    return tuple(words[first:last] or words)
