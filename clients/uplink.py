"""The caller's microphone: 20 ms frames in real time, room noise between utterances.

The line never falls silent and never runs ahead: frame k leaves when its last sample would have
been recorded. For every frame the moment of sending is kept, which turns a position in the audio
into a time on the clock (t0 of the gap).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from clients.connection import RATE_HZ
from clients.recording import Samples
from clients.report.waveform import room_noise

FRAME_MS = 20
N_FRAME = RATE_HZ * FRAME_MS // 1000
NOISE_LOOP_S = 7


class TakesAudio(Protocol):
    """The server's end of the line: `RealtimeConnection`, or the line of a check."""

    async def append_audio(self, samples: Samples) -> None: ...


class Uplink:
    """One caller's line. Positions count samples at 24 kHz from the start of ``run``."""

    def __init__(
        self,
        connection: TakesAudio,
        *,
        seed: int = 0,
        noise_dbfs: float = -62.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self._noise = room_noise(NOISE_LOOP_S * RATE_HZ, RATE_HZ, seed, noise_dbfs)
        self._utterance: Samples = np.zeros(0, dtype=np.int16)
        self._utterance_at = 0
        self._sent: list[Samples] = []
        self.sent_times: list[float] = []
        self.started_at = 0.0

    async def run(self) -> None:
        """Send frames until cancelled."""
        self.started_at = self._clock()
        while True:
            due = self.started_at + (len(self._sent) + 1) * FRAME_MS / 1000.0
            await asyncio.sleep(max(0.0, due - self._clock()))
            frame = self._next_frame()
            # Stamped before the send: encoding the frame counts as part of the wait.
            self.sent_times.append(self._clock())
            self._sent.append(frame)
            await self._connection.append_audio(frame)

    def say(self, samples: Samples) -> int:
        """Speak from the next frame on, in place of what was being said; returns its position."""
        self._utterance = samples
        self._utterance_at = self.position
        return self._utterance_at

    @property
    def position(self) -> int:
        """Samples sent so far."""
        return len(self._sent) * N_FRAME

    @property
    def speaking(self) -> bool:
        return self.position < self._utterance_at + len(self._utterance)

    def sent_at(self, position: int) -> float:
        """Return when the frame that holds this sample was sent (monotonic seconds)."""
        return self.sent_times[position // N_FRAME]

    def recorded(self) -> Samples:
        """The whole line so far, as sent."""
        return np.concatenate(self._sent) if self._sent else np.zeros(0, dtype=np.int16)

    def _next_frame(self) -> Samples:
        begin = self.position
        noise = np.take(self._noise, np.arange(begin, begin + N_FRAME), mode="wrap")
        offset = begin - self._utterance_at
        speech = self._utterance[offset : offset + N_FRAME]
        if len(speech) == 0:
            return noise
        mixed = noise.astype(np.int32)
        mixed[: len(speech)] += speech
        return np.clip(mixed, -32768, 32767).astype(np.int16)
