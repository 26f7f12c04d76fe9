"""The voice in a worker: gateway messages to an ``audio`` voice and its events back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from audio import stream as audio_stream
from audio.errors import AudioError
from audio.stream import VoiceModel
from voiceloop.backends import Speech, SpeechEnd, SpokenWord, VoiceOptions
from voiceloop.workers.messages import (
    FeedText,
    FinishText,
    OpenVoice,
    StreamEvent,
    StreamFailed,
    ToRole,
)
from voiceloop.workers.role import RoleError, StreamError, model_name

WARM_UP_STREAM = "warm_up"
WARM_UP_STEPS = 1000  # far more than one word takes; a model that is never done must not hang

# name in a preset -> where the class stands
MODELS = {
    "espeak": "audio.tts.espeak:EspeakVoice",
    "hibari": "audio.tts.hibari:HibariVoice",
    "vits": "audio.tts.vits:VitsVoice",
    "pocket": "audio.tts.pocket:PocketVoice",
    "phonon": "audio.tts.phonon:PhononVoice",
    "kokoro": "audio.tts.kokoro:KokoroVoice",
}


class VoiceRole:
    """One voice model for every reply of this worker."""

    def __init__(self, model: VoiceModel, detail: str) -> None:
        self.rate_hz = model.rate_hz
        self.detail = detail
        self._model = model

    def warm_up(self) -> None:
        self._model.open(WARM_UP_STREAM, audio_stream.VoiceOptions())
        self._model.feed(WARM_UP_STREAM, "Hello.")
        self._model.finish(WARM_UP_STREAM)
        for _ in range(WARM_UP_STEPS):
            events = self._model.step()
            failed = [e for e in events if isinstance(e, audio_stream.StreamFailed)]
            if failed:
                raise RoleError(f"the voice failed its first word: {failed[0].message}")
            if any(isinstance(event, audio_stream.SpeechEnd) for event in events):
                break
        else:
            raise RoleError("expected the first word to be spoken, found no end of it")
        self._model.close(WARM_UP_STREAM)

    def receive(self, message: ToRole) -> None:
        try:
            match message:
                case OpenVoice():
                    self._model.open(message.stream_id, _options(message.options))
                case FeedText():
                    self._model.feed(message.stream_id, message.text)
                case FinishText():
                    self._model.finish(message.stream_id)
                case _:
                    raise StreamError(f"expected a voice message, found {message}")
        except AudioError as error:
            raise StreamError(str(error)) from error

    def close(self, stream_id: str) -> None:
        self._model.close(stream_id)

    def has_work(self) -> bool:
        return self._model.has_work()

    def step(
        self, interrupted: Callable[[], bool] | None = None
    ) -> Sequence[StreamEvent | StreamFailed]:
        return [_message(event) for event in self._model.step()]


def _options(options: VoiceOptions) -> audio_stream.VoiceOptions:
    voice = "" if options.voice == "default" else options.voice
    return audio_stream.VoiceOptions(voice=voice, speed=options.speed)


def _message(event: audio_stream.Event) -> StreamEvent | StreamFailed:
    match event:
        case audio_stream.Speech():
            words = tuple(
                SpokenWord(word.text, word.start_ms, word.end_ms, word.text_end)
                for word in event.words
            )
            speech = Speech(event.samples.astype("<i2").tobytes(), event.rate_hz, words)
            return StreamEvent(event.stream_id, speech)
        case audio_stream.SpeechEnd():
            return StreamEvent(event.stream_id, SpeechEnd(event.n_samples))
        case audio_stream.StreamFailed():
            return StreamFailed(event.stream_id, event.message, event.retryable)
        case _:
            raise TypeError(f"expected a voice's event, found {event}")


def load(model: str = "espeak", source: str | None = None, **options: Any) -> VoiceRole:
    """Build the named voice: ``source`` is what it reads (a folder or a name of its own).

    Raises:
        RoleError: the name is unknown, or the voice cannot be loaded.
    """
    place = MODELS.get(model)
    if place is None:
        raise RoleError(f"expected a voice among {', '.join(MODELS)}, found {model!r}")
    module, _, name = place.partition(":")
    sources = () if source is None else (source,)
    try:
        built = getattr(import_module(module), name)(*sources, **options)
    except AudioError as error:
        raise RoleError(f"the voice {model} cannot be loaded: {error}") from error
    return VoiceRole(built, model if source is None else f"{model} {model_name(source)}")
