"""The hours of a business, read from the sentences of its author: on a day, or at all.

Owns which sentence tells hours, and what it says of one day. English. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from voiceloop.knowledge.words import EMPTY, stem, stems_of, words_of

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
DAY = rf"(?:{'|'.join(DAYS)})"
SPAN = re.compile(
    rf"({DAY})s?(?:\s*(?:to|through|until|-|–)\s*({DAY})s?)?|every day|daily|weekdays|weekends?",
    re.I,
)
NUMBER = r"(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve)"
IN_WORDS = (
    rf"{NUMBER}(?: (?:fifteen|thirty|forty five))? "
    r"(?:in the (?:morning|afternoon|evening)|at night)"
)
TIME = rf"(?:\d{{1,2}}(?::\d\d)?\s?(?:[ap]\.?m\.?)|noon|midnight|half past \w+|{IN_WORDS})"
HOURS = re.compile(
    rf"(?:from )?({TIME})\s?(?:to|until|till|-|–)\s?({TIME})|between {TIME} and {TIME}", re.I
)
ALWAYS = re.compile(r"\b(?:any hour|around the clock|24 hours|day and night)\b", re.I)
CLOSED = re.compile(r"\b(?:closed|rests?|not open|no .{1,12} on)\b", re.I)
CLOSED_BEHIND = re.compile(r"\b(?:closed|rests?|not open)\s*(?:and\b|[.,;]|$)", re.I)  # its day
EXCEPT = re.compile(r"\b(?:except|but not)\b", re.I)  # before a day
DASH = re.compile(r"\s?[-–]\s?")
BEGINS = re.compile("from |between ", re.I)
IS_OPEN = re.compile(r"(?:we(?: a|')re )?open\b", re.I)
OPEN = frozenset("open opens opening close closes closed closing hours".split())
# What a turn about hours may hold besides.
OF_HOURS = OPEN | frozenset(
    "today tomorrow weekend weekends morning evening afternoon night late early business work "
    "works working there usually".split()
)


def tells_hours(sentence: str) -> bool:
    """Whether it says on which days, or at what times, one may come."""
    is_said = tells_open(sentence) or CLOSED.search(sentence) is not None
    return SPAN.search(sentence) is not None and is_said


def tells_open(sentence: str) -> bool:
    found = HOURS.search(sentence) or ALWAYS.search(sentence) or IS_OPEN.match(sentence)
    return found is not None


def opening_hours(words: list[str], sentences: Sequence[str]) -> str | None:
    """Return what a question of these words is told: of a day, or the sentence; None where it asks
    for something else.
    """
    days = [word.removesuffix("'s").rstrip("s") for word in words]
    day = next((one for one in days if one in DAYS), None)
    if "did" in words or "close to" in " ".join(words):  # founded, or near
        return None
    asked = set(words) & OPEN or (day is not None and set(words) & {"work", "there", "come"})
    if not sentences or not asked:
        return None
    left = frozenset(
        stem(word) for word in words
        if word not in EMPTY | OF_HOURS and word.removesuffix("'s").rstrip("s") not in DAYS
    )  # fmt: skip
    verbs = set(words) & {"come", "work"}
    told = max(
        sentences,
        key=lambda one: (
            len(left & stems_of(one)), _nearness(day, one), len(verbs & set(words_of(one)))
        ),
    )  # fmt: skip
    if day is not None and ALWAYS.search(told):
        return told
    if not left <= stems_of(told):
        return None
    if day is not None and _nearness(day, told) < 0 and not tells_open(told):
        return None  # another day is closed
    if day is None:
        return told if HOURS.search(told) or ALWAYS.search(told) else None
    shown, is_doubt = day.capitalize(), words[0] in ("are", "is", "do", "does", "can", "will")
    hours = hours_on(day, told)
    if hours == "" and not is_doubt:
        return None  # asked for a time
    is_so = (hours is None) == bool({"close", "closed"} & set(words))
    lead = ("Yes, " if is_so else "No, ") if is_doubt else ""
    said = f"we're closed on {shown}" if hours is None else f"on {shown} we're open {hours}".strip()
    return f"{lead}{said}." if lead else f"{said[0].upper()}{said[1:]}."


def hours_on(day: str, text: str) -> str | None:
    """Return when it is open on this day, as `from 8 am to 6 pm`; empty where no time is told;
    None: closed, or not named.
    """
    spans = list(SPAN.finditer(text))
    ends = [*(span.start() for span in spans[1:]), len(text)]
    begins = [0, *(span.end() for span in spans[:-1])]
    found: str | None = None
    for index, span in enumerate(spans):
        if day not in _days_of(span):
            continue
        is_timed = HOURS.search(text, span.end(), ends[index]) is not None
        before = text[begins[index] : span.start()]
        follows = index and before.strip() in ("and", "to", ",")
        is_left_out = any(one.search(before) for one in (CLOSED, EXCEPT))
        is_of_last = index and CLOSED_BEHIND.search(before + span[0])
        if is_left_out and not is_of_last or not is_timed and (
            follows and CLOSED.search(text, begins[index - 1], spans[index - 1].start())
        ):  # fmt: skip
            return None
        # Behind the day, else of those that follow in the same list, else before the first.
        hours = HOURS.search(text)
        for behind in (text[spans[at].end() : ends[at]] for at in range(index, len(spans))):
            timed, closed = HOURS.search(behind), CLOSED_BEHIND.search(behind)
            if closed and not (timed and timed.start() < closed.start()):
                return None
            if timed or re.search(TIME, behind, re.I):  # else "until noon" alone
                hours = timed
                break
        found = DASH.sub(" to ", hours[0].rstrip(".")) if hours is not None else ""
        found = f"from {found}" if found[:1].isalnum() and not BEGINS.match(found) else found
    return found


def _nearness(day: str | None, sentence: str) -> int:
    """How much a sentence is of the house on this day; -1 where that is not named.

    "Closed on Sundays" counts more than "open daily", and either more than one that says neither:
    "deliveries come on Tuesday between 6 am and 7 am".
    """
    found = [days for span in SPAN.finditer(sentence) if day in (days := _days_of(span))]
    of_house = len(DAYS) if OPEN & set(words_of(sentence)) else 0
    return max((of_house + len(DAYS) - len(days) for days in found), default=-1)


def _days_of(span: re.Match[str]) -> tuple[str, ...]:
    if span[1] is None:
        kind = span[0].lower().rstrip("s")
        return DAYS[:5] if kind == "weekday" else DAYS[5:] if kind == "weekend" else DAYS
    first = DAYS.index(span[1].lower())
    last = DAYS.index(span[2].lower()) if span[2] else first
    return DAYS[first : last + 1] if first <= last else DAYS[first:] + DAYS[: last + 1]
