"""Lines as the voice once spoke them, for when it cannot speak any more.

Owns the sound of a few short lines in the gateway's own memory. A voice that is being restarted, or
that fails in the middle of a reply, would leave the caller in silence: what says that something
went wrong must not need what went wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import numpy as np

from audio.resample import Resampler
from voiceloop.backends import Speech, SpeechEnd, SpokenWord, Voice, VoiceEvent, VoiceOptions
from voiceloop.errors import BackendError, VoiceLoopError
from voiceloop.reply.sound.loudness import Samples

log = logging.getLogger(__name__)

MOST_LINES = 32  # kept, and wanted at a time; an agent has two and its tools', in a few voices
MOST_OPTIONS = 4  # of one session, over its length; chosen: callers do not change voice for ever
MOST_BYTES = 2 << 20  # of one line: 40 s at 24 kHz; a longer one is not kept
DEADLINE_S = 10.0  # for a voice to speak a line that no caller waits for


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

    def sound(self, rate_hz: int) -> tuple[Samples, tuple[SpokenWord, ...]]:
        """All of it, int16 [n] at this rate, and its words."""
        spoken = [piece for piece in self.pieces if isinstance(piece, Speech)]
        samples = np.frombuffer(b"".join(piece.samples for piece in spoken), "<i2")
        resampler = Resampler(self.rate_hz, rate_hz)
        whole = resampler.push(samples.astype(np.int16, copy=False)), resampler.flush()
        return np.concatenate(whole), tuple(word for piece in spoken for word in piece.words)


class KeptLines:
    """By text, voice and speed; the longest unused goes first."""

    def __init__(self) -> None:
        self._lines: OrderedDict[tuple[str, VoiceOptions], KeptLine] = OrderedDict()
        self._wanted: dict[tuple[str, VoiceOptions], Voice] = {}  # the next first
        self._keeping: asyncio.Task[None] | None = None

    def line(self, text: str, options: VoiceOptions) -> KeptLine | None:
        """The line as it was spoken with these options; None where it never was."""
        if (found := self._lines.get((text, options))) is not None:
            self._lines.move_to_end((text, options))
        return found

    def keep_soon(self, voice: Voice, text: str, options: VoiceOptions) -> None:
        """Have it spoken beside the calls: one line at a time, so that these hardly wait.

        A voice that fails it is asked again when the line is next wanted.
        """
        wanted = (text, options)
        if not text or wanted in self._lines or wanted in self._wanted:
            return
        if len(self._wanted) >= MOST_LINES:
            log.warning("expected at most %d lines to be kept at a time, found more", MOST_LINES)
            return
        self._wanted[wanted] = voice
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep_wanted(), name="keep lines")

    async def _keep_wanted(self) -> None:
        while self._wanted:
            (text, options), voice = next(iter(self._wanted.items()))
            await self.keep(voice, text, options)
            del self._wanted[text, options]
        self._keeping = None

    async def keep(self, voice: Voice, text: str, options: VoiceOptions) -> None:
        """Have it spoken and keep the sound; whatever fails is told in the log, no more."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                pieces = await _spoken(voice, text, options)
        except (VoiceLoopError, TimeoutError) as error:
            log.warning("a line is not kept as sound yet: %s", error or "no voice in time")
            return
        except Exception:  # a voice's bug costs a line, neither those behind it nor the server
            log.exception("a line is not kept as sound yet")
            return
        if sum(len(piece.samples) for piece in pieces if isinstance(piece, Speech)) > MOST_BYTES:
            log.warning("a line of %d characters is too long to be kept as sound", len(text))
            return
        self._lines[text, options] = KeptLine(voice.rate_hz, pieces)
        while len(self._lines) > MOST_LINES:
            self._lines.popitem(last=False)

    async def close(self) -> None:
        """Give up what is being spoken, and what is wanted."""
        self._wanted.clear()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])


class SessionLines:
    """The lines of one session, wanted once in each voice and speed that it is spoken with.

    A client may change these as often as it likes: beyond MOST_OPTIONS nothing is kept for it.
    """

    def __init__(self, kept: KeptLines, voice: Voice, texts: Sequence[str]) -> None:
        self._kept = kept
        self._voice = voice
        self._texts = texts
        self._options: set[VoiceOptions] = set()

    def want(self, options: VoiceOptions) -> None:
        """The session is spoken so from now on."""
        if options in self._options or len(self._options) >= MOST_OPTIONS:
            return
        self._options.add(options)
        for text in self._texts:
            self._kept.keep_soon(self._voice, text, options)


async def _spoken(voice: Voice, text: str, options: VoiceOptions) -> tuple[VoiceEvent, ...]:
    stream = await voice.open(f"kept-{abs(hash((text, options))):x}", options)
    try:
        stream.feed(text)
        stream.finish()
        pieces: list[VoiceEvent] = []
        async for event in stream.events():
            pieces.append(event)
            if isinstance(event, SpeechEnd):
                return tuple(pieces)
        raise BackendError("expected the end of the line, found the voice closed")
    finally:
        await stream.close()
