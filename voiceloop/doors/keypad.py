"""The tones of a telephone's keys, for a line that carries nothing but sound. Pure.

Source: ITU-T Q.23 (frequencies), Q.24 (times).
"""

from __future__ import annotations

import numpy as np

from audio.frames import VOICE_HZ, samples_in
from voiceloop.errors import InvalidRequest
from voiceloop.telephony import KEYS

ROWS, COLUMNS = (697.0, 770.0, 852.0, 941.0), (1209.0, 1336.0, 1477.0, 1633.0)
ROWS_OF_KEYS = ("123A", "456B", "789C", "*0#D")
# Twice the least that a receiver has to know, which a codec and a jitter buffer shorten.
TONE_MS, GAP_MS = 100, 80
PAUSE_MS = 500  # of a `w`
AMPLITUDE = 0.25  # of each tone: -12 dBFS, which G.711 carries without clipping
MOST_DIGITS = 64


def tones(digits: str) -> bytes:
    """PCM16 at 24 kHz. digits: KEYS, and `w` for a pause. Raises: InvalidRequest."""
    if len(digits) > MOST_DIGITS or not set(digits) <= KEYS | {"w"}:
        raise InvalidRequest(f"digits: expected at most {MOST_DIGITS} of {''.join(sorted(KEYS))}w")
    pieces = [_silence(PAUSE_MS) if digit == "w" else _tone(digit) for digit in digits]
    return np.concatenate([_silence(0), *pieces]).astype("<i2").tobytes()


def _tone(key: str) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    row = next(number for number, keys in enumerate(ROWS_OF_KEYS) if key in keys)
    column = ROWS_OF_KEYS[row].index(key)
    at_s = np.arange(samples_in(TONE_MS, VOICE_HZ)) / VOICE_HZ
    waves = [np.sin(2.0 * np.pi * hz * at_s) for hz in (ROWS[row], COLUMNS[column])]
    tone = (32767.0 * AMPLITUDE * np.sum(waves, axis=0)).astype(np.int16)
    return np.concatenate((tone, _silence(GAP_MS)))


def _silence(ms: int) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return np.zeros(samples_in(ms, VOICE_HZ), np.int16)
