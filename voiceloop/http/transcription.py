"""``POST /v1/audio/transcriptions``: a file of speech to its words, with their times if wanted.

Owns the route: the upload within its bounds, the cut into segments at pauses, and the forms of the
answer. A segment is fed and finished before the next, so that one file never fills a worker's queue
ahead of the calls.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, cast
from uuid import uuid4

import numpy as np
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from audio.frames import RECOGNIZER_HZ, Samples
from voiceloop.backends import (
    Backends,
    RecognizerOptions,
    RecognizerStream,
    Transcript,
    Word,
)
from voiceloop.errors import BackendError, InvalidRequest, expected
from voiceloop.http.body import pieces_of
from voiceloop.http.decoder import decode_upload
from voiceloop.http.gate import Door, unless_left
from voiceloop.realtime.settings import Json

# It warns of each byte of a header that it does not like, which strangers send.
logging.getLogger("python_multipart").setLevel(logging.ERROR)

MAX_UPLOAD_BYTES = 25 * 1024 * 1024  # OpenAI's own limit
MAX_PROMPT_CHARACTERS = 4096
FORMATS = ("json", "text", "verbose_json")


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    file: BinaryIO
    options: RecognizerOptions
    response_format: str
    wants_words: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """Words of one stretch of speech; their times count from the start of the file."""

    start_ms: float
    end_ms: float
    words: tuple[Word, ...]

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)


def transcription_routes(door: Door, *, max_s: float, language: str) -> list[Route]:
    """Args:
    max_s: the longest audio that is taken. language: what is spoken where the request is silent.
    """

    async def transcriptions(request: Request) -> Response:
        async with _read_form(request, language) as asked:
            models = door.models()
            models.capabilities.check_language(asked.options.language, "language")
            return await unless_left(request, transcribed(asked, models))

    async def transcribed(asked: TranscriptionRequest, models: Backends) -> Response:
        samples, spans = await decode_upload(asked.file, max_s)
        segments = await _recognize(models, asked.options, samples, spans)
        return _answer(asked, segments, len(samples) / RECOGNIZER_HZ)

    handler = door.guard(transcriptions)
    return [Route("/v1/audio/transcriptions", handler, methods=["POST"])]


@asynccontextmanager
async def _read_form(request: Request, language: str) -> AsyncIterator[TranscriptionRequest]:
    """The upload lies in a file until it is left. Raises: InvalidRequest, FrameTooLarge."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise InvalidRequest("expected multipart/form-data, found another content type")
    pieces = pieces_of(request, MAX_UPLOAD_BYTES, "file")
    try:
        form = await MultiPartParser(request.headers, pieces, max_files=1).parse()
    except (MultiPartException, KeyError) as error:
        raise InvalidRequest(f"expected a multipart form, found that {error}") from None
    try:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise expected("file", "an uploaded file", file)
        response_format = _field(form, "response_format", "json")
        if response_format not in FORMATS:
            raise expected("response_format", ", ".join(FORMATS), response_format)
        options = RecognizerOptions(
            language=_field(form, "language", language)[:16],
            context=_field(form, "prompt", "")[:MAX_PROMPT_CHARACTERS],
            is_batch=True,
        )
        kinds = form.getlist("timestamp_granularities[]")
        spooled = cast("SpooledTemporaryFile[bytes]", file.file)
        spooled.rollover()  # to where another process can read it; most of it lies there already
        upload = cast(BinaryIO, spooled)
        yield TranscriptionRequest(upload, options, response_format, "word" in kinds)
    finally:
        await form.close()


def _field(form: FormData, name: str, default: str) -> str:
    value: Any = form.get(name, default)
    if not isinstance(value, str):
        raise expected(name, "a text", value)
    return value or default


async def _recognize(
    backends: Backends,
    options: RecognizerOptions,
    samples: Samples,
    spans: list[tuple[int, int]],
) -> list[Segment]:
    """One stream for the file, so that what it learns of the voice carries over."""
    if not spans:
        return []
    stream = await backends.recognizer.open(f"file-{uuid4().hex}", options)
    try:
        async with aclosing(stream.events()) as events:  # type: ignore[type-var]
            return [
                await _segment(stream, events, samples[first:last], 1000 * first / RECOGNIZER_HZ)
                for first, last in spans
            ]
    finally:
        await stream.close()


async def _segment(
    stream: RecognizerStream, events: Any, samples: Samples, start_ms: float
) -> Segment:
    stream.feed(samples.astype("<i2").tobytes())
    stream.finalize()
    async for event in events:
        if isinstance(event, Transcript):
            words = tuple(
                Word(word.text, start_ms + word.start_ms, start_ms + word.end_ms)
                for word in event.words
            )
            return Segment(start_ms, start_ms + 1000 * len(samples) / RECOGNIZER_HZ, words)
    raise BackendError("The recognizer closed before its transcript.")


def _answer(asked: TranscriptionRequest, segments: list[Segment], seconds: float) -> Response:
    text = " ".join(segment.text for segment in segments if segment.words)
    if asked.response_format == "text":
        return PlainTextResponse(text + "\n")
    body: Json = {"text": text, "usage": {"type": "duration", "seconds": int(np.ceil(seconds))}}
    if asked.response_format == "verbose_json":
        body |= {
            "task": "transcribe",
            "language": asked.options.language,
            "duration": round(seconds, 3),
            "segments": [_segment_json(i, segment) for i, segment in enumerate(segments)],
        }
        if asked.wants_words:
            body["words"] = [
                {"word": word.text, "start": _seconds(word.start_ms), "end": _seconds(word.end_ms)}
                for segment in segments
                for word in segment.words
            ]
    return JSONResponse(body)


def _segment_json(index: int, segment: Segment) -> Json:
    """The recognizer gives no probabilities, so none are told."""
    start, end = _seconds(segment.start_ms), _seconds(segment.end_ms)
    return {"id": index, "start": start, "end": end, "text": segment.text}


def _seconds(ms: float) -> float:
    return round(ms / 1000, 3)
