"""Digits and letters as they are dictated, at the end of what was said so far. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

FILLERS = frozenset("uh um er erm hmm hm ah eh well uhm mm".split())
UNITS = {
    word: str(n)
    for n, word in enumerate("zero one two three four five six seven eight nine".split())
} | {"oh": "0", "o": "0", "nought": "0"}
# Two digits each; those of ten a unit may follow that takes the place of their zero.
TEENS = dict(
    zip(
        "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split(),
        range(10, 20),
        strict=True,
    )
)
TENS = dict(
    zip(
        "twenty thirty forty fifty sixty seventy eighty ninety".split(),
        range(20, 100, 10),
        strict=True,
    )
)
REPEATS = {"double": 2, "triple": 3}
MAGNITUDES = {"hundred": 2, "thousand": 3}  # zeros that they add
BEFORE_A_ONE = frozenset("have got that this which another the".split())  # no digit there
# Said between groups of digits or letters.
JOINTS = FILLERS | frozenset("and then dash hyphen space area code plus".split())
LEAST_RUN = 3  # digits or letters in a row that are dictated without being asked for


@dataclass(frozen=True, slots=True)
class DigitRun:
    """The digits that the words end in. n_words: that it takes; is_open: one more must follow."""

    n_digits: int = 0
    n_words: int = 0
    is_open: bool = False


def digits_at_end(words: Sequence[str]) -> DigitRun:
    """Digits at the end of the words, in any grouping, as words or figures.

    "double five" and "fifty-five" are two, "eight hundred" three; fillers between them are none.
    """
    start = len(words)
    while start and (is_number(words[start - 1]) or words[start - 1] in JOINTS):
        start -= 1
    while start < len(words) and words[start] in JOINTS:
        start += 1
    n_digits, times, after_ten = 0, 1, False
    for word in words[start:]:
        if word in REPEATS:
            times = REPEATS[word]
            continue
        if word in JOINTS:
            after_ten = False
            continue
        n_digits += 0 if after_ten and word in UNITS else times * _n_digits(word)
        times, after_ten = 1, word in TENS
    return DigitRun(n_digits, len(words) - start, is_open=times > 1)


def is_number(word: str) -> bool:
    is_word = word in UNITS or word in TEENS or word in TENS
    return is_word or word in REPEATS or word in MAGNITUDES or _n_figures(word) > 0


def _n_figures(word: str) -> int:
    """Digits of a word of figures, as "555-0142"; 0 for any other."""
    return len(re.sub(r"\D", "", word)) if re.fullmatch(r"[+(]?\d[\d\-().,/]*", word) else 0


def _n_digits(word: str) -> int:
    if word in UNITS:
        return 1
    if word in TEENS or word in TENS:
        return 2
    return MAGNITUDES.get(word) or _n_figures(word)


def letters_at_end(words: Sequence[str]) -> str:
    """The letters that the words end in, as "ana" of "it's ana a n a"."""
    start = len(words)
    while start and ((len(words[start - 1]) == 1) or words[start - 1] in JOINTS | set(REPEATS)):
        start -= 1
    letters, times = "", 1
    for word in words[start:]:
        if word in REPEATS:
            times = REPEATS[word]
        elif len(word) == 1:
            letters, times = letters + times * word, 1
    return letters
