"""The tool that a plain question asks, and for which of the values that the tool knows.

Owns that rule: the question names one value, and all its other words are those of the tool. A small
model takes another tool, or another value; the tool's author has written both down. English. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from voiceloop.knowledge.told import (
    STEMS_OF_COST,
    asks_price,
    question_words,
)
from voiceloop.knowledge.words import EMPTY, stem, stems_of

# Say nothing of the tool, nor of another value.
STEMS_OF_ANY = frozenset(map(stem, "anything something times new another single".split()))


@dataclass(frozen=True, slots=True)
class Lookup:
    """A tool that takes one of these values as its parameter. about: its name and description.

    takes_any: it has an answer for every other value, too.
    """

    tool: str
    parameter: str
    values: tuple[str, ...]
    about: str
    takes_any: bool = False


def asked_of(question: str, lookups: Iterable[Lookup]) -> tuple[Lookup, str] | None:
    """The tool and the value; None where the question asks none of them for sure, or several."""
    words, lookups = question_words(question), tuple(lookups)
    wanted = frozenset(stem(word) for word in words if word not in EMPTY)
    found = [
        (one, value)
        for one in lookups
        if (value := _value_in(wanted, one)) is not None
        and _is_for(words, wanted - stems_of(value) - STEMS_OF_ANY, one)
    ]
    if not found and asks_price(words):
        found = [(one, value) for one in lookups if (value := _other_than(words, wanted, one))]
    return found[0] if len(found) == 1 else None


def _other_than(words: list[str], wanted: frozenset[str], lookup: Lookup) -> str:
    """Return the thing whose price is asked, where it names none of the values, and one word that
    none has; "": it may be one of them.
    """
    known = stems_of(" ".join((*lookup.values, lookup.about))) | STEMS_OF_COST | STEMS_OF_ANY
    is_other = bool(wanted - known) and _value_in(wanted, lookup) is None
    is_asked = lookup.takes_any and is_priced(lookup.about) and wanted & known - STEMS_OF_COST
    thing = (word for word in words if word not in EMPTY and stem(word) not in STEMS_OF_COST)
    return " ".join(thing) if is_other and is_asked else ""


def is_priced(about: str) -> bool:
    """Whether a tool of this description tells what something costs."""
    return bool(stems_of(about) & (STEMS_OF_COST | {"total"})) or "add up" in about.lower()


def _value_in(wanted: frozenset[str], lookup: Lookup) -> str | None:
    """The longest of the values that are named; None where none is, or two are apart."""
    named = [value for value in lookup.values if (of := stems_of(value)) and of <= wanted]
    best = max(named, key=lambda value: len(stems_of(value)), default=None)
    if best is None or any(not stems_of(value) <= stems_of(best) for value in named):
        return None
    return best


def _is_for(words: list[str], left: frozenset[str], lookup: Lookup) -> bool:
    """Whether what the question asks besides the value is what the tool does."""
    about = stems_of(lookup.about)
    if is_priced(lookup.about):
        return asks_price(words) and left <= about | STEMS_OF_COST
    return bool(left) and left <= about
