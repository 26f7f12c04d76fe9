"""The speech models in a worker: gateway messages to an ``audio`` model and its events back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Generic, TypeVar

import numpy as np

from audio import stream as audio_stream
from audio.errors import AudioError
from audio.frames import BYTES_PER_SAMPLE, RECOGNIZER_HZ
from audio.stream import RecognizerModel, VoiceModel
from voiceloop.backends import (
    Partial,
    RecognizerOptions,
    Speech,
    SpeechEnd,
    SpokenWord,
    Transcript,
    VoiceOptions,
    Word,
)
from voiceloop.workers.messages import (
    Asked,
    FeedAudio,
    FeedText,
    Finalize,
    FinishText,
    Flush,
    OpenRecognizer,
    OpenVoice,
    SetOptions,
    StreamEvent,
    StreamFailed,
    StreamOutput,
    ToRole,
)
from voiceloop.workers.roles.role import RoleError, StreamError, model_name

WARM_UP_STREAM = "warm_up"
# Far more than 0.3 s of audio or one word takes; a model that is never done must not hang.
WARM_UP_STEPS = 1000

# name in a preset -> where the class stands
RECOGNIZERS = {
    "whisper": "audio.asr.whisper:WhisperRecognizer",
    "moonshine-onnx": "audio.asr.moonshine.onnx_network:MoonshineOnnxRecognizer",
    "transducer": "audio.asr.transducer:TransducerRecognizer",
}
VOICES = {
    "espeak": "audio.tts.espeak:EspeakVoice",
    "hibari": "audio.tts.hibari:HibariVoice",
    "kokoro": "audio.tts.kokoro:KokoroVoice",
}

ModelT = TypeVar("ModelT", bound=RecognizerModel | VoiceModel)


class SpeechRole(ABC, Generic[ModelT]):
    """One model for every stream of this worker."""

    rate_hz = 0
    tokenizer = b""
    tokens = ""
    served: Mapping[str, str] = {}
    name: str  # in a sentence, as is what it is tried with
    trial: str

    def __init__(self, model: ModelT, detail: str) -> None:
        self.detail = detail
        self._model = model

    def warm_up(self) -> None:
        self._begin_warm_up()
        for _ in range(WARM_UP_STEPS):
            for event in self._model.step():
                if isinstance(event, audio_stream.StreamFailed):
                    raise RoleError(f"{self.name} failed its first {self.trial}: {event.message}")
                if isinstance(event, audio_stream.Transcript | audio_stream.SpeechEnd):
                    self._model.close(WARM_UP_STREAM)
                    return
        raise RoleError(f"expected the end of {self.name}'s first {self.trial}, found none")

    @abstractmethod
    def _begin_warm_up(self) -> None:
        """Feed one short utterance, to its end."""

    def receive(self, message: ToRole) -> None:
        try:
            self._receive(message)
        except AudioError as error:
            raise StreamError(str(error)) from error

    @abstractmethod
    def _receive(self, message: ToRole) -> None: ...

    def close(self, stream_id: str) -> None:
        self._model.close(stream_id)

    def has_work(self) -> bool:
        return self._model.has_work()

    def totals(self) -> Mapping[str, float]:
        return {}  # speech models count nothing

    def step(
        self, asked: Callable[[], Sequence[Asked]] | None = None
    ) -> Sequence[StreamEvent | StreamFailed]:
        return [self._message(event) for event in self._model.step()]

    def _message(self, event: audio_stream.Event) -> StreamEvent | StreamFailed:
        if isinstance(event, audio_stream.StreamFailed):
            return StreamFailed(event.stream_id, event.message, event.retryable)
        return StreamEvent(event.stream_id, self._output(event))

    @abstractmethod
    def _output(self, event: audio_stream.Event) -> StreamOutput:
        """The model's event as the gateway knows it."""


class RecognizerRole(SpeechRole[RecognizerModel]):
    name, trial = "the recognizer", "utterance"

    def __init__(self, model: RecognizerModel, detail: str) -> None:
        super().__init__(model, detail)
        # stream -> samples fed so far, and where each segment began (a call has a few hundred)
        self._n_fed: dict[str, int] = {}
        self._segment_starts: dict[str, list[int]] = {}

    def _begin_warm_up(self) -> None:
        noise = np.random.default_rng(0).normal(0, 200, RECOGNIZER_HZ * 3 // 10).astype(np.int16)
        self._model.open(WARM_UP_STREAM, audio_stream.RecognizerOptions())
        self._model.feed(WARM_UP_STREAM, noise)
        self._model.finalize(WARM_UP_STREAM)

    def _receive(self, message: ToRole) -> None:
        match message:
            case OpenRecognizer():
                self._model.open(message.stream_id, _recognizer_options(message.options))
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
                self._model.set_options(message.stream_id, _recognizer_options(message.options))
            case _:
                raise StreamError(f"expected a recognizer message, found {message}")

    def close(self, stream_id: str) -> None:
        super().close(stream_id)
        self._n_fed.pop(stream_id, None)
        self._segment_starts.pop(stream_id, None)

    def _output(self, event: audio_stream.Event) -> StreamOutput:
        match event:
            case audio_stream.Partial():
                return Partial(
                    event.segment,
                    event.stable_words,
                    event.unstable_words,
                    event.flushed,
                    event.p_voice,
                    event.for_agent,
                )
            case audio_stream.Transcript():
                # The model counts from the stream's first sample, the gateway from the segment's.
                start = self._segment_starts[event.stream_id][event.segment]
                words = tuple(_word(word, 1000 * start / RECOGNIZER_HZ) for word in event.words)
                return Transcript(event.segment, words)
        raise TypeError(f"expected a recognizer's event, found {event}")


class VoiceRole(SpeechRole[VoiceModel]):
    name, trial = "the voice", "word"

    def __init__(self, model: VoiceModel, detail: str) -> None:
        super().__init__(model, detail)
        self.rate_hz = model.rate_hz

    def _begin_warm_up(self) -> None:
        self._model.open(WARM_UP_STREAM, audio_stream.VoiceOptions())
        self._model.feed(WARM_UP_STREAM, "Hello.")
        self._model.finish(WARM_UP_STREAM)

    def _receive(self, message: ToRole) -> None:
        match message:
            case OpenVoice():
                self._model.open(message.stream_id, _voice_options(message.options))
            case FeedText():
                self._model.feed(message.stream_id, message.text)
            case FinishText():
                self._model.finish(message.stream_id)
            case _:
                raise StreamError(f"expected a voice message, found {message}")

    def _output(self, event: audio_stream.Event) -> StreamOutput:
        match event:
            case audio_stream.Speech():
                words = tuple(
                    SpokenWord(word.text, word.start_ms, word.end_ms, word.text_end)
                    for word in event.words
                )
                return Speech(event.samples.astype("<i2").tobytes(), event.rate_hz, words)
            case audio_stream.SpeechEnd():
                return SpeechEnd(event.n_samples)
        raise TypeError(f"expected a voice's event, found {event}")


def _word(word: audio_stream.Word, segment_start_ms: float) -> Word:
    start_ms, end_ms = word.start_ms - segment_start_ms, word.end_ms - segment_start_ms
    return Word(word.text, max(0.0, start_ms), max(0.0, end_ms))


def _recognizer_options(options: RecognizerOptions) -> audio_stream.RecognizerOptions:
    return audio_stream.RecognizerOptions(
        options.language, options.hotwords, options.context, options.n_digits
    )


def _voice_options(options: VoiceOptions) -> audio_stream.VoiceOptions:
    voice = "" if options.voice == "default" else options.voice
    return audio_stream.VoiceOptions(voice=voice, speed=options.speed)


def load_recognizer(
    model: str = "moonshine-onnx", source: str | None = None, **options: Any
) -> RecognizerRole:
    """As ``_load``."""
    return RecognizerRole(*_load("recognizer", RECOGNIZERS, model, source, options))


def load_voice(model: str = "espeak", source: str | None = None, **options: Any) -> VoiceRole:
    """As ``_load``."""
    return VoiceRole(*_load("voice", VOICES, model, source, options))


def _load(
    kind: str, places: Mapping[str, str], model: str, source: str | None, options: dict[str, Any]
) -> tuple[Any, str]:
    """The named model, and what to call it: ``source`` is what it reads (a folder or a name).

    Raises:
        RoleError: the name is unknown, or the model cannot be loaded.
    """
    place = places.get(model)
    if place is None:
        raise RoleError(f"expected a {kind} among {', '.join(places)}, found {model!r}")
    module, _, name = place.partition(":")
    sources = () if source is None else (source,)
    try:
        built = getattr(import_module(module), name)(*sources, **options)
    except AudioError as error:
        raise RoleError(f"the {kind} {model} cannot be loaded: {error}") from error
    return built, model if source is None else f"{model} {model_name(source)}"
