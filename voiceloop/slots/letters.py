"""Letters as callers spell them: "B as in Bravo", "double l", "em", or by the alphabet alone. Pure.

Source: the spelling alphabet of the ICAO (Annex 10, volume II, 5.2.1.3).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from voiceloop.slots.numbers import FILLERS, REPEATS, UNITS

ALPHABET = {
    word: word[0]
    for word in (
        "alfa alpha bravo charlie delta echo foxtrot golf hotel india juliett juliet kilo lima "
        "mike november oscar papa quebec romeo sierra tango uniform victor whiskey whisky xray "
        "x-ray yankee zulu"
    ).split()
}
# Names of letters as a recognizer writes them; those that are common words too are left out.
LETTER_NAMES = {
    "bee": "b", "dee": "d", "ef": "f", "eff": "f", "gee": "g", "aitch": "h", "jay": "j",
    "kay": "k", "el": "l", "ell": "l", "em": "m", "en": "n", "pee": "p", "cue": "q", "queue": "q",
    "ess": "s", "tee": "t", "vee": "v", "doubleu": "w", "ex": "x", "zee": "z", "zed": "z",
}  # fmt: skip
# "B as in Bravo", "b for boy", "b like boy": the word behind says the letter again.
EXPLAINS = (("as", "in"), ("is", "in"), ("as",), ("for",), ("like",))
# One letter that is explained is spelled, asked for or not.
EXPLAINED = re.compile(r"\b([a-z]) (?:(?:as|is) in|for) \1\w+|\b[a-z] as in$")
BESIDE = FILLERS | frozenset(
    "and then dash hyphen capital uppercase lowercase small letter".split()
)
LEAST_LETTERS = 2  # one alone is an article, or "I"


def letter_runs(words: Sequence[str], *, with_digits: bool = False) -> list[str]:
    """The runs of letters that are spelled in these words (small letters), in order."""
    parts = [part for word in words for part in _apart(word)]
    return [run for run in _runs(parts, with_digits) if len(run) >= LEAST_LETTERS]


def letters_at_end(words: Sequence[str]) -> str:
    """The letters that the words end in, as "ana" of "it's ana a n a", of "a as in apple n a" and
    of "a n a as in".
    """
    parts = [part for word in words for part in _apart(word) if part != "space"]
    for between in EXPLAINS:
        n = len(parts) - len(between)
        if n > 0 and tuple(parts[n:]) == between and _letter(parts[n - 1]):
            parts = parts[:n]
    letters = _runs(parts)[-1]
    is_word = len(letters) == 1 and not any(part == letters for part in parts)
    return "" if is_word else letters  # "my name is Victor"


def _runs(parts: Sequence[str], with_digits: bool = False) -> list[str]:
    """Letters in a row; "" wherever a word is none, at the end too."""
    runs, run, times, at = [], "", 1, 0
    while at < len(parts):
        word = parts[at]
        if word == "double" and parts[at + 1 : at + 2] in (["u"], ["you"]):
            word, at = "doubleu", at + 1
        letter = _letter(word) or (UNITS.get(word, "") if with_digits else "")
        if with_digits and word.isdecimal():
            letter = word
        if word in REPEATS:
            times = REPEATS[word]
        elif letter:
            run, times = run + times * letter, 1
            at += _n_explaining(parts, at, letter)
        elif word not in BESIDE:
            runs.append(run)
            run, times = "", 1
        at += 1
    runs.append(run)
    return runs


def _apart(word: str) -> list[str]:
    """ "s-m-i-t-h" and "s.m.i.t.h." are five."""
    parts = [part for part in re.split(r"[-.]", word) if part]
    return parts if len(parts) > 1 and all(len(part) == 1 for part in parts) else [word.strip(".")]


def _letter(word: str) -> str:
    if len(word) == 1 and word.isalpha():
        return word
    return LETTER_NAMES.get(word) or ALPHABET.get(word, "")


def _n_explaining(parts: Sequence[str], at: int, letter: str) -> int:
    """How many words behind this letter only explain it."""
    for between in EXPLAINS:
        behind = at + 1 + len(between)
        is_there = tuple(parts[at + 1 : behind]) == between and behind < len(parts)
        # Recognizers misspell a name, so only an article may not be what explains.
        if is_there and len(parts[behind]) > 1 and parts[behind][0] == letter[-1]:
            return len(between) + 1
    is_named = at + 1 < len(parts) and ALPHABET.get(parts[at + 1]) == letter
    return 1 if is_named and len(parts[at]) == 1 else 0
