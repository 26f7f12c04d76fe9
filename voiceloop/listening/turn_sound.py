"""The sound of the caller's open turn, kept for a language model that hears it.

Owns it from the pre-roll on, in pieces that end where the caller pauses: a service that has read
those before the last pause needs only the last one. Only as much is kept as one turn may send.
"""

from __future__ import annotations

from audio.frames import BYTES_PER_SAMPLE, RECOGNIZER_HZ

# Of one turn, the latest of it: 0.96 MB, as base64 1.3 MB in a request. Chosen: the encoders of
# models that hear take 30 s at a time, and the words of a longer turn are there in full.
MOST_BYTES = 30 * RECOGNIZER_HZ * BYTES_PER_SAMPLE


class TurnSound:
    """PCM16 mono 16 kHz. Positions count bytes from the turn's beginning."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._open = bytearray()  # since the last pause
        self._open_from = 0  # where that begins

    def begin(self) -> None:
        """The turn is over, or was none: another follows."""
        self._pieces.clear()
        self._open.clear()
        self._open_from = 0

    def feed(self, samples: bytes) -> None:
        self._open += samples
        n_over = sum(map(len, self._pieces)) + len(self._open) - MOST_BYTES
        if n_over <= 0:
            return
        if self._pieces:
            self._pieces.pop(0)
        else:
            self._open_from += n_over
            del self._open[:n_over]

    def pause(self) -> None:
        """Pause: what follows is another piece."""
        if self._open:
            self._pieces.append(bytes(self._open))
            self._open_from += len(self._open)
            self._open.clear()

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """Return the sound up to the last pause."""
        return tuple(self._pieces)

    @property
    def n_bytes(self) -> int:
        """Return the bytes of the turn so far."""
        return self._open_from + len(self._open)

    def since(self, at: int) -> bytes:
        """Return what lies behind this position, as far as it is kept."""
        if at >= self._open_from:
            return bytes(self._open[at - self._open_from :])
        kept = b"".join((*self._pieces, self._open))
        return kept[max(0, at - (self.n_bytes - len(kept))) :]
