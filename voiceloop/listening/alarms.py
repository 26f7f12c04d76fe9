"""Events of time although nothing comes: no audio, or no words.

Owns the alarm for a point of the audio clock that no chunk has reached yet, the watch for a client
that stops sending, and the turns whose words are still to come. All run on the event loop, and call
back on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from audio.frames import FRAME_MS
from voiceloop.listening.caller_audio import STALL_MS, AudioClock
from voiceloop.listening.events import UserTurn

# A wait that ends before the next chunk can be there does not last until then: silence of one chunk
# is assumed, and the reply is taken back where it was speech.
UNHEARD_MS = float(FRAME_MS)
WATCH_S = 0.05  # period of the stall watch: the delay with which a stall is noticed, at most
# A final pass takes 15 to 40 ms: words that are not there by then are late, however long the wait
# for the end of the turn was. Chosen, so that a slow one on a busy machine is none.
FINAL_PASS_S = 0.5


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


class AwaitedTurns:
    """Turns that have ended before their words were there; `on_late(turn)` once for each.

    late_s: after the caller's last sound, words that are still to come are late; None: never.
    """

    def __init__(self, on_late: Callable[[UserTurn], None]) -> None:
        self.late_s: float | None = None
        self._on_late = on_late
        self._turns: dict[int, tuple[UserTurn, asyncio.TimerHandle | None]] = {}

    def add(self, turn: UserTurn, now_s: float) -> None:
        """Add a turn whose words follow. now_s: on the session's clock."""
        timer = None
        if self.late_s is not None:
            wait_s = max(FINAL_PASS_S, turn.speech_end_s + self.late_s - now_s)
            timer = asyncio.get_running_loop().call_later(wait_s, self._on_late, turn)
        self._turns[turn.segment] = turn, timer

    def take(self, segment: int) -> UserTurn | None:
        """Take a turn whose words are there, or never will be."""
        turn, timer = self._turns.pop(segment, (None, None))
        if timer is not None:
            timer.cancel()
        return turn

    def cancel(self) -> None:
        for segment in list(self._turns):
            self.take(segment)
