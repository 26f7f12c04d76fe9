"""The caller's audio as the models take it, at 16 kHz, and the clock that it keeps.

Owns what one stream needs from frame to frame to be decoded, resampled and, where that is asked,
cleaned of noise; and the audio clock: the samples received, and the arrival times of the last
chunks by the wall's clock, which is passed in. Pure but for the noise reduction's library.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from audio.codec import decode
from audio.frames import FRAME_MS, RECOGNIZER_HZ, Samples
from audio.noise_reduction import NoiseReduction
from audio.resample import Resampler
from voiceloop.realtime.settings import AudioFormat, NoiseField


class CallerAudio:
    """One caller's line. Noise reduction hears 6 ms late and withholds less than 10 ms more."""

    def __init__(self, audio_format: AudioFormat, noise_field: NoiseField | None) -> None:
        self._noise: NoiseReduction | None = None
        self._rest: Samples = np.zeros(0, np.int16)
        self._set_format(audio_format)
        self._set_noise(noise_field)

    def configure(self, audio_format: AudioFormat, noise_field: NoiseField | None) -> None:
        """Set the format of what is pushed from now on, and how it is cleaned."""
        if audio_format != self._format:
            self._set_format(audio_format)
        if noise_field != (self._noise.field if self._noise is not None else None):
            self._set_noise(noise_field)

    def push(self, data: bytes) -> Samples:
        """Return what these bytes, whole samples in the input's format, complete: int16 [n] at 16
        kHz.
        """
        samples = self._resampler.push(decode(data, self._format.encoding))
        if self._noise is not None:
            samples = self._noise.push(samples)
        if len(self._rest):
            samples, self._rest = np.concatenate((self._rest, samples)), self._rest[:0]
        return samples

    def _set_format(self, audio_format: AudioFormat) -> None:
        self._format = audio_format
        self._resampler = Resampler(audio_format.rate, RECOGNIZER_HZ)

    def _set_noise(self, noise_field: NoiseField | None) -> None:
        if self._noise is not None:
            self._rest = np.concatenate((self._rest, self._noise.flush()))
        self._noise = NoiseReduction(noise_field) if noise_field is not None else None


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
        """Return when the sample at this point of the audio clock came in; now, where it has not
        yet.
        """
        position = at_ms * RECOGNIZER_HZ / 1000.0
        found_s = self._clock()
        for end, arrival_s in reversed(self._chunks):
            if end < position:
                break
            found_s = arrival_s
        return found_s
