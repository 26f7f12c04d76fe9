"""Dates as callers say them, as ISO 8601: "the third of May" is --05-03, with a year 2026-05-03.

Without a year nobody knows which one is meant, so none is made up; a weekday, today and tomorrow
stay words. Pure: there is no clock.

Source: ISO 8601:2000, 5.2.1.3 c, as in XML Schema 1.1 part 2, 3.3.12 (gMonthDay).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from voiceloop.slots.numbers import ORDINALS, TEENS, TENS, UNITS

MONTHS = (
    "january february march april may june july august september october november december".split()
)
SHORT_MONTHS = {month[:3]: index for index, month in enumerate(MONTHS, 1)} | {"sept": 9}
DAYS_OF = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
WEEKDAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
RELATIVE = frozenset("today tomorrow tonight".split())
ISO = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b")
FIGURE_DAY = re.compile(r"(\d{1,2})(?:st|nd|rd|th)?")
CENTURIES = {"nineteen": 1900, "twenty": 2000}
FIRST_YEAR, LAST_YEAR = 1900, 2099  # of birthdays and of appointments


def date_in(said: str) -> str:
    """The day that these words name; "" where they name none, or one that does not exist."""
    if (iso := ISO.search(said)) is not None:
        year, month, day = map(int, iso.groups())
        return _iso(year, month, day)
    words = re.sub(r"[^\w\s'-]", " ", said.lower()).replace("-", " ").split()
    for at in [at for at, word in enumerate(words) if _month(word)]:
        month = _month(words[at])
        day, behind = _day_around(words, at)
        if day:
            year = _year(words[behind:])
            return _iso(year, month, day)
    return _weekday(words)


def day_in(said: str) -> int:
    """A day of the month that is said alone, as "no, the fourth"; 0 where there is none."""
    words = re.sub(r"[^\w\s'-]", " ", said.lower()).replace("-", " ").split()
    days = (_day(words, at)[0] for at in range(len(words)) if _is_ordinal(words, at))
    return next(filter(None, days), 0)


def with_day(date: str, day: int) -> str:
    """The same month (and year), another day; "" where that is no date."""
    match date.split("-"):
        case ["", "", month, _]:
            return _iso(0, int(month), day)
        case [year, month, _]:
            return _iso(int(year), int(month), day)
    return ""


def spoken_date(date: str) -> str:
    """As it is said back: "May third, 2026"; a weekday as it is."""
    match date.split("-"):
        case ["", "", month, day]:
            return f"{MONTHS[int(month) - 1].capitalize()} {spoken_day(int(day))}"
        case [year, month, day]:
            return f"{MONTHS[int(month) - 1].capitalize()} {spoken_day(int(day))}, {year}"
    return " ".join(word.capitalize() if word in WEEKDAYS else word for word in date.split())


def spoken_day(day: int) -> str:
    """ "twenty first" of 21."""
    exact = next((word for word, number in ORDINALS.items() if number == day), "")
    tens = "twenty" if day < 30 else "thirty"
    return exact or f"{tens} {next(word for word, n in ORDINALS.items() if n == day % 10)}"


def _month(word: str) -> int:
    if word in MONTHS:
        return MONTHS.index(word) + 1
    return SHORT_MONTHS.get(word, 0) if word != "mar" else 3


def _day_around(words: Sequence[str], at: int) -> tuple[int, int]:
    """The day beside the month at this place, and where the words behind both begin.

    "May third" or "the third of May"; the one before goes first where "of" or an ordinal stands.
    """
    before = at - 1
    while before >= 0 and words[before] in ("of", "in"):
        before -= 1
    for start in (before - 1, before):
        day, behind = _day(words[: before + 1], start)
        if day and behind == before + 1:
            return day, at + 1
    return _day(words, at + 1 + (words[at + 1 : at + 2] == ["the"]))


def _day(words: Sequence[str], at: int) -> tuple[int, int]:
    """The day of the month said from this word on, 0 for none, and where it ends."""
    if not 0 <= at < len(words):
        return 0, at
    word = words[at]
    if (figures := FIGURE_DAY.fullmatch(word)) is not None:
        return int(figures[1]), at + 1
    behind = words[at + 1] if at + 1 < len(words) else ""
    if word in ("twenty", "thirty"):
        unit = ORDINALS.get(behind, 0) or int(UNITS.get(behind, 0))
        is_unit = 0 < unit < 10
        return TENS[word] + (unit if is_unit else 0), at + 1 + is_unit
    if word in ORDINALS:
        return ORDINALS[word], at + 1
    if word in TEENS or (word in UNITS and UNITS[word] != "0"):
        return TEENS.get(word) or int(UNITS[word]), at + 1
    return 0, at


def _is_ordinal(words: Sequence[str], at: int) -> bool:
    word, behind = words[at], words[at + 1] if at + 1 < len(words) else ""
    is_figure = re.fullmatch(r"\d{1,2}(?:st|nd|rd|th)", word) is not None
    if word == "second" and at > 0 and words[at - 1] in ("a", "one", "just"):
        return False  # "wait a second"
    return word in ORDINALS or is_figure or (word in ("twenty", "thirty") and behind in ORDINALS)


def _year(words: Sequence[str]) -> int:
    """The year that these words begin with; 0 for none."""
    words = words[1:] if words[:1] in (["in"], ["of"]) else words
    if words and re.fullmatch(r"(?:19|20)\d\d", words[0]):
        return int(words[0])
    if words[:2] == ["two", "thousand"]:
        return 2000 + _two_digits(words[3:] if words[2:3] == ["and"] else words[2:])
    century = CENTURIES.get(words[0], 0) if words else 0
    within = _two_digits(words[1:]) if century else 0
    return century + within if within else 0


def _two_digits(words: Sequence[str]) -> int:
    """A number below 100 that these words begin with; 0 for none."""
    first, second = (*words[:2], "", "")[:2]
    if first in TENS:
        return TENS[first] + (int(UNITS[second]) if second in UNITS else 0)
    if first in ("oh", "o") and second in UNITS:
        return int(UNITS[second])
    return TEENS.get(first) or int(UNITS.get(first, 0))


def _weekday(words: Sequence[str]) -> str:
    for at, word in enumerate(words):
        if word in WEEKDAYS:
            is_next = at > 0 and words[at - 1] == "next"
            return f"next {word}" if is_next else word
        if word in RELATIVE:
            return word
    return ""


def _iso(year: int, month: int, day: int) -> str:
    """year: 0 for none."""
    is_day = 1 <= month <= 12 and 1 <= day <= DAYS_OF[month - 1]
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not is_day or (year and month == 2 and day == 29 and not is_leap):
        return ""
    if not year:
        return f"--{month:02}-{day:02}"
    return f"{year:04}-{month:02}-{day:02}" if FIRST_YEAR <= year <= LAST_YEAR else ""
