"""The recognizer's and the voice's roles, on audio models that only record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest

from audio import stream as audio_stream
from audio.errors import AudioError
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
)
from voiceloop.workers.roles.role import RoleError, StreamError
from voiceloop.workers.roles.speech import RecognizerRole, VoiceRole, load_recognizer, load_voice

SECOND = bytes(32_000)


class RecordingModel:
    """Keeps each call; ``due`` is what the next step answers."""

    rate_hz = 22_050

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.due: list[audio_stream.Event] = []
        self.refuses = ""

    def _record(self, *call: object) -> None:
        if call[0] == self.refuses:
            raise AudioError(f"expected anything else, found {call[0]}")
        self.calls.append(call)

    def open(self, stream_id: str, options: object) -> None:
        self._record("open", stream_id, options)

    def feed(self, stream_id: str, content: object) -> None:
        self._record("feed", len(content) if isinstance(content, np.ndarray) else content)

    def flush(self, stream_id: str) -> None:
        self._record("flush")

    def finalize(self, stream_id: str) -> None:
        self._record("finalize")

    def finish(self, stream_id: str) -> None:
        self._record("finish")

    def set_options(self, stream_id: str, options: object) -> None:
        self._record("set_options", options)

    def close(self, stream_id: str) -> None:
        self._record("close", stream_id)

    def has_work(self) -> bool:
        return bool(self.due)

    def step(self) -> Sequence[audio_stream.Event]:
        due, self.due = self.due, []
        return due


@pytest.fixture
def model() -> RecordingModel:
    return RecordingModel()


@pytest.fixture
def recognizer(model: RecordingModel) -> RecognizerRole:
    return RecognizerRole(cast(RecognizerModel, model), "recording")


@pytest.fixture
def voice(model: RecordingModel) -> VoiceRole:
    return VoiceRole(cast(VoiceModel, model), "recording")


def test_recognizer_messages_become_calls(
    model: RecordingModel, recognizer: RecognizerRole
) -> None:
    options = RecognizerOptions(hotwords=("Zoe",), context="a pizzeria", n_digits=10)
    recognizer.receive(OpenRecognizer("s", RecognizerOptions()))
    recognizer.receive(FeedAudio("s", SECOND))
    recognizer.receive(SetOptions("s", options))
    recognizer.receive(Flush("s"))
    recognizer.receive(Finalize("s"))
    recognizer.close("s")
    theirs = audio_stream.RecognizerOptions(hotwords=("Zoe",), context="a pizzeria")
    assert model.calls == [
        ("open", "s", audio_stream.RecognizerOptions()),
        ("feed", 16_000),
        ("set_options", theirs),
        ("flush",),
        ("finalize",),
        ("close", "s"),
    ]
    assert model.calls[2][1].n_digits == 10  # which does not count where options are compared


def test_word_times_count_from_their_own_segment(
    model: RecordingModel, recognizer: RecognizerRole
) -> None:
    recognizer.receive(OpenRecognizer("s", RecognizerOptions()))
    recognizer.receive(FeedAudio("s", SECOND))
    recognizer.receive(Finalize("s"))
    recognizer.receive(FeedAudio("s", SECOND))
    recognizer.receive(Finalize("s"))
    heard = audio_stream.Word("hello", 1200.0, 1500.0)
    model.due = [
        audio_stream.Partial("s", 1, ("hel",), ("lo",), True, -1.5, 2.5),
        audio_stream.Transcript("s", 1, (heard,)),
        audio_stream.StreamFailed("s", "no more", False),
    ]
    assert recognizer.step() == [
        StreamEvent("s", Partial(1, ("hel",), ("lo",), True, -1.5, 2.5)),
        StreamEvent("s", Transcript(1, (Word("hello", 200.0, 500.0),))),
        StreamFailed("s", "no more", False),
    ]


def test_half_a_sample_is_refused(recognizer: RecognizerRole) -> None:
    recognizer.receive(OpenRecognizer("s", RecognizerOptions()))
    with pytest.raises(StreamError, match="odd byte count"):
        recognizer.receive(FeedAudio("s", b"\0\0\0"))


@pytest.mark.parametrize("call", ["open", "feed", "flush"])
def test_what_the_model_refuses_fails_that_stream(
    model: RecordingModel, recognizer: RecognizerRole, call: str
) -> None:
    model.refuses = call
    with pytest.raises(StreamError, match=f"found {call}"):
        recognizer.receive(OpenRecognizer("s", RecognizerOptions()))
        recognizer.receive(FeedAudio("s", SECOND))
        recognizer.receive(Flush("s"))


def test_voice_messages_become_calls(model: RecordingModel, voice: VoiceRole) -> None:
    voice.receive(OpenVoice("s", VoiceOptions()))
    voice.receive(OpenVoice("t", VoiceOptions("echo", 1.5)))
    voice.receive(FeedText("s", "hi"))
    voice.receive(FinishText("s"))
    assert model.calls == [
        ("open", "s", audio_stream.VoiceOptions("", 1.0)),
        ("open", "t", audio_stream.VoiceOptions("echo", 1.5)),
        ("feed", "hi"),
        ("finish",),
    ]
    assert voice.rate_hz == 22_050


def test_speech_travels_as_little_endian_bytes(model: RecordingModel, voice: VoiceRole) -> None:
    voice.receive(OpenVoice("s", VoiceOptions()))
    word = audio_stream.SpokenWord("hi", 0.0, 90.0, 2)
    samples = np.array([1, -2], np.int16)
    model.due = [
        audio_stream.Speech("s", samples, 22_050, (word,)),
        audio_stream.SpeechEnd("s", 2),
    ]
    assert voice.step() == [
        StreamEvent("s", Speech(b"\1\0\xfe\xff", 22_050, (SpokenWord("hi", 0.0, 90.0, 2),))),
        StreamEvent("s", SpeechEnd(2)),
    ]


def test_a_message_for_another_role_is_refused(
    recognizer: RecognizerRole, voice: VoiceRole
) -> None:
    with pytest.raises(StreamError, match="expected a recognizer message"):
        recognizer.receive(FinishText("s"))
    with pytest.raises(StreamError, match="expected a voice message"):
        voice.receive(Flush("s"))


@pytest.mark.parametrize("load", [load_recognizer, load_voice])
def test_a_model_nobody_knows_is_named(load: object) -> None:
    with pytest.raises(RoleError, match="found 'parrot'"):
        load("parrot")  # type: ignore[operator]


def test_a_model_that_cannot_be_loaded_says_why() -> None:
    with pytest.raises(RoleError, match=r"transducer cannot be loaded: expected"):
        load_recognizer("transducer", "klingon")


@pytest.mark.parametrize("failing", ["recognizer", "voice"])
def test_a_model_that_fails_its_warm_up_is_not_served(
    model: RecordingModel, recognizer: RecognizerRole, voice: VoiceRole, failing: str
) -> None:
    model.due = [audio_stream.StreamFailed("warm_up", "out of breath", True)]
    with pytest.raises(RoleError, match="out of breath"):
        (recognizer if failing == "recognizer" else voice).warm_up()


def test_a_model_that_never_answers_its_warm_up_is_not_served(recognizer: RecognizerRole) -> None:
    with pytest.raises(RoleError, match="found none"):
        recognizer.warm_up()
