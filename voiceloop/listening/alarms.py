"""What happens on the audio clock although no audio comes.

Owns the alarm for a point that no chunk has reached yet, and the watch for a client that stops
sending. Both run on the event loop, and call back on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from audio.frames import FRAME_MS
from voiceloop.listening.audio_clock import STALL_MS, AudioClock

# A wait that ends before the next chunk can be there does not last until then: silence of one chunk
# is assumed, and the reply is taken back where it was speech.
UNHEARD_MS = float(FRAME_MS)
WATCH_S = 0.05  # period of the stall watch: the delay with which a stall is noticed, at most


class Alarm:
    """Calls `ring(at_ms)` at a point of the audio clock, unless a chunk comes first."""

    def __init__(self, clock: AudioClock, ring: Callable[[float], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._due: asyncio.TimerHandle | None = None

    def ring_after(self, wait_ms: float, now_ms: float) -> None:
        """In place of what was set before. What a chunk will come before is left to that."""
        if wait_ms > UNHEARD_MS:
            return
        self.cancel()
        at_ms = now_ms + wait_ms + 0.1  # past it, however rounded
        delay_s = (at_ms - self._clock.now_ms - self._clock.stalled_ms) / 1000.0
        self._due = asyncio.get_running_loop().call_later(
            max(0.0, delay_s), self._ring_unheard, self._clock.position, at_ms
        )

    def _ring_unheard(self, position: int, at_ms: float) -> None:
        if position == self._clock.position:
            self._ring(at_ms)

    def cancel(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None


class StallWatch:
    """Calls `on_stall(now_ms)`, again and again, while audio is awaited and none comes.

    is_awaited: of a segment, or of a loud window that may begin one.
    """

    def __init__(self, clock: AudioClock, on_stall: Callable[[float], None]) -> None:
        self._clock = clock
        self._on_stall = on_stall
        self.is_awaited = asyncio.Event()

    async def run(self) -> None:
        while True:
            await self.is_awaited.wait()
            await asyncio.sleep(WATCH_S)
            if (stalled_ms := self._clock.stalled_ms) >= STALL_MS:
                self._on_stall(self._clock.now_ms + stalled_ms)
