"""Answers to sensitive questions: kept here alone, and told by a mark everywhere else.

Owns the values of one call. Transcripts, events, logs and the model have the mark; the slots' form
and the tools that take a parameter from the slot ask here for what it stands for. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection

MARK = re.compile(r"\[[A-Za-z][A-Za-z0-9_]* [a-z]+\]")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Secrets:
    """The sensitive values of one call. A call that was resumed elsewhere has none: its caller is
    asked anew.
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._marks: dict[tuple[str, str], str] = {}

    def hide(self, name: str, value: str) -> str:
        """The mark of this answer to the slot of this name; it has no digit of its own."""
        if (mark := self._marks.get((name, value))) is None:
            n, letters = len(self._marks), ""
            while not letters or n:
                n, rest = divmod(n, len(LETTERS))
                letters += LETTERS[rest]
            mark = self._marks[name, value] = f"[{name} {letters}]"
            self._values[mark] = value
        return mark

    def reveal(self, text: str, names: Collection[str]) -> str:
        """The text with the answers to these slots in the places of their marks."""
        if not self._values:
            return text

        def told(found: re.Match[str]) -> str:
            is_theirs = found[0][1:].partition(" ")[0] in names
            return self._values.get(found[0], found[0]) if is_theirs else found[0]

        return MARK.sub(told, text)

    def reveal_in(self, arguments: str, names: Collection[str]) -> str:
        """A call's arguments (JSON) with the answers in these parameters, and in no others."""
        if not self._values or not names:
            return arguments
        given = json.loads(arguments)
        told = {name: self._values.get(given[name]) for name in names if name in given}
        known = {name: value for name, value in told.items() if value is not None}
        return json.dumps(given | known, ensure_ascii=False)
