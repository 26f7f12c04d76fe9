"""``POST /v1/audio/speech``: text to speech, sent while it is spoken (``flac``: when it was).

Owns the route and the five forms of its answer. ``stream_format: "sse"`` is answered with the audio
itself under its own type: clients go by the type.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Literal
from uuid import uuid4

import msgspec
import numpy as np
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from audio.resample import Resampler
from voiceloop.backends import Backends, Speech, VoiceOptions
from voiceloop.http.body import checked, read_json
from voiceloop.http.compressed_audio import ENCODINGS, Encoder
from voiceloop.http.gate import MAX_JSON_BYTES, Door, Stream, started, unless_left
from voiceloop.realtime.session_update import read_voice
from voiceloop.realtime.settings import SessionSettings

RATE_HZ = 24_000  # of "pcm", by OpenAI's definition
PIECE_BYTES = 65_536  # of a file that is sent when it is whole: each has its own time to be read
UNKNOWN_BYTES = 0xFFFFFFFF  # a WAV whose length is not known when it starts


Format = Literal["mp3", "opus", "flac", "wav", "pcm"]


class VoiceId(msgspec.Struct, frozen=True):
    id: str


class SpeechBody(msgspec.Struct, frozen=True):
    input: Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"\S")]
    voice: str | VoiceId | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4)] = 1.0
    response_format: Format = "mp3"

    def options(self, settings: SessionSettings) -> VoiceOptions:
        """settings: know what voice a name means. Raises: InvalidRequest."""
        asked = self.voice.id if isinstance(self.voice, VoiceId) else self.voice
        voice = settings.voice if asked is None else settings.real_voice(read_voice(asked, "voice"))
        return VoiceOptions(voice, self.speed, is_batch=True)


def speech_routes(door: Door, settings: SessionSettings) -> list[Route]:
    async def speech(request: Request) -> Response:
        asked = checked(await read_json(request, MAX_JSON_BYTES), SpeechBody)
        options, models = asked.options(settings), door.models()
        models.capabilities.check_voice(options.voice, "voice")
        pcm = _spoken(models, asked.input, options)
        match asked.response_format:
            case "pcm":
                return Stream(await started(pcm), "audio/pcm")
            case "wav":
                return Stream(await started(_as_wav(pcm)), "audio/wav")
            case name:
                return await unless_left(request, compressed(pcm, name))

    async def compressed(pcm: AsyncGenerator[bytes, None], name: str) -> Response:
        return Stream(await started(_encoded(pcm, name)), ENCODINGS[name][2])

    return [Route("/v1/audio/speech", door.guard(speech), methods=["POST"])]


async def _spoken(
    backends: Backends, text: str, options: VoiceOptions
) -> AsyncGenerator[bytes, None]:
    """PCM16 mono at 24 kHz as the voice makes it."""
    stream = await backends.voice.open(f"speech-{uuid4().hex}", options)
    resampler: Resampler | None = None
    try:
        stream.feed(text)
        stream.finish()
        async with aclosing(stream.events()) as events:  # type: ignore[type-var]
            async for event in events:
                if not isinstance(event, Speech):
                    break
                if event.rate_hz == RATE_HZ:
                    yield event.samples
                    continue
                if resampler is None:
                    resampler = Resampler(event.rate_hz, RATE_HZ)
                yield resampler.push(np.frombuffer(event.samples, "<i2")).tobytes()
        if resampler is not None:
            yield resampler.flush().tobytes()
    finally:
        await stream.close()


async def _as_wav(pcm: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The header goes with the first audio, so that a failure still finds its status."""
    header: bytes = struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF", UNKNOWN_BYTES, b"WAVE", b"fmt ", 16, 1, 1, RATE_HZ, RATE_HZ * 2, 2, 16,
        b"data", UNKNOWN_BYTES,
    )  # fmt: skip
    async with aclosing(pcm):
        async for piece in pcm:
            yield header + piece
            header = b""
    if header:
        yield header


async def _encoded(pcm: AsyncGenerator[bytes, None], name: str) -> AsyncGenerator[bytes, None]:
    encoder = await asyncio.to_thread(Encoder, name, RATE_HZ)
    async with aclosing(pcm):
        async for piece in pcm:
            if data := await asyncio.to_thread(encoder.push, piece):
                yield data
    rest = await asyncio.to_thread(encoder.finish)
    for begin in range(0, max(1, len(rest)), PIECE_BYTES):
        yield rest[begin : begin + PIECE_BYTES]
