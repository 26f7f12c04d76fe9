"""Numbers as callers say them: the words for them, and the digits that words give.

Digits come one by one, in groups, doubled, or as figures. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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
# "That one", "I have one": no digit.
BEFORE_A_ONE = frozenset("have got that this which another the".split())
# Words that a recognizer writes where a digit was said, in a number whose other words are digits:
# of 39 people who said one over G.711, and English homophones.
SOUND_ALIKE = {
    "to": "two", "too": "two", "do": "two", "tree": "three", "free": "three", "for": "four",
    "fore": "four", "high": "five", "by": "five", "i've": "five", "hick": "six", "heaven": "seven",
    "ate": "eight", "won": "one",
}  # fmt: skip
# Said between groups of digits or letters.
JOINTS = FILLERS | frozenset("and then dash hyphen space area code plus".split())
ORDINALS = {
    word: number
    for number, word in enumerate(
        "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth "
        "thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth "
        "twentieth".split(),
        1,
    )
} | {"thirtieth": 30}
LEAST_RUN = 3  # digits or letters in a row that are dictated without being asked for
# "One two, no, three": digits behind the first take the place of the last of those before. Behind
# the second they may go on with them as well ("four one five, sorry, five five").
CORRECTS = frozenset("no nope correction".split())
BREAKS_OFF = CORRECTS | frozenset("sorry wait actually oops hang".split())
OH = frozenset({"oh", "o"})
PLUS = "plus"
FIGURES = re.compile(r"[+(]?\d[\d\-().,/]*")


@dataclass(frozen=True, slots=True)
class DigitRun:
    """The digits that the words end in. n_words: that it takes; is_open: one more must follow."""

    n_digits: int = 0
    n_words: int = 0
    is_open: bool = False


def digits_at_end(words: Sequence[str]) -> DigitRun:
    """Digits at the end of the words, in any grouping, as words or figures.

    "double five" and "fifty-five" are two, "eight hundred" three; fillers between them are none.
    Behind a correction as many of those before do not count: "one two three, no, four" are three.
    """
    run = _run_at_end(words)
    before = list(words[: len(words) - run.n_words])
    said: set[str] = set()
    while before and before[-1] in BREAKS_OFF | FILLERS:
        said.add(before.pop())
    first = _run_at_end(before) if said & BREAKS_OFF else DigitRun()
    if first.n_digits < LEAST_RUN:
        return run
    n_words = len(words) - len(before) + first.n_words
    n_digits = max(first.n_digits, run.n_digits)
    if not said & CORRECTS:
        n_digits = first.n_digits + run.n_digits
    return DigitRun(n_digits, n_words, is_open=run.is_open or not run.n_digits)


def _run_at_end(words: Sequence[str]) -> DigitRun:
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
        n_digits += 0 if after_ten and word in UNITS else times * len(_digits(word))
        times, after_ten = 1, word in TENS
    return DigitRun(n_digits, len(words) - start, is_open=times > 1)


def is_number(word: str) -> bool:
    """Whether a word gives digits, or says how often one comes."""
    return word in REPEATS or bool(_digits(word))


def digit_runs(words: Sequence[str]) -> list[str]:
    """The runs of digits in these words (small letters), in order; fillers do not end a run.

    "double five" is 55, "fifty-five" 55, "eight hundred" 800, "oh one" 01; "plus" before a run is
    its "+". A lone "oh", and the "one" of "that one", are no digits. Behind a "no" fewer digits
    take the place of the last: "one two three, no, four" is 124.
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
            run = [word]
    runs.append(run)
    found: list[str] = []
    said: set[str] = set()  # between these digits and those before
    for between, *digits in runs:
        said.add(between)
        if not (read := _read(digits)):
            continue
        is_corrected = bool(said & CORRECTS) and said <= BREAKS_OFF and bool(found)
        if is_corrected and max(LEAST_RUN, len(read) + 1) <= len(found[-1]):
            found[-1] = found[-1][: -len(read)] + read
        else:
            found.append(read)
        said = set()
    return found


def digits_in(words: Sequence[str], n_digits: int | None = None) -> str:
    """The number that these words give, "" where there is none.

    n_digits: how many it has, where that is known: the newest run of so many, else all runs
    together where they are so many, else the one that words which sound like digits complete, else
    the longest run.
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
    alike = digit_runs([SOUND_ALIKE.get(word, word) for word in words])
    if n_digits is not None and [len(run.lstrip("+")) for run in alike] == [n_digits]:
        return alike[0]
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
