"""The audio clock, and what rings on it although no audio comes.

Owns the samples received and the arrival times of the last chunks by the wall's clock, which is
passed in; the alarm for a point that no chunk has reached yet, and the watch for a client that
stops sending. Alarms run on the event loop, and call back on it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from audio.frames import FRAME_MS, RECOGNIZER_HZ

# Ten seconds of frames of 20 ms: longer than the longest wait for the end of a turn, of 8 s.
N_CHUNKS = 10_000 // FRAME_MS
STALL_MS = 300.0  # without audio: the client has stopped sending, the wall's clock takes over


class AudioClock:
    """Milliseconds of audio since the call began. clock: seconds of the wall's clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._chunks: deque[tuple[int, float]] = deque(maxlen=N_CHUNKS)
        self._awaited_s = 0.0  # since when the next chunk is awaited
        self.position = 0  # samples received

    def advance(self, n_samples: int) -> bool:
        """The next chunk of audio has come in now. Whether the client had stopped sending."""
        had_stalled = self.stalled_ms >= STALL_MS
        self.position += n_samples
        self._awaited_s = self._clock()
        self._chunks.append((self.position, self._awaited_s))
        return had_stalled

    def excuse(self, late_s: float) -> None:
        """Our event loop stood still for so long: what came meanwhile has not been read yet."""
        self._awaited_s = min(self._clock(), self._awaited_s + late_s)

    @property
    def now_ms(self) -> float:
        return 1000.0 * self.position / RECOGNIZER_HZ

    @property
    def stalled_ms(self) -> float:
        """Return how long a chunk has been awaited since the last; 0 before the first."""
        return 1000.0 * (self._clock() - self._awaited_s) if self._chunks else 0.0

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


# A wait that ends before the next chunk can be there does not last until then: silence of one chunk
# is assumed, and the reply is taken back where it was speech.
UNHEARD_MS = float(FRAME_MS)
WATCH_S = 0.05  # period of the stall watch: the delay with which a stall is noticed, at most
LATE_S = FRAME_MS / 1000.0  # our own loop, where a chunk may wait in the socket behind the timer


class Alarm:
    """Calls `ring(at_ms)` at a point of the audio clock, unless a chunk comes first."""

    def __init__(self, clock: AudioClock, ring: Callable[[float], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._due: asyncio.TimerHandle | None = None
        self._rung = (-1, 0.0)  # behind so many samples, for that point

    def ring_after(self, wait_ms: float, now_ms: float) -> None:
        """Set the alarm in place of what was set before. What a chunk will come before is left
        to that, and so is a point that it has rung for already.
        """
        at_ms = now_ms + wait_ms + 0.1  # past it, however rounded
        if wait_ms > UNHEARD_MS or (self._clock.position, at_ms) <= self._rung:
            return
        self.cancel()
        delay_s = (at_ms - self._clock.now_ms - self._clock.stalled_ms) / 1000.0
        self._due = asyncio.get_running_loop().call_later(
            max(0.0, delay_s), self._ring_unheard, self._clock.position, at_ms
        )

    def _ring_unheard(self, position: int, at_ms: float) -> None:
        if position == self._clock.position:
            self._rung = position, at_ms
            self._ring(at_ms)

    def cancel(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


class StallWatch:
    """Calls `on_stall(now_ms)`, again and again, while audio is awaited and none comes.

    is_awaited: of a segment, or of a loud window that may begin one. A machine that let our loop
    wait let the caller's sound wait in the socket too: that was no silence.
    """

    def __init__(self, clock: AudioClock, on_stall: Callable[[float], None]) -> None:
        self._clock = clock
        self._on_stall = on_stall
        self.is_awaited = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self.is_awaited.wait()
            due_s = loop.time() + WATCH_S
            await asyncio.sleep(WATCH_S)
            if (late_s := loop.time() - due_s) > LATE_S:
                self._clock.excuse(late_s)
            if (stalled_ms := self._clock.stalled_ms) >= STALL_MS:
                self._on_stall(self._clock.now_ms + stalled_ms)
