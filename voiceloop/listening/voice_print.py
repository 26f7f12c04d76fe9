"""Whose voice a sound is, as a few numbers: what tells the caller from somebody beside them.

Owns what is taken of a sound's frames (the shape of the spectrum, how it moves, the pitch), and the
projection of their statistics in which one person's turns lie close and different people's apart.
The weights were fitted on people of whom each distance was judged by weights that had not heard
them (`voiceloop.listening.recipes.train_voice_print`). Numbers of a print say nothing of the words,
and none leaves the call. Pure; samples are mono int16 at 16 kHz; 0.1 ms for 20 ms of sound.

Source: linear discriminant analysis of cepstral statistics, as i-vectors are compared (N. Dehak and
others, 2011), on the statistics themselves: a turn of a call is short, and its line known.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audio.frames import RECOGNIZER_HZ, Samples

WEIGHTS = Path(__file__).parent / "voice_print.npz"
Print = tuple[float, ...]
Wave = NDArray[np.float64]

FRAME, HOP, SPECTRUM = 400, 160, 512  # samples: 25 ms each 10 ms
LOW_HZ, HIGH_HZ = 100.0, 3700.0  # what a telephone lets through, so that every line is like it
N_BANDS, N_CEPSTRA = 32, 20
SHORTEST_PERIOD, LONGEST_PERIOD = 40, 267  # samples: 400 to 60 Hz
VOICED = 0.45  # autocorrelation at the best period
SOUND_DB = 22.0  # below a sound's loud frames: a vowel or nasal, not the room
USUAL_HZ, LEAST_VOICED = 107.0, 5  # where too few frames have a pitch
LEAST_FRAMES = 30  # 300 ms of voice: a shorter sound has no print
MOST_FRAMES = 400  # the latest 4 s of sound


class VoicePrinter:
    """`feed` a sound, `print` what is known of its voice; `reset` before the next."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._rest: Samples = np.zeros(0, np.int16)
        self._frames: list[Wave] = []  # rows of cepstra, loudness, and pitch as nats; nan: none

    def feed(self, samples: Samples) -> None:
        """The next samples [n]."""
        joined = np.concatenate((self._rest, samples))
        n = 1 + (len(joined) - FRAME) // HOP if len(joined) >= FRAME else 0
        if n:
            windows = np.lib.stride_tricks.sliding_window_view(joined, FRAME)[::HOP][:n]
            self._frames.extend(_rows(windows.astype(np.float64)))
            del self._frames[:-MOST_FRAMES]
        self._rest = joined[n * HOP :]

    def print(self) -> Print | None:
        """Of what sounded so far; None where that is too little."""
        if len(self._frames) < LEAST_FRAMES:
            return None
        rows = np.stack(self._frames)
        loud = rows[:, N_CEPSTRA] > np.quantile(rows[:, N_CEPSTRA], 0.9) - SOUND_DB
        if loud.sum() < LEAST_FRAMES:
            return None
        mean, scale, project = _weights()[:3]
        placed = ((statistics(rows[loud]) - mean) * scale) @ project
        return (*map(float, placed), float(loud.sum()))


def _rows(windows: Wave) -> Wave:
    windows = windows * _tapering()
    power = np.abs(np.fft.rfft(windows, SPECTRUM)) ** 2
    bands, cosines = _banks()
    cepstra = np.log(power @ bands + 1.0) @ cosines
    loudness = 10.0 * np.log10(power.sum(axis=1) + 1.0)
    long = np.abs(np.fft.rfft(windows, 2 * SPECTRUM)) ** 2
    fits = np.fft.irfft(long)[:, : LONGEST_PERIOD + 1]
    fits = fits[:, SHORTEST_PERIOD:] / np.maximum(fits[:, :1], 1.0)
    period = fits.argmax(axis=1) + SHORTEST_PERIOD
    pitch = np.where(fits.max(axis=1) > VOICED, np.log(RECOGNIZER_HZ / period), np.nan)
    return np.column_stack((cepstra, loudness, pitch))


def statistics(rows: Wave) -> Wave:
    """Of frames that sound [n, N_CEPSTRA + 2]: means, spreads, movement, pitch."""
    cepstra, pitch = rows[:, :N_CEPSTRA], rows[:, N_CEPSTRA + 1]
    voiced = pitch[~np.isnan(pitch)]
    of_pitch = [math.log(USUAL_HZ), 0.1, 0.0]
    if len(voiced) >= LEAST_VOICED:
        low, middle, high = np.quantile(voiced, (0.25, 0.5, 0.75))
        of_pitch = [middle, high - low, len(voiced) / len(rows)]
    moves = cepstra[2:] - cepstra[:-2]
    return np.concatenate((cepstra.mean(0), cepstra.std(0), moves.std(0), of_pitch))


def distance(one: Print, other: Print) -> float:
    """Squared, between the places of two prints."""
    return sum((a - b) ** 2 for a, b in zip(one[:-1], other[:-1], strict=True))


def same_log_odds(apart: float, one: Print) -> float:
    """That a sound is of the person whose nearest turn lies so far apart; one: the sound's."""
    length = math.log(one[-1] / 100.0)  # of a second of voice
    fitted = _weights()[3]
    return float(fitted @ (1.0, apart, length, apart * length))


@cache
def _tapering() -> Wave:
    return np.hanning(FRAME)


@cache
def _banks() -> tuple[Wave, Wave]:
    def mel(hz: float) -> float:
        return 2595.0 * math.log10(1.0 + hz / 700.0)

    edges = 700.0 * (10.0 ** (np.linspace(mel(LOW_HZ), mel(HIGH_HZ), N_BANDS + 2) / 2595.0) - 1.0)
    hz = np.fft.rfftfreq(SPECTRUM, 1.0 / RECOGNIZER_HZ)[:, None]
    rises = (hz - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falls = (edges[2:] - hz) / (edges[2:] - edges[1:-1])
    places = np.arange(N_BANDS)[:, None] + 0.5
    cosines = np.cos(np.pi * places * np.arange(1, N_CEPSTRA + 1) / N_BANDS)
    return np.clip(np.minimum(rises, falls), 0.0, None), cosines


@cache
def _weights() -> tuple[Wave, Wave, Wave, Wave]:
    """mean and scale of the statistics, the projection, and the fit of `same_log_odds`."""
    with np.load(WEIGHTS, allow_pickle=False) as file:
        return file["mean"], file["scale"], file["project"], file["fit"]
