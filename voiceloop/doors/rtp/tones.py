"""Digits of a telephone's keys heard in a caller's sound, for lines that carry no events.

Owns when two tones are a key and when a voice is not. Pure.

Source: ITU-T Q.23 (frequencies), Q.24 (levels, twist, durations); Goertzel 1958.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from audio.frames import VOICE_HZ, Samples, samples_in
from voiceloop.doors.keypad import COLUMNS, ROWS, ROWS_OF_KEYS

WINDOW_MS, STEP_MS = 25.0, 10.0  # 40 Hz apart: neighbours of one group are 73 Hz or more
# Of the window's energy, in the two tones. A voice that sings both has harmonics besides.
PURE = 0.83
TWIST_DB = 9.0  # how far one tone may be above the other (Q.24: 4 to 8 dB; lines add some)
QUIETEST_DBFS = -42.0  # of the window: -36 dBm0 is what Q.24 asks for
N_WINDOWS = 3  # of one key before it counts: 45 ms of tone; Q.24 asks for 40, telephones send 80
N_GAP = 2  # windows without it before the same key counts again


class ToneListener:
    """One caller's sound, 24 kHz."""

    def __init__(self) -> None:
        self._window = samples_in(WINDOW_MS, VOICE_HZ)
        self._step = samples_in(STEP_MS, VOICE_HZ)
        self._bank = _bank(self._window)
        self._rest = np.zeros(0, np.float64)
        self._key, self._n_same, self._n_other = "", 0, 0
        self._told = ""  # the key under way that was told

    def hear(self, samples: Samples) -> str:
        """The keys that these samples complete."""
        self._rest = np.concatenate([self._rest, samples])
        n_windows = (len(self._rest) - self._window) // self._step + 1
        if n_windows <= 0:
            return ""
        told = ""
        for number in range(n_windows):
            start = number * self._step
            told += self._observe(self._key_of(self._rest[start : start + self._window]))
        self._rest = self._rest[n_windows * self._step :]
        return told

    def _observe(self, key: str) -> str:
        self._n_same = self._n_same + 1 if key == self._key else 1
        self._key = key
        self._n_other = 0 if key == self._told else self._n_other + 1
        if self._told and self._n_other >= N_GAP:
            self._told = ""
        if key and key != self._told and self._n_same >= N_WINDOWS:
            self._told, self._n_other = key, 0
            return key
        return ""

    def _key_of(self, window: NDArray[np.float64]) -> str:
        energy = float(window @ window)
        if energy < len(window) * (32768.0 * 10 ** (QUIETEST_DBFS / 20)) ** 2:
            return ""
        # Of a pure tone a projection holds half of the window's length times its energy.
        powers = np.abs(self._bank @ window) ** 2 * 2.0 / len(window)
        low, high = int(np.argmax(powers[:4])), int(np.argmax(powers[4:8]))
        low_power, high_power = float(powers[low]), float(powers[4 + high])
        if low_power + high_power < PURE * energy:
            return ""
        ratio = 10 ** (TWIST_DB / 10)
        if not high_power / ratio <= low_power <= high_power * ratio:
            return ""
        return ROWS_OF_KEYS[low][high]


def _bank(n_samples: int) -> NDArray[np.complex128]:
    """A projection onto each tone, [8, n_samples]."""
    at = np.arange(n_samples) * (-2j * np.pi / VOICE_HZ)
    bank: NDArray[np.complex128] = np.exp(np.outer((*ROWS, *COLUMNS), at))
    return bank
