"""The recognizer in a worker: gateway messages to an ``audio`` recognizer and its events back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from audio import stream as audio_stream
from audio.errors import AudioError
from audio.frames import BYTES_PER_SAMPLE, RECOGNIZER_HZ
from audio.stream import RecognizerModel
from voiceloop.backends import Partial, RecognizerOptions, Transcript, Word
from voiceloop.workers.messages import (
    FeedAudio,
    Finalize,
    Flush,
    OpenRecognizer,
    SetOptions,
    StreamEvent,
    StreamFailed,
    ToRole,
)
from voiceloop.workers.role import RoleError, StreamError, model_name

WARM_UP_STREAM = "warm_up"
WARM_UP_STEPS = 1000  # far more than 0.3 s of audio takes; a model that is never done must not hang

# name in a preset -> where the class stands
MODELS = {
    "pocketsphinx": "audio.asr.pocketsphinx:PocketsphinxRecognizer",
    "whisper": "audio.asr.whisper:WhisperRecognizer",
    "moonshine": "audio.asr.moonshine:MoonshineRecognizer",
    "transducer": "audio.asr.transducer:TransducerRecognizer",
}


class RecognizerRole:
    """One recognizer for every caller of this worker."""

    rate_hz = 0

    def __init__(self, model: RecognizerModel, detail: str) -> None:
        self.detail = detail
        self._model = model
        # stream -> samples fed so far, and where each segment began (a call has a few hundred)
        self._n_fed: dict[str, int] = {}
        self._segment_starts: dict[str, list[int]] = {}

    def warm_up(self) -> None:
        noise = np.random.default_rng(0).normal(0, 200, RECOGNIZER_HZ * 3 // 10).astype(np.int16)
        self._model.open(WARM_UP_STREAM, audio_stream.RecognizerOptions())
        self._model.feed(WARM_UP_STREAM, noise)
        self._model.finalize(WARM_UP_STREAM)
        for _ in range(WARM_UP_STEPS):
            events = self._model.step()
            failed = [e for e in events if isinstance(e, audio_stream.StreamFailed)]
            if failed:
                raise RoleError(f"the recognizer failed its first utterance: {failed[0].message}")
            if any(isinstance(event, audio_stream.Transcript) for event in events):
                break
        else:
            raise RoleError("expected a transcript of the first utterance, found none")
        self._model.close(WARM_UP_STREAM)

    def receive(self, message: ToRole) -> None:
        try:
            match message:
                case OpenRecognizer():
                    self._model.open(message.stream_id, _options(message.options))
                    self._n_fed[message.stream_id] = 0
                    self._segment_starts[message.stream_id] = [0]
                case FeedAudio():
                    if len(message.samples) % BYTES_PER_SAMPLE:
                        raise StreamError("expected whole 16-bit samples, found an odd byte count")
                    samples = np.frombuffer(message.samples, dtype="<i2").astype(np.int16)
                    self._model.feed(message.stream_id, samples)
                    self._n_fed[message.stream_id] += len(samples)
                case Flush():
                    self._model.flush(message.stream_id)
                case Finalize():
                    self._model.finalize(message.stream_id)
                    starts = self._segment_starts[message.stream_id]
                    starts.append(self._n_fed[message.stream_id])
                case SetOptions():
                    self._model.set_options(message.stream_id, _options(message.options))
                case _:
                    raise StreamError(f"expected a recognizer message, found {message}")
        except AudioError as error:
            raise StreamError(str(error)) from error

    def close(self, stream_id: str) -> None:
        self._model.close(stream_id)
        self._n_fed.pop(stream_id, None)
        self._segment_starts.pop(stream_id, None)

    def has_work(self) -> bool:
        return self._model.has_work()

    def step(
        self, interrupted: Callable[[], bool] | None = None
    ) -> Sequence[StreamEvent | StreamFailed]:
        return [self._message(event) for event in self._model.step()]

    def _message(self, event: audio_stream.Event) -> StreamEvent | StreamFailed:
        match event:
            case audio_stream.Partial():
                partial = Partial(
                    event.segment, event.stable_words, event.unstable_words, event.flushed
                )
                return StreamEvent(event.stream_id, partial)
            case audio_stream.Transcript():
                # The model counts from the stream's first sample, the gateway from the segment's.
                start = self._segment_starts[event.stream_id][event.segment]
                words = tuple(_word(word, 1000 * start / RECOGNIZER_HZ) for word in event.words)
                return StreamEvent(event.stream_id, Transcript(event.segment, words))
            case audio_stream.StreamFailed():
                return StreamFailed(event.stream_id, event.message, event.retryable)
            case _:
                raise TypeError(f"expected a recognizer's event, found {event}")


def _word(word: audio_stream.Word, segment_start_ms: float) -> Word:
    start_ms, end_ms = word.start_ms - segment_start_ms, word.end_ms - segment_start_ms
    return Word(word.text, max(0.0, start_ms), max(0.0, end_ms))


def _options(options: RecognizerOptions) -> audio_stream.RecognizerOptions:
    return audio_stream.RecognizerOptions(options.language, options.hotwords, options.context)


def load(model: str = "pocketsphinx", source: str | None = None, **options: Any) -> RecognizerRole:
    """Build the named recognizer: ``source`` is what it reads (a folder or a name of its own).

    Raises:
        RoleError: the name is unknown, or the recognizer cannot be loaded.
    """
    place = MODELS.get(model)
    if place is None:
        raise RoleError(f"expected a recognizer among {', '.join(MODELS)}, found {model!r}")
    module, _, name = place.partition(":")
    sources = () if source is None else (source,)
    try:
        built = getattr(import_module(module), name)(*sources, **options)
    except AudioError as error:
        raise RoleError(f"the recognizer {model} cannot be loaded: {error}") from error
    return RecognizerRole(built, model if source is None else f"{model} {model_name(source)}")
