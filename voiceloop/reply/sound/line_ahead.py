"""A line that needs no model, spoken while it is not known yet whether the turn is over.

Owns the sound of at most one line of a session: a value that is to be said back, an approved
answer. Its reply takes it, as far as it is made by then, in the place of a stream of the voice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from enum import Enum

from voiceloop.backends import Speech, SpeechEnd, Voice, VoiceEvent, VoiceOptions, VoiceStream
from voiceloop.errors import BackendError, VoiceLoopError, WorkerLost

log = logging.getLogger(__name__)

# What is made may be thrown away, and a voice takes a line whole. Chosen: some 20 s of speech, more
# than a number, a name or an address takes to be said back.
MOST_CHARACTERS = 320
DEADLINE_S = 10.0  # for the stream to open, and between two pieces of it


class Stand(Enum):
    """Of a line."""

    UNDER_WAY = "under_way"
    WHOLE = "whole"
    FAILED = "failed"


class SpokenAhead:
    """A `Voice`. Its first stream says the line, as fast as it comes; others are the voice's own.

    made_ms: of sound that is there.
    """

    def __init__(self, voice: Voice, text: str, options: VoiceOptions) -> None:
        self.rate_hz = voice.rate_hz
        self.text = text
        self.options = options
        self.made_ms = 0.0
        self.stand = Stand.UNDER_WAY
        self._voice = voice
        self._pieces: list[VoiceEvent] = []
        self._changed = asyncio.Event()
        self._speaking: asyncio.Task[None] | None = None
        self._is_taken = False
        self._is_lost = False  # with its worker: another stream may say it

    def start(self, tasks: asyncio.TaskGroup, stream_id: str) -> None:
        self._speaking = tasks.create_task(self._speak(stream_id), name="line ahead")

    async def _speak(self, stream_id: str) -> None:
        """To its end; whatever fails costs no more than the line, which can be said without."""
        try:
            async with asyncio.timeout(DEADLINE_S) as deadline:
                stream = await self._voice.open(stream_id, self.options)
                try:
                    await self._read(stream, deadline)
                finally:
                    await stream.close()
        except (VoiceLoopError, TimeoutError) as error:
            log.warning("a line was not spoken ahead: %s", error or "no voice in time")
            self._is_lost = isinstance(error, WorkerLost)
        except Exception:  # a voice's bug costs a line, not the call
            log.exception("a line was not spoken ahead")
        if self.stand is Stand.UNDER_WAY:
            self.stand = Stand.FAILED
        self._changed.set()

    async def _read(self, stream: VoiceStream, deadline: asyncio.Timeout) -> None:
        stream.feed(self.text)
        stream.finish()
        async for piece in stream.events():
            deadline.reschedule(asyncio.get_running_loop().time() + DEADLINE_S)
            self._pieces.append(piece)
            if isinstance(piece, Speech):
                self.made_ms += 1000.0 * len(piece.samples) / 2 / piece.rate_hz
            elif isinstance(piece, SpeechEnd):
                self.stand = Stand.WHOLE
                return
            self._changed.set()

    # --- as a voice, and the stream that it opens ---

    async def open(self, stream_id: str, options: VoiceOptions) -> VoiceStream:
        if self._is_taken:
            return await self._voice.open(stream_id, options)
        self._is_taken = True
        return self

    def feed(self, text: str) -> None:
        """What is said is known already."""

    def finish(self) -> None:
        """So is where it ends."""

    async def events(self) -> AsyncIterator[VoiceEvent]:
        """Raises: BackendError where the voice failed in the middle of it."""
        n_told = 0
        while True:
            while n_told < len(self._pieces):
                n_told += 1
                yield self._pieces[n_told - 1]
            if self.stand is Stand.WHOLE:
                return
            if self.stand is Stand.FAILED:
                kind = WorkerLost if self._is_lost else BackendError
                raise kind("expected the end of the line, found that the voice failed")
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        self.stop()

    def stop(self) -> None:
        """Speak no more of it; idempotent."""
        if self._speaking is not None:
            self._speaking.cancel()


class LineAhead:
    """The one that a session may say next."""

    def __init__(self) -> None:
        self._line: SpokenAhead | None = None

    def has(self, text: str, options: VoiceOptions) -> bool:
        """Whether it is this one, and nothing of it has failed."""
        line = self._line
        is_it = line is not None and (line.text, line.options) == (text, options)
        return is_it and line is not None and line.stand is not Stand.FAILED

    def speak(
        self,
        voice: Voice,
        text: str,
        options: VoiceOptions,
        tasks: asyncio.TaskGroup,
        stream_id: str,
    ) -> None:
        """Begin this one; after `drop`."""
        self._line = SpokenAhead(voice, text, options)
        self._line.start(tasks, stream_id)

    def take(self, text: str, options: VoiceOptions) -> SpokenAhead | None:
        """The line, for its reply; None where it is another, or has failed."""
        if not self.has(text, options):
            return None
        line, self._line = self._line, None
        return line

    def drop(self) -> float:
        """Throw it away; returns how many milliseconds of sound that costs."""
        line, self._line = self._line, None
        if line is None:
            return 0.0
        line.stop()
        return line.made_ms
