"""Lines as the voice once spoke them, for when it cannot speak any more.

Owns the sound of a few short lines in the gateway's own memory. A voice that is being restarted, or
that fails in the middle of a reply, would leave the caller in silence: what says that something
went wrong must not need what went wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass

from voiceloop.backends import Speech, SpeechEnd, Voice, VoiceEvent, VoiceOptions
from voiceloop.errors import VoiceLoopError

log = logging.getLogger(__name__)

MOST_LINES = 32  # a server has one fallback, sessions have a few voices and speeds
MOST_BYTES = 2 << 20  # of one line: 40 s at 24 kHz; a longer one is not kept
DEADLINE_S = 10.0  # for a voice to speak a line nobody waits for


@dataclass(frozen=True, slots=True)
class KeptLine:
    """A `Voice` and its stream in one: it says these pieces, whatever it is given to say."""

    rate_hz: int
    pieces: tuple[VoiceEvent, ...]

    async def open(self, stream_id: str, options: VoiceOptions) -> KeptLine:
        return self

    def feed(self, text: str) -> None:
        """What is said is known already."""

    def finish(self) -> None:
        """So is where it ends."""

    async def events(self) -> AsyncIterator[VoiceEvent]:
        for piece in self.pieces:
            yield piece

    async def close(self) -> None:
        """Nothing is open."""


class KeptLines:
    """By text, voice and speed; the longest unused goes first."""

    def __init__(self) -> None:
        self._lines: OrderedDict[tuple[str, VoiceOptions], KeptLine] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def line(self, text: str, options: VoiceOptions) -> KeptLine | None:
        """The line as it was spoken with these options; None where it never was."""
        if (found := self._lines.get((text, options))) is not None:
            self._lines.move_to_end((text, options))
        return found

    def keep_soon(self, voice: Voice, text: str, options: VoiceOptions) -> None:
        """Have it spoken while nobody waits; one line at a time, so that no call's audio waits."""
        if text and not self._tasks and (text, options) not in self._lines:
            task = asyncio.create_task(self.keep(voice, text, options), name="keep line")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def keep(self, voice: Voice, text: str, options: VoiceOptions) -> None:
        """Have it spoken and keep the sound. A voice that fails is told in the log, no more."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                pieces = await _spoken(voice, text, options)
        except (VoiceLoopError, TimeoutError) as error:
            log.warning("the fallback has no sound of its own yet: %s", error or "no voice in time")
            return
        if sum(len(piece.samples) for piece in pieces if isinstance(piece, Speech)) > MOST_BYTES:
            log.warning("the fallback is too long to be kept as sound")
            return
        self._lines[text, options] = KeptLine(voice.rate_hz, pieces)
        while len(self._lines) > MOST_LINES:
            self._lines.popitem(last=False)

    async def close(self) -> None:
        """Give up what is being spoken."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _spoken(voice: Voice, text: str, options: VoiceOptions) -> tuple[VoiceEvent, ...]:
    stream = await voice.open(f"kept-{abs(hash((text, options))):x}", options)
    try:
        stream.feed(text)
        stream.finish()
        pieces: list[VoiceEvent] = []
        async for event in stream.events():
            pieces.append(event)
            if isinstance(event, SpeechEnd):
                break
        return tuple(pieces)
    finally:
        await stream.close()
