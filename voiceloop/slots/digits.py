"""Digits as callers say them: one by one, in groups, doubled, or as figures. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from voiceloop.listening.slots.dictation import (
    BEFORE_A_ONE,
    JOINTS,
    LEAST_RUN,
    MAGNITUDES,
    REPEATS,
    TEENS,
    TENS,
    UNITS,
)

OH = frozenset({"oh", "o"})
PLUS = "plus"
FIGURES = re.compile(r"[+(]?\d[\d\-().,/]*")


def digit_runs(words: Sequence[str]) -> list[str]:
    """The runs of digits in these words (small letters), in order; fillers do not end a run.

    "double five" is 55, "fifty-five" 55, "eight hundred" 800, "oh one" 01; "plus" before a run is
    its "+". A lone "oh", and the "one" of "that one", are no digits.
    """
    runs, run = [], [""]
    parts = [part for word in words for part in _apart(word)]
    for index, word in enumerate(parts):
        is_pronoun = word == "one" and index > 0 and parts[index - 1] in BEFORE_A_ONE
        if word in JOINTS or word in REPEATS:
            run.append(word)
        elif _digits(word) and not is_pronoun:
            run.append(word)
        else:
            runs.append(run)
            run = [""]
    runs.append(run)
    return [read for read in map(_read, runs) if read]


def digits_in(words: Sequence[str], n_digits: int | None = None) -> str:
    """The number that these words give, "" where there is none.

    n_digits: how many it has, where that is known: the newest run of so many, else all runs
    together where they are so many, else the longest run.
    """
    runs = digit_runs(words)
    if not runs:
        return ""
    whole = "".join(runs)
    for run in reversed(runs):
        if n_digits is not None and len(run.lstrip("+")) == n_digits:
            return run
    if n_digits is not None and len(whole.replace("+", "")) == n_digits:
        return whole[0] + whole[1:].replace("+", "")
    # The groups of one number, with words between that are no digits ("then the rest is").
    if n_digits is None and all(len(run) >= LEAST_RUN for run in runs):
        return whole[0] + whole[1:].replace("+", "")
    return max(runs, key=len)


def _apart(word: str) -> Iterator[str]:
    """ "fifty-five" is two words, "555-0142" one."""
    if FIGURES.fullmatch(word):
        yield word
    else:
        yield from filter(None, word.split("-"))


def _digits(word: str) -> str:
    if word in UNITS:
        return UNITS[word]
    if word in TEENS:
        return str(TEENS[word])
    if word in TENS:
        return str(TENS[word])
    if word in MAGNITUDES:
        return "0" * MAGNITUDES[word]
    return re.sub(r"\D", "", word) if FIGURES.fullmatch(word) else ""


def _read(run: Sequence[str]) -> str:
    """One run's digits; its words are digits, joints and repeats only."""
    found, times, after_ten, sign = "", 1, False, ""
    for word in run:
        if word in REPEATS:
            times, after_ten = REPEATS[word], False
        elif word == PLUS and not found:
            sign = "+"
        elif word in JOINTS or not word:
            after_ten = False
        else:
            if word.startswith("+") and not found:
                sign = "+"
            digits = _digits(word)
            takes_zero = after_ten and word in UNITS and word not in OH and digits != "0"
            found = (found[:-1] + digits) if takes_zero else found + times * digits
            times, after_ten = 1, word in TENS
    said = [word for word in run if word and word not in JOINTS]
    return "" if len(said) == 1 and said[0] in OH else sign + found if found else ""
