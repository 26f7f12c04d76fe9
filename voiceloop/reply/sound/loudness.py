"""How loud a reply is sent: ducked or not, and the short fades around a pause.

Owns the gain of one reply's samples. Every change of it is spread over a few milliseconds, since a
step in the waveform is heard as a click. Pure.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.int16]

DUCK_GAIN = 0.25  # -12 dB: plainly quieter, still intelligible
GAIN_RAMP_MS = 5  # from one gain to the other: no click, and over within the shortest write (10 ms)
FADE_OUT_MS = 15  # raised cosine: no click, and over before it is heard as a fade
FADE_IN_MS = 5  # raised cosine: only the click has to be avoided
# The same of an early start, at most: it may be taken back, and who goes on has hardly heard it. It
# is over once the turn would have ended without it, mostly after 10 to 60 ms: a longer one takes
# from who has finished what the early start gave. Chosen: at half its length it is 6 dB down.
EARLY_FADE_IN_MS = 100


class Loudness:
    """The gain that `shape` applies: 1, or DUCK_GAIN while ducked."""

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._gain = 1.0  # of the last sample shaped
        self._target_gain = 1.0
        self._n_fade_in = self._n_faded_in = 0  # samples that are to fade in, and that have

    def duck(self) -> None:
        self._target_gain = DUCK_GAIN

    def restore(self) -> None:
        """Back to full loudness."""
        self._target_gain = 1.0

    def start_again(self, *, fade_in_ms: int) -> None:
        """The next samples follow silence."""
        self._gain = 1.0
        self._n_fade_in, self._n_faded_in = self._rate_hz * fade_in_ms // 1000, 0

    def shape(self, samples: Samples) -> Samples:
        """Apply the gain to samples [n], moving to its target at their beginning."""
        n_to_fade = min(len(samples), self._n_fade_in - self._n_faded_in)
        if self._gain == self._target_gain == 1.0 and not n_to_fade:
            return samples
        n_ramp = min(len(samples), self._rate_hz * GAIN_RAMP_MS // 1000)
        gain = np.full(len(samples), self._target_gain, np.float32)
        gain[:n_ramp] = np.linspace(self._gain, self._target_gain, n_ramp, dtype=np.float32)
        self._gain = self._target_gain
        if n_to_fade:
            faded = self._n_faded_in + np.arange(n_to_fade)
            gain[:n_to_fade] *= 0.5 - 0.5 * np.cos(np.pi * faded / self._n_fade_in)
            self._n_faded_in += n_to_fade
        shaped: Samples = np.rint(samples * gain).astype(np.int16)
        return shaped

    def fade_out(self, samples: Samples) -> Samples:
        """Shape samples [n] and fade them to silence; a duck that is due makes it steeper."""
        count = len(samples)
        curve = 0.5 + 0.5 * np.cos(np.pi * np.arange(count) / count)
        faded: Samples = np.rint(self.shape(samples) * curve).astype(np.int16)
        return faded
