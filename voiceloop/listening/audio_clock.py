"""The audio clock of one caller: samples received, and when each of them came in.

Owns the position, counted in samples at the recognizer's rate, and the arrival times of the last
chunks by the wall's clock, which is passed in. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from audio.frames import FRAME_MS, RECOGNIZER_HZ

# Ten seconds of frames of 20 ms: longer than the longest wait for the end of a turn, of 8 s.
N_CHUNKS = 10_000 // FRAME_MS
STALL_MS = 300.0  # without audio: the client has stopped sending, the wall's clock takes over


class AudioClock:
    """Milliseconds of audio since the call began. clock: seconds of the wall's clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._chunks: deque[tuple[int, float]] = deque(maxlen=N_CHUNKS)
        self.position = 0  # samples received

    def advance(self, n_samples: int) -> bool:
        """The next chunk of audio has come in now. Whether the client had stopped sending."""
        had_stalled = self.stalled_ms >= STALL_MS
        self.position += n_samples
        self._chunks.append((self.position, self._clock()))
        return had_stalled

    @property
    def now_ms(self) -> float:
        return 1000.0 * self.position / RECOGNIZER_HZ

    @property
    def stalled_ms(self) -> float:
        """How long ago the last chunk came in; 0 before the first."""
        return 1000.0 * (self._clock() - self._chunks[-1][1]) if self._chunks else 0.0

    def arrival_s(self, at_ms: float) -> float:
        """When the sample at this point of the audio clock came in; now, where it has not yet."""
        position = at_ms * RECOGNIZER_HZ / 1000.0
        found_s = self._clock()
        for end, arrival_s in reversed(self._chunks):
            if end < position:
                break
            found_s = arrival_s
        return found_s
