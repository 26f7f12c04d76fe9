"""The text of a reply on its way through the voice: what was written, and what was said of it.

Owns the count of characters fed to the voice and when, so that the transcript on the wire keeps
step with the sound and the waterfall knows when the first clause was complete. Pure.
"""

from __future__ import annotations

ECHO_CHARACTERS = 80  # about five seconds of speech


class SpokenText:
    def __init__(self) -> None:
        self._text = ""
        self._fed: list[tuple[int, float]] = []  # characters in all, at
        self._n_taken = 0

    def add(self, text: str, at_s: float) -> None:
        self._text += text
        self._fed.append((len(self._text), at_s))

    @property
    def whole(self) -> str:
        """All of it so far."""
        return self._text

    def cut(self, n_chars: int) -> None:
        """The rest was not meant so."""
        self._text = self._text[:n_chars]
        self._fed = [(min(count, n_chars), at_s) for count, at_s in self._fed if count > 0]

    @property
    def said_lately(self) -> str:
        """The end of what was said: the echo of it may be heard now."""
        return self._text[: self._n_taken][-ECHO_CHARACTERS:]

    def take(self, n_chars: int) -> str:
        """What has not been taken of the first n_chars characters."""
        taken = self._text[self._n_taken : n_chars]
        self._n_taken = max(self._n_taken, min(n_chars, len(self._text)))
        return taken

    def take_rest(self) -> str:
        return self.take(len(self._text))

    def take_back(self, n_chars: int) -> int:
        """Only so much of it was said; returns where the next word begins."""
        while self._text[n_chars : n_chars + 1].isspace():
            n_chars += 1
        self._n_taken = n_chars
        return n_chars

    def fed_at_s(self, n_chars: int) -> float:
        """When the voice had the first n_chars characters (at least the first piece)."""
        for count, at_s in self._fed:
            if count >= max(n_chars, 1):
                return at_s
        return self._fed[-1][1] if self._fed else 0.0
