"""``POST /v1/audio/transcriptions``: a file of speech to its words, with their times if wanted.

Owns the route: the upload within its bounds, the cut into segments at pauses, and the forms of the
answer. A segment is fed and finished before the next, so that one file never fills a worker's queue
ahead of the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from audio.frames import RECOGNIZER_HZ, Samples
from audio.vad import Vad
from voiceloop.backends import (
    Backends,
    RecognizerOptions,
    RecognizerStream,
    Transcript,
    Word,
)
from voiceloop.errors import BackendError, FrameTooLarge, InvalidRequest, expected
from voiceloop.http.decoder import decode_upload
from voiceloop.http.gate import Door
from voiceloop.realtime.settings import Json

MAX_UPLOAD_BYTES = 25 * 1024 * 1024  # OpenAI's own limit
MAX_PROMPT_CHARACTERS = 4096
FORMATS = ("json", "text", "verbose_json")

SPEECH_PROBABILITY = 0.4
PAUSE_MS = 600.0  # a cut there falls between sentences rather than within a word
PADDING_MS = 300.0  # kept of the quiet on both sides
MAX_SEGMENT_MS = 20_000.0


@dataclass(frozen=True, slots=True)
class TranscriptionRequest:
    data: bytes
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


def transcription_routes(door: Door, *, max_s: float, language: str = "en") -> list[Route]:
    """Args:
    max_s: the longest audio that is taken. language: what is spoken where the request is silent.
    """
    # A file at a time is cut: each thread that does holds up the event loop for the interpreter.
    cutting = asyncio.Lock()

    async def transcriptions(request: Request) -> Response:
        asked = await _read_form(request, language)
        models = door.models()
        models.capabilities.check_language(asked.options.language, "language")
        samples = await decode_upload(asked.data, max_s)
        async with cutting:
            spans = await asyncio.to_thread(speech_spans, samples)
        segments = await _recognize(models, asked.options, samples, spans)
        return _answer(asked, segments, len(samples) / RECOGNIZER_HZ)

    handler = door.guard(transcriptions)
    return [Route("/v1/audio/transcriptions", handler, methods=["POST"])]


async def _read_form(request: Request, language: str) -> TranscriptionRequest:
    """Raises: InvalidRequest, FrameTooLarge."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise InvalidRequest("expected multipart/form-data, found another content type")
    try:
        form = await MultiPartParser(request.headers, _bounded(request), max_files=1).parse()
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
        return TranscriptionRequest(await file.read(), options, response_format, "word" in kinds)
    finally:
        await form.close()


async def _bounded(request: Request) -> AsyncGenerator[bytes, None]:
    """The body's pieces, as long as they are not too many."""
    n_bytes = 0
    async for piece in request.stream():
        n_bytes += len(piece)
        if n_bytes > MAX_UPLOAD_BYTES:
            raise FrameTooLarge(
                f"expected an upload of at most {MAX_UPLOAD_BYTES} bytes, found more", param="file"
            )
        yield piece


def _field(form: FormData, name: str, default: str) -> str:
    value: Any = form.get(name, default)
    if not isinstance(value, str):
        raise expected(name, "a text", value)
    return value or default


def speech_spans(samples: Samples) -> list[tuple[int, int]]:
    """Stretches of speech as (first, last) samples, cut at pauses and before they grow long.

    Blocks for 0.1 ms a window of 32 ms: call it from a thread.
    """
    pause, padding = _n(PAUSE_MS), _n(PADDING_MS)
    spans: list[tuple[int, int]] = []
    start = end = -1
    position = 0
    for window in Vad().feed(samples):
        first, position = position, window.end_position
        is_speech = window.probability >= SPEECH_PROBABILITY
        if start >= 0 and (position - end > pause or position - start > _n(MAX_SEGMENT_MS)):
            spans.append((start, end))
            start = -1
        if is_speech:
            start = first if start < 0 else start
            end = position
    if start >= 0:
        spans.append((start, end))
    # Padding may reach into the pause, but not over the neighbour's speech.
    edges = [0, *((a[1] + b[0]) // 2 for a, b in zip(spans, spans[1:], strict=False)), len(samples)]
    return [
        (max(edges[i], first - padding), min(edges[i + 1], last + padding))
        for i, (first, last) in enumerate(spans)
    ]


def _n(ms: float) -> int:
    return int(ms * RECOGNIZER_HZ / 1000)


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
    raise BackendError("expected a transcript, found that the recognizer's stream had ended")


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
