"""A telephone's sound in and out of a line's: encodings, rates, whole frames, order. Pure.

Owns what stands between 24 kHz (`LINE_FORMAT`) and what the far end speaks, in frames of 20 ms.
"""

from __future__ import annotations

import numpy as np

from audio.codec import Encoding, decode, encode
from audio.frames import FRAME_MS, VOICE_HZ, Samples, samples_in
from audio.resample import Resampler

# How many later pieces come before an earlier one that is missing is given up: 60 ms.
MOST_AHEAD = 3


class FarSound:
    """The sound of one call, both ways. encoding, rate_hz: of the far end."""

    def __init__(self, encoding: Encoding, rate_hz: int) -> None:
        self.encoding: Encoding = encoding
        self.rate_hz = rate_hz
        self.frame_samples = samples_in(FRAME_MS, rate_hz)
        self._in, self._out = Resampler(rate_hz, VOICE_HZ), Resampler(VOICE_HZ, rate_hz)
        self._rest = np.zeros(0, np.int16)

    def heard(self, payload: bytes) -> bytes:
        """The caller's, for the line. Raises: AudioError."""
        samples = self._in.push(decode(payload, self.encoding))
        return samples.astype("<i2", copy=False).tobytes()

    def frames(self, samples: bytes) -> list[bytes]:
        """The agent's, as whole frames; less than one waits for more."""
        return self._cut(self._out.push(np.frombuffer(samples, "<i2")))

    def finish(self) -> list[bytes]:
        """Return what waits, with silence behind it: nothing follows for now."""
        frames = self._cut(self._out.flush())
        if len(self._rest):
            frames += self._cut(np.zeros(self.frame_samples - len(self._rest), np.int16))
        return frames

    def forget(self) -> None:
        """Drop what waits."""
        self._out.reset()
        self._rest = self._rest[:0]

    def duration_ms(self, payload: bytes) -> float:
        n_bytes = 2 if self.encoding == "pcm16" else 1
        return 1000.0 * len(payload) / n_bytes / self.rate_hz

    def _cut(self, more: Samples) -> list[bytes]:
        whole = np.concatenate((self._rest, more))
        n_whole = len(whole) - len(whole) % self.frame_samples
        self._rest = whole[n_whole:]
        pieces = np.split(whole[:n_whole], range(self.frame_samples, n_whole, self.frame_samples))
        return [encode(one, self.encoding) for one in pieces if len(one)]


class InOrder:
    """Numbered pieces in their order: Telnyx promises none."""

    def __init__(self) -> None:
        self._next: int | None = None
        self._early: dict[int, bytes] = {}

    def take(self, number: int | None, payload: bytes) -> list[bytes]:
        """The pieces that are due; number: None where they come in order. An old one is dropped."""
        if number is None:
            return [payload]
        if self._next is None or number > self._next + 50 * MOST_AHEAD:  # it counts anew
            self._next, self._early = number, {}
        if number < self._next:
            return []
        self._early[number] = payload
        if self._next not in self._early and len(self._early) > MOST_AHEAD:
            self._next = min(self._early)
        due = []
        while self._next in self._early:
            due.append(self._early.pop(self._next))
            self._next += 1
        return due
