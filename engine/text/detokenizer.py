"""Owns the way from sampled tokens back to text, one token at a time.

`Detokenizer` holds back bytes that are no whole character yet; `StopStrings` holds back text that
may turn out to be the start of a stop string. Neither ever takes back what it gave.
"""

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
# A character has at most 4 bytes, so a longer run without a whole one is not UTF-8 and goes out.
MAX_PENDING_TOKENS = 8


class Decoder(Protocol):
    """The part of a `text.Text` that is needed here. special: texts of special tokens by id."""

    special: dict[int, str]

    def decode(self, tokens: Sequence[int]) -> str: ...


class Detokenizer:
    """Incremental decoding; its pieces joined are the decoding of all tokens at once."""

    def __init__(self, text: Decoder, shown: frozenset[int] = frozenset()) -> None:
        """shown: special tokens whose text is output all the same (tool call markers)."""
        self._text, self._shown = text, shown
        # The tokens of the last piece, decoded again before new ones: decoders treat the start of
        # a text differently. They begin and end with whole characters.
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []

    def feed(self, token: int) -> str:
        """The text this token completes, possibly none."""
        if token in self._text.special:
            flushed = self.flush()
            self._context, self._context_text = [], ""
            return flushed + (self._text.special[token] if token in self._shown else "")
        self._pending.append(token)
        decoded = self._text.decode(self._context + self._pending)
        piece = decoded[len(self._context_text) :]
        if not piece.endswith(REPLACEMENT):
            self._context, self._pending = self._pending, []
            self._context_text = self._text.decode(self._context)
            return piece
        return self.flush() if len(self._pending) == MAX_PENDING_TOKENS else ""

    def flush(self) -> str:
        """Return the text that is still held back."""
        if not self._pending:
            return ""
        piece = self._text.decode(self._context + self._pending)[len(self._context_text) :]
        # No whole character ends here, so these tokens are no context for what follows.
        self._context, self._context_text, self._pending = [], "", []
        return piece


class StopStrings:
    """Cuts a stream of text before the first stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    def feed(self, piece: str) -> str:
        """Text that is surely part of the reply; sets `stopped` at a stop string."""
        if self.stopped or not self._stops:
            return "" if self.stopped else piece
        text = self._held + piece
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.stopped, self._held = True, ""
            return text[: min(places)]
        n_held = max(suffix_that_starts(text, stop) for stop in self._stops)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def suffix_that_starts(text: str, marker: str) -> int:
    """Length of the longest end of `text` that is a beginning, not the whole, of `marker`."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[len(text) - length :]):
            return length
    return 0
