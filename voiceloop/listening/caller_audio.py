"""The caller's audio as the models take it, at 16 kHz.

Owns what one stream needs from frame to frame to be decoded, resampled and, where that is asked,
cleaned of noise. Pure but for the noise reduction's library.
"""

from __future__ import annotations

import numpy as np

from audio.codec import decode
from audio.frames import RECOGNIZER_HZ, Samples
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
