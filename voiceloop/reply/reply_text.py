"""The text of one reply: what is written of it, what of that is certain, and what was said."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

CLAUSE_MARKS = ".,;:?!"
ECHO_CHARACTERS = 80  # about five seconds of speech, at some 16 characters a second


class TextEnd(Enum):
    """The kind of end that the text so far has."""

    NOTHING = "nothing"
    VERSION = "version"  # a later version may go on here
    REPLY = "reply"


class ReplyText:
    """Positions count characters from the beginning of the reply."""

    def __init__(self) -> None:
        self.whole = ""
        self.end = TextEnd.NOTHING
        self.n_confirmed = 0  # of `whole`, what the newest version has written too
        self.n_ahead = 0  # of `whole`, a line that asks to wait for the reply itself
        self._n_said = 0
        self._written: list[tuple[int, float]] = []  # characters in all, at

    # --- written ---

    def begin_version(self) -> None:
        """The text comes anew, from its beginning; perhaps it is another."""
        self.n_confirmed = 0

    def confirm(self, text: str) -> int:
        """Confirm what `text` repeats of the version before; returns how many characters it does.

        text: the next of the newest version.
        """
        known = self.whole[self.n_confirmed :]
        pairs = enumerate(zip(known, text, strict=False))
        n_same = next((i for i, (old, new) in pairs if old != new), min(len(known), len(text)))
        self.n_confirmed += n_same
        return n_same

    def cut_unconfirmed(self) -> None:
        """The newest version goes on otherwise."""
        n_chars = self.n_confirmed
        self.whole, self.end = self.whole[:n_chars], TextEnd.NOTHING
        self._written = [(min(count, n_chars), at_s) for count, at_s in self._written if count > 0]

    def add(self, text: str, at_s: float) -> None:
        """More of the newest version, which no version had before."""
        self.whole += text
        self.end = TextEnd.NOTHING
        self.n_confirmed += len(text)
        self._written.append((len(self.whole), at_s))

    def put_ahead(self, line: str, at_s: float) -> None:
        """Say this before all that is written, of which nothing was said yet."""
        n_line = len(line)
        self.whole = line + self.whole
        self.n_confirmed += n_line
        self.n_ahead = n_line
        behind = ((count + n_line, written_s) for count, written_s in self._written)
        self._written = [(n_line, at_s), *behind]

    @property
    def confirmed(self) -> str:
        return self.whole[: self.n_confirmed]

    @property
    def is_confirmed(self) -> bool:
        """Whether no version before the newest has more."""
        return self.n_confirmed == len(self.whole)

    @property
    def has_words(self) -> bool:
        """Whether the newest version has anything of its own that a voice could say."""
        return any(map(str.isalnum, self.confirmed[self.n_ahead :]))

    def written_at_s(self, n_chars: int) -> float:
        """Return when the first n_chars characters (at least the first piece) were there."""
        for count, at_s in self._written:
            if count >= max(n_chars, 1):
                return at_s
        return self._written[-1][1] if self._written else 0.0

    def owed_since_s(self, n_spoken: int) -> float | None:
        """Return when the first word behind so many characters was written; None where there is
        none.
        """
        behind = enumerate(self.whole[n_spoken:], n_spoken + 1)
        n_chars = next((count for count, mark in behind if mark.isalnum()), None)
        return None if n_chars is None else self.written_at_s(n_chars)

    def behind_marks(self, n_chars: int) -> int:
        """Return where the text goes on behind a word that ends there, and the marks said with
        it.
        """
        while self.whole[n_chars : n_chars + 1] in tuple(CLAUSE_MARKS):
            n_chars += 1
        return n_chars

    def clause_ends(self) -> Iterator[int]:
        """Yield the place behind each mark that a space follows: a number's own ends nothing."""
        for index, mark in enumerate(self.whole):
            if mark in CLAUSE_MARKS and self.whole[index + 1 : index + 2].isspace():
                yield index + 1
        if self.whole[-1:] in (".", "!", "?"):  # the last word may be whole though nothing follows
            yield len(self.whole)

    # --- said ---

    def take(self, n_chars: int) -> str:
        """Return what was not taken yet of the first n_chars characters: it is said now."""
        taken = self.whole[self._n_said : n_chars]
        self._n_said = max(self._n_said, min(n_chars, len(self.whole)))
        return taken

    def take_back(self, n_chars: int) -> int:
        """Only the first n_chars characters were said; returns where the next word begins."""
        while self.whole[n_chars : n_chars + 1].isspace():
            n_chars += 1
        self._n_said = n_chars
        return n_chars

    @property
    def said_lately(self) -> str:
        """The end of what was said: the echo of it may be heard now."""
        return self.whole[: self._n_said][-ECHO_CHARACTERS:]
