"""The far end of a call over a carrier's or an exchange's stream, whatever its dialect.

Owns the call's sound both ways, in the far end's encoding and at the call's pace, what was played
of it, the one writer of the stream's socket, and what a telephone can be told to do over it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from contextlib import suppress
from enum import Enum
from typing import Protocol

from audio.errors import AudioError
from audio.frames import FRAME_MS, VOICE_HZ, samples_in
from voiceloop.call.connection import HUNG_UP, Disconnected
from voiceloop.doors.carriers.dialect import Dialect, Frame, Heard, Incoming, Played, Pressed
from voiceloop.doors.carriers.legs import LegStream
from voiceloop.doors.carriers.marks import Marks
from voiceloop.doors.carriers.sound import FarSound, InOrder
from voiceloop.doors.keypad import tones
from voiceloop.doors.line import Line
from voiceloop.errors import InvalidRequest
from voiceloop.telephony import Announcement

log = logging.getLogger(__name__)

MOST_UNSENT = 512  # frames: ten seconds of sound, and its marks. A far end that leaves more is gone
MOST_MALFORMED = 20  # frames of a call that say nothing we know; a broken peer sends more
# Without sound of the caller for so long, silence stands in for it: the end of a turn is a time.
SILENT_AFTER_S = 0.2
# A reply's next piece follows within this, or there is none: what is no whole frame is sent.
REPLY_OVER_S = 0.06
RESUME_TICKET = '{"type":"voiceloop.resume_ticket"'
SILENCE = bytes(2 * samples_in(FRAME_MS, VOICE_HZ))


class Socket(Protocol):
    """The stream's."""

    async def receive(self) -> Frame: ...

    async def send(self, data: Frame) -> None: ...

    async def close(self, code: int = 1000, reason: str = "") -> None: ...


class Leaving(Enum):
    """The party that left first."""

    NOBODY = "nobody"
    FAR_END = "the far end"
    AGENT = "the agent"  # it hung up
    TRANSFER = "transfer"


HANG_UP_S = 1.0  # for the last command to leave; a far end that reads nothing is let go of
# Close codes by which a call is over, and no other stream is to follow: hung up, at its longest
# time, its key gone. A server that restarts or fails ends the stream alone.
OVER = (HUNG_UP, 1001, 1008)


class StreamEnd:
    """As `line.FarEnd` and `telephony.PhoneLine`. `run` until the far end has left.

    sound: of the far end. line: told of what it says.
    """

    def __init__(
        self,
        socket: Socket,
        dialect: Dialect,
        sound: FarSound,
        line: Line,
        owner: LegStream,
    ) -> None:
        self._socket = socket
        self._dialect = dialect
        self._sound = sound
        self._line = line
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._order, self._marks = InOrder(), Marks()
        self._unsent: deque[Frame] = deque()
        self._changed, self._drained = asyncio.Event(), asyncio.Event()
        self._heard_until_s = self._loop.time()
        self._finishing: asyncio.TimerHandle | None = None
        self._n_malformed = 0
        self.leaving = Leaving.NOBODY

    # --- life ---

    async def run(self) -> None:
        """Read and write until the stream ends. A bug in it ends the call."""
        try:
            async with asyncio.TaskGroup() as tasks:
                others = [tasks.create_task(self._write()), tasks.create_task(self._fill())]
                await self._read()
                for task in others:
                    task.cancel()
        except Exception:
            log.exception("the stream of a telephone failed")
            self._leave(1011, "the stream of the telephone failed")

    async def _read(self) -> None:
        try:
            while True:
                frame = await self._socket.receive()
                try:
                    incoming = self._dialect.read(frame)
                    if incoming is not None:
                        self.take(incoming)
                except (InvalidRequest, AudioError) as error:
                    self._n_malformed += 1
                    if self._n_malformed > MOST_MALFORMED:
                        self._leave(1008, f"the far end sends what it should not: {error}")
                        return
        except Disconnected as gone:
            self._leave(gone.code, gone.how)

    def take(self, incoming: Incoming) -> None:
        """Take in a message of the far end. Raises: AudioError."""
        match incoming:
            case Heard(payload=payload, number=number):
                for piece in self._order.take(number, payload):
                    self._heard_until_s = max(
                        self._heard_until_s + self._sound.duration_ms(piece) / 1000.0,
                        self._loop.time() - SILENT_AFTER_S,
                    )
                    self._line.hear(self._sound.heard(piece))
            case Played(name=name):
                self._marks.observe_played(name, self._loop.time())
            case Pressed(key=key):
                self._line.press(key)
            case _:
                self._leave(HUNG_UP, "the telephone hung up")

    def _leave(self, code: int, how: str) -> None:
        if self.leaving is Leaving.NOBODY:
            self.leaving = Leaving.FAR_END
        self._line.end(code, how)

    async def _fill(self) -> None:
        """Silence where the far end sends none: on hold, muted, or held up.

        Where our own loop stood still, what came meanwhile is read first: once it is waited for.
        """
        waits = False
        while True:
            due_s = self._loop.time() + SILENT_AFTER_S / 2
            await asyncio.sleep(SILENT_AFTER_S / 2)
            waits = not waits and self._loop.time() - due_s > FRAME_MS / 1000.0
            while not waits and self._loop.time() - self._heard_until_s > SILENT_AFTER_S:
                self._heard_until_s += FRAME_MS / 1000.0
                self._line.hear(SILENCE)

    async def _write(self) -> None:
        """The socket's one writer; who has gone is found by the reader."""
        with suppress(Disconnected):
            while True:
                while self._unsent:
                    await self._socket.send(self._unsent.popleft())
                self._drained.set()
                self._changed.clear()
                await self._changed.wait()

    def _put(self, frame: Frame | None) -> None:
        if frame is None:
            return
        if len(self._unsent) >= MOST_UNSENT:
            self._leave(1013, "the far end does not read")
            return
        self._unsent.append(frame)
        self._drained.clear()
        self._changed.set()

    # --- as the line's far end ---

    @property
    def lead_ms(self) -> float:
        return self._dialect.lead_ms

    def play_delay_ms(self) -> float:
        return self._marks.delay_ms(self._loop.time())

    def send_sound(self, samples: bytes) -> None:
        self._send(self._sound.frames(samples))
        if self._finishing is not None:
            self._finishing.cancel()
        self._finishing = self._loop.call_later(REPLY_OVER_S, self._finish)

    def _send(self, frames: list[bytes]) -> None:
        for frame in frames:
            self._put(self._dialect.media(frame))
            self._mark(self._marks.observe_sent(FRAME_MS, self._loop.time()))

    def _mark(self, name: str | None) -> None:
        if name and (frame := self._dialect.mark(name)) is not None:
            self._put(frame)

    def _finish(self) -> None:
        self._send(self._sound.finish())
        self._mark(self._marks.finish())

    def clear_sound(self) -> None:
        """Drop what has not left, and have the far end drop what it has not played."""
        self._unsent.clear()
        self._sound.forget()
        self._marks.clear(self._loop.time())
        self._put(self._dialect.clear())

    async def send(self, event: str) -> None:
        """Events are not for a telephone; a ticket is kept for it."""
        if event.startswith(RESUME_TICKET):
            told = json.loads(event)
            self._owner.keep(told["ticket"], told["returns"])

    async def close(self) -> None:
        if self._finishing is not None:
            self._finishing.cancel()
        by_us, ending = self.leaving is Leaving.NOBODY, self._line.ending
        is_over = by_us and ending is not None and ending.code in OVER
        self._owner.end(is_over=is_over or self.leaving is Leaving.AGENT)
        await self._socket.close(1000, "the call is over")

    # --- as a telephone's line ---

    async def hang_up(self) -> None:
        if self.leaving is Leaving.NOBODY:
            self.leaving = Leaving.AGENT
            if (frame := self._dialect.hang_up()) is not None:
                self._unsent.clear()  # nothing of it is heard any more
                self._put(frame)
                with suppress(TimeoutError):
                    async with asyncio.timeout(HANG_UP_S):
                        await self._drained.wait()
        self._line.end(HUNG_UP, "the agent hung up")

    async def transfer(self, target: str, announcement: Announcement | None = None) -> None:
        self._owner.send_away(target, announcement)
        self.leaving = Leaving.TRANSFER
        self._line.end(HUNG_UP, "the caller was transferred")

    async def send_digits(self, digits: str) -> None:
        if (frame := self._dialect.digits(digits)) is not None:
            self._put(frame)
            return
        sound = tones(digits)
        self.send_sound(sound)
        await asyncio.sleep(len(sound) / 2 / VOICE_HZ)
