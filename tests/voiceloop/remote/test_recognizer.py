"""A remote recognizer: what is sent at a pause, and when it is asked again."""

from __future__ import annotations

import asyncio
import io
import json
import wave
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.remote_service import Answer, Service
from voiceloop.backends import (
    Partial,
    RecognizerOptions,
    Transcript,
)
from voiceloop.errors import BackendError
from voiceloop.remote import recognizer
from voiceloop.remote.recognizer import RemoteRecognizer, is_quiet
from voiceloop.remote.service import RemoteService

Connect = Callable[..., RemoteService]


LOUD = (8000 * np.sin(np.arange(8000) / 5)).astype("<i2").tobytes()  # half a second
SILENCE = bytes(8000)
FAINT = (400 * np.sin(np.arange(1600) / 5)).astype("<i2").tobytes()  # as a last "s"


def transcription(text: str, **options: Any) -> Answer:
    return Answer([json.dumps({"text": text}).encode()], **options)


async def test_a_segment_is_sent_as_wav_and_its_words_share_its_time(
    service: Service, connect: Connect
) -> None:
    service.say("/audio/transcriptions", transcription("one four"))
    options = RecognizerOptions(hotwords=("Zoe",))
    stream = await RemoteRecognizer(connect()).open("sess_1", options)
    stream.feed(LOUD)
    stream.finalize()
    transcript = await anext(stream.events())
    assert isinstance(transcript, Transcript)
    assert [(w.text, round(w.end_ms)) for w in transcript.words] == [("one", 214), ("four", 500)]
    await stream.close()
    body = service.asked("/audio/transcriptions")[0]
    with wave.open(io.BytesIO(body[body.index(b"RIFF") :])) as sent:
        assert (sent.getframerate(), sent.getnframes()) == (16_000, 8000)
    assert b"Zoe" in body


async def test_what_was_decoded_at_the_pause_is_the_transcript_when_only_silence_follows(
    service: Service, connect: Connect
) -> None:
    service.say("/audio/transcriptions", transcription("hello"))
    stream = await RemoteRecognizer(connect()).open("sess_1", RecognizerOptions())
    events = stream.events()
    stream.feed(LOUD)
    stream.flush()
    assert await anext(events) == Partial(0, (), ("hello",), flushed=True)
    stream.feed(SILENCE)
    stream.finalize()
    transcript = await anext(events)
    assert isinstance(transcript, Transcript) and transcript.text == "hello"
    await stream.close()
    assert len(service.asked("/audio/transcriptions")) == 1


@pytest.mark.parametrize("is_over", [True, False])
async def test_speech_after_the_pause_is_decoded_again(
    service: Service, connect: Connect, is_over: bool
) -> None:
    """The turn's end tells all of it; another flush answers both, the one overtaken too."""
    release = asyncio.Event()
    service.say(
        "/audio/transcriptions", transcription("hel", hold=release), transcription("hello you")
    )
    stream = await RemoteRecognizer(connect()).open("sess_1", RecognizerOptions())
    stream.feed(LOUD)
    stream.flush()
    await service.wait_asked("/audio/transcriptions", 1)
    stream.feed(LOUD)
    events = stream.events()
    async with asyncio.timeout(5.0):
        if is_over:
            stream.finalize()
            transcript = await anext(events)
            assert isinstance(transcript, Transcript) and transcript.text == "hello you"
        else:
            stream.flush()
            answers = [await anext(events), await anext(events)]
            assert answers == [Partial(0, (), ("hello", "you"), flushed=True)] * 2
    await stream.close()


async def test_transcripts_come_in_the_order_of_their_segments(
    service: Service, connect: Connect
) -> None:
    release = asyncio.Event()
    service.say("/audio/transcriptions", transcription("first", hold=release), transcription("two"))
    stream = await RemoteRecognizer(connect()).open("sess_1", RecognizerOptions())
    stream.feed(LOUD)
    stream.finalize()
    await service.wait_asked("/audio/transcriptions", 1)
    stream.feed(LOUD)
    stream.finalize()
    await service.wait_asked("/audio/transcriptions", 2)
    release.set()
    events = stream.events()
    segments = [await anext(events), await anext(events)]
    assert [s.segment for s in segments if isinstance(s, Transcript)] == [0, 1]
    await stream.close()


async def test_an_empty_segment_is_not_sent(service: Service, connect: Connect) -> None:
    stream = await RemoteRecognizer(connect()).open("sess_1", RecognizerOptions())
    stream.finalize()
    assert await anext(stream.events()) == Transcript(0, ())
    await stream.close()


async def test_an_answer_that_is_no_transcription_fails_the_stream(
    service: Service, connect: Connect
) -> None:
    service.say("/audio/transcriptions", Answer([b"[]"]))
    stream = await RemoteRecognizer(connect()).open("sess_1", RecognizerOptions())
    stream.feed(LOUD)
    stream.finalize()
    with pytest.raises(BackendError, match="expected a transcription"):
        await anext(stream.events())
    await stream.close()


async def test_a_voice_that_falls_is_decoded_before_the_pause_is_known(
    service: Service, connect: Connect
) -> None:
    service.say("/audio/transcriptions", *map(transcription, ("hel", "hello", "hello you")))
    stream = await RemoteRecognizer(connect()).open("sess_1", RecognizerOptions())
    events = stream.events()
    for sound in (LOUD, SILENCE[:1280], LOUD, SILENCE[:1280]):  # the first fall was no end
        stream.feed(sound)
        await asyncio.sleep(0)
    stream.flush()
    assert await anext(events) == Partial(0, (), ("hello",), flushed=True)
    stream.feed(FAINT)  # behind the pause it is the room's
    stream.flush()
    assert await anext(events) == Partial(0, (), ("hello",), flushed=True)
    stream.finalize()
    transcript = await anext(events)
    assert isinstance(transcript, Transcript) and transcript.text == "hello"
    await stream.close()
    assert len(service.asked("/audio/transcriptions")) == 2


async def test_a_faint_consonant_behind_a_fall_is_decoded(
    service: Service, connect: Connect
) -> None:
    service.say("/audio/transcriptions", transcription("ca"), transcription("cat"))
    stream = await RemoteRecognizer(connect()).open("sess_1", RecognizerOptions())
    for sound in (LOUD, SILENCE[:1280], FAINT):
        stream.feed(sound)
        await asyncio.sleep(0)
    stream.flush()
    assert await anext(stream.events()) == Partial(0, (), ("cat",), flushed=True)
    await stream.close()


async def test_few_falls_of_a_segment_are_decoded_in_vain(
    service: Service, connect: Connect
) -> None:
    service.say("/audio/transcriptions", *map(transcription, "abcd"))
    stream = await RemoteRecognizer(connect()).open("sess_1", RecognizerOptions())
    for _ in range(5):
        stream.feed(LOUD)
        stream.feed(SILENCE[:1280])
        await asyncio.sleep(0)
    stream.flush()
    assert await anext(stream.events()) == Partial(0, (), ("d",), flushed=True)
    await stream.close()
    assert len(service.asked("/audio/transcriptions")) == 4


async def test_a_service_that_is_asked_nothing_ahead_hears_of_pauses_alone(
    service: Service, connect: Connect
) -> None:
    service.say("/audio/transcriptions", transcription("hello"))
    asked = RemoteRecognizer(connect(), reads_falls=False)
    stream = await asked.open("sess_1", RecognizerOptions())
    for sound in (LOUD, SILENCE[:1280], LOUD, SILENCE[:1280]):
        stream.feed(sound)
        await asyncio.sleep(0)
    stream.flush()
    assert await anext(stream.events()) == Partial(0, (), ("hello",), flushed=True)
    await stream.close()
    assert len(service.asked("/audio/transcriptions")) == 1


def test_a_tail_is_quiet_by_its_own_level() -> None:
    assert is_quiet(LOUD + SILENCE, len(LOUD))
    assert not is_quiet(LOUD + LOUD, len(LOUD))
    assert is_quiet(LOUD, len(LOUD))


async def test_a_segment_larger_than_a_service_takes_fails_the_stream(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recognizer, "MAX_SEGMENT_BYTES", 3 * len(LOUD))
    stream = await RemoteRecognizer(connect()).open("sess_1", RecognizerOptions())
    for _ in range(5):
        stream.feed(LOUD)
    with pytest.raises(BackendError, match="in a segment, found more"):
        await anext(stream.events())
    await stream.close()
