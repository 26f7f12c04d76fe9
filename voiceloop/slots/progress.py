"""How far an answer has come by its words: more must follow, it may be over, it is whole.

Owns how the words of each kind end. Dictation that nobody asked for is known by its words. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from voiceloop.slots.dates import CENTURIES, MONTHS, date_in
from voiceloop.slots.email import EMAIL_AT, EMAIL_SIGNS, NO_HOST, signs_of
from voiceloop.slots.letters import EXPLAINED, letters_at_end
from voiceloop.slots.numbers import (
    BEFORE_A_ONE,
    BREAKS_OFF,
    FILLERS,
    JOINTS,
    LEAST_RUN,
    TEENS,
    TENS,
    UNITS,
    DigitRun,
    digits_at_end,
    is_number,
)
from voiceloop.slots.question import DICTATED, PHONE_DIGITS, YEAR_DIGITS, Slot, SlotKind

STREET_TYPES = frozenset(
    "street st road rd avenue ave drive dr lane ln way court ct place pl boulevard blvd circle "
    "terrace square parkway highway trail crescent close alley loop row".split()
)
UNIT_WORDS = frozenset(
    "apartment apt unit suite flat number floor building room block house".split()
)
TIME_ENDS = frozenset("am pm a.m p.m o'clock noon midnight morning afternoon evening".split())
MAIL_ENDS = frozenset("com org net edu gov io uk de fr in info eu ca au us me".split())
# What a year is said behind, and its first pair; a number is dictated behind none of these.
BEFORE_A_YEAR = frozenset("in of about around since until till by from year".split())
CENTURY_WORDS = frozenset(TEENS) | {"twenty"}
LOCAL_DIGITS = 7  # of a telephone number without its area code


class Answer(Enum):
    """How far an answer has come by its words."""

    UNDER_WAY = "under_way"
    PLAUSIBLE = "plausible"  # some end here, others go on
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Progress:
    """The value that the caller is giving, asked for or not, and how far it has come."""

    kind: SlotKind
    answer: Answer


def progress(slot: Slot | None, words: Sequence[str]) -> Progress | None:
    """Return what the words (lower case) give and how far it has come; None: nothing that is
    counted.

    Dictation is known by its words too, so it need not have been asked for.
    """
    words = [part for word in words for part in _letters_apart(word)]
    is_corrected = False  # what corrects it is still to come: "one two three, no"
    while words and words[-1] in FILLERS | BREAKS_OFF:
        is_corrected |= words.pop() in BREAKS_OFF
    found = _progress(slot, words)
    if is_corrected and (found is None or found.kind not in DICTATED or not words):
        return None
    return replace(found, answer=Answer.UNDER_WAY) if found is not None and is_corrected else found


def _progress(slot: Slot | None, words: Sequence[str]) -> Progress | None:
    kind = slot.kind if slot is not None else SlotKind.OPEN
    if not words:
        return Progress(kind, Answer.UNDER_WAY) if kind in DICTATED else None
    match kind:
        case SlotKind.NUMBER:
            assert slot is not None
            return _number(words, slot.n_digits, is_asked=True)
        case SlotKind.SPELLING:
            return _spelling(words, is_asked=True)
        case SlotKind.ADDRESS:
            return _address(words, is_asked=True) or _spelling(words, is_asked=False)
        case SlotKind.EMAIL:
            return Progress(kind, _email(signs_of(words)))
        case _:
            found = _answer(slot, words) if slot is not None else None
    if found is not None:
        return found
    if _begins_year(words):
        return Progress(SlotKind.DATE, Answer.UNDER_WAY)
    return (
        _unasked_email(words)
        or _address(words, is_asked=False)
        or _spelling(words, is_asked=False)
        or _number(words, None, is_asked=False)
    )


def _letters_apart(word: str) -> list[str]:
    """ "j-a-n" is how some recognizers write three letters."""
    parts = re.split(r"[-.]", word)
    return parts if len(parts) > 1 and all(len(part) == 1 for part in parts) else [word]


def _number(words: Sequence[str], n_asked: int | None, *, is_asked: bool) -> Progress | None:
    run = digits_at_end(words)
    is_pronoun = words[-1] == "one" and len(words) > 1 and words[-2] in BEFORE_A_ONE
    if run.n_words == 1 and is_pronoun:
        return None  # "I don't have one"
    if not is_asked and (run.n_digits < LEAST_RUN or _is_year(words, run)):
        return None
    if not run.n_digits and not run.is_open:
        return None  # "I don't have it here"
    n_whole = n_asked or PHONE_DIGITS
    if run.is_open:
        answer = Answer.UNDER_WAY
    elif run.n_digits >= n_whole:
        answer = Answer.COMPLETE
    elif n_asked is None and is_asked and run.n_digits >= LEAST_RUN:
        answer = Answer.PLAUSIBLE  # nobody said how many
    else:
        is_local = n_whole == PHONE_DIGITS and run.n_digits == LOCAL_DIGITS
        answer = Answer.PLAUSIBLE if is_local else Answer.UNDER_WAY
    return Progress(SlotKind.NUMBER, answer)


def _is_year(words: Sequence[str], run: DigitRun) -> bool:
    """Whether a sentence ends in a year, "about fourteen fifty five" or "in 1984"."""
    begin = len(words) - run.n_words
    if run.n_digits != YEAR_DIGITS or not begin or words[begin - 1] not in BEFORE_A_YEAR:
        return False
    first, second = (*words[begin : begin + 2], "")[:2]
    if first in CENTURY_WORDS:
        return second not in UNITS
    return re.fullmatch(r"1\d{3}|20\d\d", first) is not None


def _spelling(words: Sequence[str], *, is_asked: bool) -> Progress | None:
    letters = letters_at_end(words)
    is_short = len(letters) < LEAST_RUN and not (letters and EXPLAINED.search(" ".join(words)))
    if not is_asked and (is_short or letters.isdecimal()):
        return None
    said_whole = len(letters) >= 2 and any(word == letters for word in words)
    if said_whole:
        return Progress(SlotKind.SPELLING, Answer.COMPLETE)
    if is_asked and not letters and len(words) > 1:
        return Progress(SlotKind.SPELLING, Answer.PLAUSIBLE)  # said instead
    return Progress(SlotKind.SPELLING, Answer.UNDER_WAY)


def _address(words: Sequence[str], *, is_asked: bool) -> Progress | None:
    """House number, street, its type, and what may follow: a unit, a town, a zip code."""
    types = [index for index, word in enumerate(words) if word in STREET_TYPES]
    numbers = [index for index, word in enumerate(words) if is_number(word)]
    has_street = bool(types) and bool(numbers) and numbers[0] < types[-1] - 1
    if not is_asked and not has_street:
        return None
    if not has_street:
        return Progress(SlotKind.ADDRESS, Answer.UNDER_WAY) if numbers and not types else None
    after = words[types[-1] + 1 :]
    if after and (after[-1] in UNIT_WORDS or after[-1] in JOINTS):
        return Progress(SlotKind.ADDRESS, Answer.UNDER_WAY)
    is_whole = digits_at_end(after).n_digits >= LEAST_RUN
    return Progress(SlotKind.ADDRESS, Answer.COMPLETE if is_whole else Answer.PLAUSIBLE)


def _unasked_email(words: Sequence[str]) -> Progress | None:
    """One that is known by its signs: "meet me at noon" has none of them."""
    said = " ".join(words)
    has_at = EMAIL_AT.search(said) is not None or "underscore" in words
    is_address = has_at and EMAIL_SIGNS.search(said) is not None and not NO_HOST.search(said)
    return Progress(SlotKind.EMAIL, _email(signs_of(words))) if is_address else None


def _email(parts: Sequence[str]) -> Answer:
    """Return the progress of an address by words and signs: behind "@" comes a host, behind each
    dot one more name.
    """
    if "@" not in parts:
        return Answer.UNDER_WAY
    host = parts[len(parts) - list(parts)[::-1].index("@") :]
    if "." not in host:  # recognizers lose a "dot"
        is_whole = len(host) > 1 and host[-1] in MAIL_ENDS
        return Answer.COMPLETE if is_whole else Answer.UNDER_WAY
    end = "".join(host[len(host) - list(host)[::-1].index(".") :])  # "c o m" is one name
    if end in MAIL_ENDS:
        return Answer.COMPLETE
    return Answer.PLAUSIBLE if len(end) > 1 else Answer.UNDER_WAY  # "co" may be that of "co.uk"


def _answer(slot: Slot, words: Sequence[str]) -> Progress | None:
    """Return the progress of kinds that are answered in a word or two; None: these words are no
    such answer.
    """
    last, kind = words[-1], slot.kind
    match kind:
        case SlotKind.DATE:
            answer = _date(words, wants_year=slot.n_digits is not None)
            return Progress(kind, answer) if answer is not None else None
        case SlotKind.TIME:
            if last in TIME_ENDS:
                return Progress(kind, Answer.COMPLETE)
            return Progress(kind, Answer.PLAUSIBLE) if is_number(last) else None
        case SlotKind.QUANTITY:
            has_number = any(map(is_number, words))
            return Progress(kind, Answer.PLAUSIBLE) if has_number else None
        case SlotKind.CHOICE:
            return Progress(kind, Answer.COMPLETE) if last in slot.options else None
    return None


def _begins_year(words: Sequence[str]) -> bool:
    """ "March third, nineteen ...": more must follow, asked for or not."""
    return words[-1] in CENTURIES and bool(date_in(" ".join(words[:-1])))


def _date(words: Sequence[str], *, wants_year: bool) -> Answer | None:
    """Day and month in either order, and a year, which a date of birth has."""
    found, last = date_in(" ".join(words)), words[-1]
    if not found:
        return Answer.UNDER_WAY if last in MONTHS or last == "of" else None
    if _begins_year(words):
        return Answer.UNDER_WAY
    if found.startswith("--"):
        return Answer.UNDER_WAY if wants_year else Answer.COMPLETE
    is_open = last in TENS or last in ("thousand", "and")  # "nineteen eighty ..."
    return Answer.PLAUSIBLE if is_open else Answer.COMPLETE
