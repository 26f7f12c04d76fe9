"""A desk with loudspeakers: the agent's speech reaches the microphone through a synthetic room."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve

from clients.connection import RATE_HZ
from clients.recording import Samples, read_flac, to_int16

CALL = Path(__file__).resolve().parents[3] / "clients" / "call"
AGENT, CALLER = "heart", "deep"  # voices of the bundled call, both by hibari
ECHO_DB = -8.0  # of the loudspeaker at the microphone: nearer than most people sit
NOISE_DBFS = -70.0
REVERBERATION_S = 0.2  # to -60 dB


@lru_cache(maxsize=2)
def speech(voice: str) -> Samples:
    """The bundled call in one of its voices, all turns in a row."""
    files = sorted((CALL / voice).glob("*.flac"))
    return np.concatenate([read_flac(file).at_rate(RATE_HZ).samples for file in files])


class Room:
    """Echoes that begin ``delay_ms`` after the loudspeaker; blocks in, blocks out."""

    def __init__(self, delay_ms: float, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        n_delay = round(delay_ms * RATE_HZ / 1000)
        times = np.arange(round(REVERBERATION_S * RATE_HZ)) / RATE_HZ
        tail = rng.standard_normal(len(times)) * 10 ** (-3 * times / REVERBERATION_S)
        tail[0] = 3.0 * np.abs(tail).max()  # the way straight across the desk
        tail *= 10 ** (ECHO_DB / 20) / np.sqrt(np.sum(tail**2))
        self._response: NDArray[np.float64] = np.concatenate((np.zeros(n_delay), tail))
        self._pending = np.zeros(len(self._response))
        self._rng = rng

    def echo(self, played: Samples) -> Samples:
        """What the microphone hears while this is played, the room's own noise included."""
        driven = 32768 * np.tanh(played / 32768)  # a small loudspeaker bends what is loud
        sound = fftconvolve(driven, self._response)
        sound[: len(self._pending)] += self._pending[: len(sound)]
        heard, self._pending = sound[: len(played)], sound[len(played) :]
        noise = self._rng.normal(0.0, 32768 * 10 ** (NOISE_DBFS / 20), len(heard))
        return to_int16(heard + noise)


def level_db(samples: NDArray[np.generic]) -> float:
    """Mean power in dB of full scale."""
    power = float(np.mean(np.square(samples.astype(np.float64) / 32768)))
    return 10 * float(np.log10(max(power, 1e-12)))
