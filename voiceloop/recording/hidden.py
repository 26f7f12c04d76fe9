"""The parts of an entry that are left out: words, or only the numbers and addresses in them.

What anybody said is under `WORDY` names, so that it can be left out. Pure.
"""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "[hidden]"
# Of an entry, a turn, a word: what holds words of the call, or what came of them.
WORDY = frozenset(
    ("words", "text", "heard", "said", "arguments", "output", "waiting_line", "event", "value")
)
# Four digits or more, or the words for them; an address for mail.
NUMBER_WORDS = "zero|oh|one|two|three|four|five|six|seven|eight|nine"
FIGURES = re.compile(
    rf"\d(?:[ .-]?\d){{3,}}|\b(?:{NUMBER_WORDS})(?:[ ,.-]+(?:{NUMBER_WORDS})\b){{3,}}|"
    r"[\w.+-]+@[\w-]+\.[\w.]+",
    re.IGNORECASE,
)
# A word that stands apart from its neighbours: a number is in several of them.
FIGURE = re.compile(rf"\W*(?:\d[\d\W]*|(?:{NUMBER_WORDS})\W*)", re.IGNORECASE)
IDS = ("call_id", "item_id", "event_id", "response_id", "previous_item_id")
APART = ("heard_words", "value")  # those that the agent said, and keys of a telephone


def without_words(entry: Any) -> Any:
    """The same without what anybody said."""
    if isinstance(entry, dict):
        return {k: HIDDEN if k in WORDY else without_words(v) for k, v in entry.items()}
    return [without_words(one) for one in entry] if isinstance(entry, list) else entry


def without_figures(entry: Any) -> Any:
    """The same without numbers and addresses in what was said."""
    if isinstance(entry, dict):
        return {
            name: value
            if name in IDS
            else _each_hidden(value)
            if name in APART
            else without_figures(value)
            for name, value in entry.items()
        }
    if isinstance(entry, list):
        return [without_figures(one) for one in entry]
    return FIGURES.sub(HIDDEN, entry) if isinstance(entry, str) else entry


def _each_hidden(entry: Any) -> Any:
    if isinstance(entry, list):
        return [_each_hidden(one) for one in entry]
    if isinstance(entry, dict):
        return entry | {"text": _each_hidden(entry.get("text", ""))}
    is_figure = isinstance(entry, str) and (FIGURE.fullmatch(entry) or FIGURES.search(entry))
    return HIDDEN if is_figure else entry
