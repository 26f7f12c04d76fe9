"""One fact of a call: what was said, by whom, and how dear it is.

Owns the wording of facts: quotes of the transcript, so that none is invented, on one line each and
without marks that could end the notes they stand in. Pure.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from enum import IntEnum

MAX_QUOTE_CHARS = 120  # some 20 words: what is said in eight seconds
# What could be read as the end of the notes, of a quote, or as the beginning of others.
MARKS = str.maketrans('[]{}<>"', "()()()'")


class FactKind(IntEnum):
    """The dearest first: what is kept where there is no room for all."""

    NAME = 0  # who calls
    CONTACT = 1  # a number, an e-mail address
    CALL = 2  # what a tool did or found
    CONFIRMED = 3  # what the agent read back and the caller confirmed
    PROMISE = 4  # what the agent said that it will do, or has done
    ANSWER = 5  # what the caller answered to a question that has one answer
    OWN = 6  # what the caller said of themselves, of what is theirs, and what they want
    REST = 7  # other answers, and what else has a number, a date or a name in it


@dataclass(frozen=True, slots=True)
class Fact:
    """``key``: what it is about; of facts of one kind and key the newest counts.

    ``sources``: the items that it was read from.
    """

    kind: FactKind
    text: str
    key: str
    sources: frozenset[str] = frozenset()


def quote(text: str) -> str:
    """The words on one line; a long quote is cut at a word."""
    words = plain(text)
    if len(words) > MAX_QUOTE_CHARS:
        return words[:MAX_QUOTE_CHARS].rpartition(" ")[0] + " ..."
    return words


def plain(text: str) -> str:
    """Return it without line ends, brackets, quotation marks and characters that nobody sees."""
    seen = (
        " " if unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp") else letter
        for letter in text
    )
    return " ".join("".join(seen).translate(MARKS).split())
