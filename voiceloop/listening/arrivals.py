"""When each sample of the caller came in: the audio clock against the wall's.

Owns the last few chunks and their times. Pure; positions count samples at the recognizer's rate.
"""

from __future__ import annotations

from collections import deque

from audio.frames import RECOGNIZER_HZ

N_CHUNKS = 512  # ten seconds of 20 ms chunks


class Arrivals:
    def __init__(self) -> None:
        self._chunks: deque[tuple[int, float]] = deque(maxlen=N_CHUNKS)

    def add(self, position: int, at_s: float) -> None:
        """All samples up to this position are there."""
        self._chunks.append((position, at_s))

    @property
    def last_s(self) -> float | None:
        return self._chunks[-1][1] if self._chunks else None

    def at_s(self, at_ms: float, default_s: float) -> float:
        """When the sample at this point of the audio clock came in; the default before it has."""
        position = at_ms * RECOGNIZER_HZ / 1000.0
        found_s = default_s
        for end, arrival_s in reversed(self._chunks):
            if end < position:
                break
            found_s = arrival_s
        return found_s
