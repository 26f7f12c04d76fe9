"""The melody of the voice: where does the pitch of the last syllable lie within the turn?

Owns the pitch track of the open turn. A speaker who has finished mostly ends low in the voice; one
who goes on keeps it up. The slope within the last syllable says nothing of it here (see the
benchmarks' log), its height against the rest of the turn does. Pure; samples are mono int16 at
16 kHz; 0.1 ms of computing for each 32 ms of sound.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from audio.frames import RECOGNIZER_HZ

HZ = RECOGNIZER_HZ // 2  # every other sample: the pitch of speech lies below 400 Hz
LOW_HZ, HIGH_HZ = 60, 400
FRAME, HOP = 320, 128  # samples: 40 ms hold two periods of the lowest voice; every 16 ms
SPECTRUM = 512  # >= FRAME and the longest lag
VOICED = 0.55  # autocorrelation at the best lag; breath and hiss lie below
# A lag twice the period fits as well: the shortest lag that fits nearly as well as the best wins.
NEARLY = 0.88
BATCH_FRAMES = 4  # at once: one takes nearly as long
TRACK_FRAMES = 250  # 4 s
WITHIN_FRAMES = 25  # 400 ms: a tail without voice for longer says nothing
TAIL_FRAMES = 5  # 80 ms of voice
LEAST_TAIL_FRAMES = 3
LEAST_FRAMES = 10

_LAGS = slice(HZ // HIGH_HZ, HZ // LOW_HZ + 1)
_WINDOW = np.hanning(FRAME)
_BIAS = np.fft.irfft(np.abs(np.fft.rfft(_WINDOW, SPECTRUM)) ** 2)[: HZ // LOW_HZ + 2]


class PitchTrack:
    """Pitch of the last seconds in semitones, a value for every 16 ms; nan where no voice is."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._semitones: deque[float] = deque(maxlen=TRACK_FRAMES)
        self._rest: NDArray[np.float64] = np.zeros(0)

    def feed(self, samples: NDArray[np.int16]) -> None:
        self._rest = np.concatenate((self._rest, samples.astype(np.float64)))
        self._advance(BATCH_FRAMES)

    def _advance(self, at_least: int) -> None:
        """Take up the frames that are whole, if they are so many."""
        n_frames = (len(self._rest) - 2 * (FRAME - HOP)) // (2 * HOP)
        if n_frames >= at_least:
            starts = 2 * HOP * np.arange(n_frames)[:, None]
            frames = self._rest[starts + np.arange(2 * FRAME)]
            self._semitones.extend(_semitones(frames).tolist())
            self._rest = self._rest[2 * HOP * n_frames :]

    def tail_semitones(self) -> float | None:
        """The last 80 ms of voice relative to the median of the turn; None in too little voice."""
        self._advance(1)
        track = np.array(self._semitones)
        voiced = track[~np.isnan(track)]
        recent = track[-WITHIN_FRAMES:]
        tail = recent[~np.isnan(recent)][-TAIL_FRAMES:]
        if len(voiced) < LEAST_FRAMES or len(tail) < LEAST_TAIL_FRAMES:
            return None
        return float(np.median(tail) - np.median(voiced))


def _semitones(frames: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pitch of frames [n, 2 * FRAME] at 16 kHz; [n], nan where no voice is.

    Source: Boersma (1993), autocorrelation divided by that of the window.
    """
    narrow = 0.5 * (frames[:, ::2] + frames[:, 1::2])
    narrow = (narrow - narrow.mean(axis=1, keepdims=True)) * _WINDOW
    spectrum = np.fft.rfft(narrow, SPECTRUM, axis=1)
    power = spectrum.real**2 + spectrum.imag**2
    fits = np.fft.irfft(power, axis=1)[:, : len(_BIAS)] / _BIAS
    fits /= fits[:, :1] + 1e-9
    here = fits[:, _LAGS]
    before = fits[:, _LAGS.start - 1 : _LAGS.stop - 1]
    after = fits[:, _LAGS.start + 1 : _LAGS.stop + 1]
    best = here.max(axis=1, keepdims=True)
    is_peak = (here >= before) & (here >= after) & (here >= NEARLY * best) & (best >= VOICED)
    place = is_peak.argmax(axis=1)
    lag = place + _LAGS.start + _off_centre(before, here, after, place)
    return np.where(is_peak.any(axis=1), 12.0 * np.log2(HZ / lag), np.nan)


def _off_centre(
    before: NDArray[np.float64],
    here: NDArray[np.float64],
    after: NDArray[np.float64],
    place: NDArray[np.intp],
) -> NDArray[np.float64]:
    """Where the parabola through a peak and its neighbours is highest, in lags from the peak."""
    rows = np.arange(len(place))
    left, top, right = before[rows, place], here[rows, place], after[rows, place]
    bend = np.minimum(left - 2.0 * top + right, -1e-9)
    return np.clip(0.5 * (left - right) / bend, -0.5, 0.5)
