"""The voice of a session, and the lines that it has spoken before they are said.

Owns the sound of a few short lines in the gateway's own memory: a voice that is being restarted, or
fails in the middle of a reply, would leave the caller in silence, and what says that something went
wrong must not need what went wrong. And of at most one line of a session that needs no model (a
value that is said back, an approved answer), spoken while it is not known yet whether the turn is
over. Its reply takes it, as far as it is made by then, in the place of a stream of the voice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from audio.frames import VOICE_HZ
from audio.resample import Resampler
from voiceloop.agent import AgentConfig
from voiceloop.backends import (
    SpeakingBranch,
    Speech,
    SpokenWord,
    Voice,
    VoiceEvent,
    VoiceOptions,
    VoiceStream,
)
from voiceloop.errors import VoiceLoopError
from voiceloop.event_stream import spoken
from voiceloop.reply.anticipation import LiveBranch
from voiceloop.reply.plan import voice_options_of
from voiceloop.reply.playout import Samples

log = logging.getLogger(__name__)

MOST_LINES = 32  # kept, and wanted at a time; an agent has two and its tools', in a few voices
MOST_OPTIONS = 4  # of one session, over its length; chosen: callers do not change voice for ever
MOST_BYTES = 2 << 20  # of one line: 40 s at 24 kHz; a longer one is not kept
DEADLINE_S = 10.0  # for a line


@dataclass(frozen=True, slots=True)
class KeptLine:
    """A `Voice` and its stream in one: it says these pieces, whatever it is given to say."""

    rate_hz: int
    pieces: tuple[VoiceEvent, ...]

    async def open(self, stream_id: str, options: VoiceOptions) -> KeptLine:
        return self

    def feed(self, text: str) -> None:
        """Feed text whose sound is known already."""

    def finish(self) -> None:
        """Do nothing: the end is known too."""

    async def events(self) -> AsyncIterator[VoiceEvent]:
        for piece in self.pieces:
            yield piece

    async def close(self) -> None:
        """Close: nothing is open."""

    @property
    def ms(self) -> float:
        spoken = (piece for piece in self.pieces if isinstance(piece, Speech))
        return sum(500.0 * len(piece.samples) / piece.rate_hz for piece in spoken)

    def sound(self, rate_hz: int) -> tuple[Samples, tuple[SpokenWord, ...]]:
        """All of it, int16 [n] at this rate, and its words."""
        spoken = [piece for piece in self.pieces if isinstance(piece, Speech)]
        samples = np.frombuffer(b"".join(piece.samples for piece in spoken), "<i2")
        resampler = Resampler(self.rate_hz, rate_hz)
        whole = resampler.push(samples.astype(np.int16, copy=False)), resampler.flush()
        return np.concatenate(whole), tuple(word for piece in spoken for word in piece.words)


class KeptLines:
    """The kept lines by text, voice and speed; the longest unused goes first."""

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
            stream_id = f"kept-{abs(hash((text, options))):x}"
            async with asyncio.timeout(DEADLINE_S):
                pieces = tuple([p async for p in spoken(voice, text, options, stream_id)])
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

    async def keep_all(self, voice: Voice, agent: AgentConfig) -> None:
        """Keep what must be said where the voice fails a call later, or at once."""
        options = voice_options_of(agent.session_settings())
        for text in agent.kept_lines:
            await self.keep(voice, text, options)

    def keep_all_soon(self, voice: Voice, agent: AgentConfig) -> None:
        """The same beside the calls, and the greeting unless that names the caller."""
        options = voice_options_of(agent.session_settings())
        greeting = agent.greeting if "{" not in agent.greeting else ""
        for text in (*agent.kept_lines, greeting):
            self.keep_soon(voice, text, options)

    def forget(self) -> None:
        """Forget every line: the voice reads words by other sounds from now on."""
        self._lines.clear()
        self._wanted.clear()
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None

    async def close(self) -> None:
        """Give up what is being spoken, and what is wanted."""
        self._wanted.clear()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])


class ModelVoice:
    """A `Voice`: the sound that the language model brings with its text. live: its branch, once it
    is there. beside: says what the model has not.
    """

    def __init__(self, live: Callable[[], LiveBranch | None], beside: Voice) -> None:
        self.rate_hz = beside.rate_hz
        self._live = live
        self._beside = beside

    async def open(self, stream_id: str, options: VoiceOptions) -> VoiceStream:
        live = self._live()
        branch = await live.opened() if live is not None else None
        if branch is None:
            return await self._beside.open(stream_id, options)
        self.rate_hz = VOICE_HZ
        return cast(SpeakingBranch, branch).speak(stream_id, options, self._beside)


class ReplyVoice:
    """The voice of one session.

    live: speaks now. lead_ms: as of `Pacer`. kept: lines of all sessions. texts: wanted as sound in
    each voice and speed that the session is spoken with. A client may change these as often as it
    likes: beyond MOST_OPTIONS nothing is kept for it.
    """

    def __init__(
        self,
        live: Voice,
        new_stream_id: Callable[[], str],
        lead_ms: float = 0.0,
        kept: KeptLines | None = None,
        texts: Sequence[str] = (),
    ) -> None:
        self.live = live
        self.new_stream_id = new_stream_id
        self.lead_ms = lead_ms
        self._kept = kept or KeptLines()
        self._texts = texts
        self._options: set[VoiceOptions] = set()

    def want(self, options: VoiceOptions) -> None:
        """The session is spoken so from now on."""
        if options in self._options or len(self._options) >= MOST_OPTIONS:
            return
        self._options.add(options)
        for text in self._texts:
            self._kept.keep_soon(self.live, text, options)

    def kept_sound(self, line: str, options: VoiceOptions) -> KeptLine | None:
        """A voice that has spoken this line already, where its sound is kept."""
        return self._kept.line(line, options)

    async def spoken(self, text: str, options: VoiceOptions, rate_hz: int) -> Samples:
        """The text as it would be said, int16 [n] at this rate. Raises: as the voice."""
        async with asyncio.timeout(DEADLINE_S):
            said = spoken(self.live, text, options, self.new_stream_id())
            pieces = tuple([piece async for piece in said])
        return KeptLine(self.live.rate_hz, pieces).sound(rate_hz)[0]
