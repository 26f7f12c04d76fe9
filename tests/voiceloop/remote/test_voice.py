"""A remote voice: clauses, the words' times, and answers that are no speech."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from tests.remote_service import Answer, Service
from voiceloop.backends import (
    Speech,
    SpeechEnd,
    SpokenWord,
    VoiceOptions,
)
from voiceloop.errors import BackendError
from voiceloop.event_stream import PAUSED_FROM_BYTES
from voiceloop.remote.service import RemoteService
from voiceloop.remote.voice import ClauseCutter, RemoteVoice

Connect = Callable[..., RemoteService]


def pcm(n_ms: int, *, split: int = 2) -> Answer:
    data = bytes(48 * n_ms)
    step = len(data) // split + 1  # odd pieces: samples are cut in the middle
    pieces = [data[i : i + step] for i in range(0, len(data), step)]
    return Answer(pieces, content_type="application/octet-stream")


async def test_clauses_are_spoken_in_order_with_words_that_fill_their_time(
    service: Service, connect: Connect
) -> None:
    service.say("/audio/speech", pcm(1000), pcm(500))
    stream = await RemoteVoice(connect(), voice="nova").open("sess_1/turn_1", VoiceOptions())
    text = "Good morning to you. See you"
    for letter in text:
        stream.feed(letter)
    stream.finish()
    speech: list[Speech] = []
    async for event in stream.events():
        if isinstance(event, SpeechEnd):
            break
        speech.append(event)
    await stream.close()
    assert event == SpeechEnd(36_000)
    assert sum(len(one.samples) for one in speech) == 72_000
    assert all(len(one.samples) % 2 == 0 for one in speech)
    words: list[SpokenWord] = [word for one in speech for word in one.words]
    assert [word.text for word in words] == text.split()
    assert [text[: word.text_end].split()[-1] for word in words] == text.split()
    times = [time for word in words for time in (word.start_ms, word.end_ms)]
    assert times == sorted(times)
    assert words[3].end_ms == pytest.approx(1000)
    assert words[-1].end_ms == pytest.approx(1500)
    asked = [json.loads(body) for body in service.asked("/audio/speech")]
    assert [one["input"] for one in asked] == ["Good morning to you.", "See you"]
    assert {one["voice"] for one in asked} == {"nova"}


async def test_speech_begins_before_the_text_has_ended(service: Service, connect: Connect) -> None:
    service.say("/audio/speech", pcm(100))
    stream = await RemoteVoice(connect()).open("sess_1/turn_1", VoiceOptions(voice="echo"))
    stream.feed("One moment please, I will ")
    assert isinstance(await anext(stream.events()), Speech)
    await stream.close()
    await stream.close()
    asked = json.loads(service.asked("/audio/speech")[0])
    assert (asked["input"], asked["voice"]) == ("One moment please,", "echo")


async def test_an_utterance_without_words_ends_at_once(service: Service, connect: Connect) -> None:
    stream = await RemoteVoice(connect()).open("sess_1/turn_1", VoiceOptions())
    stream.feed(" ")
    stream.finish()
    assert await anext(stream.events()) == SpeechEnd(0)
    await stream.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer([b"ID3"], content_type="audio/mpeg"), "found audio/mpeg"),
        (Answer([b"123"], content_type="audio/pcm"), "odd byte count"),
        (Answer([], content_type="audio/pcm"), "found no audio"),
    ],
)
async def test_what_is_no_pcm_is_not_played(
    service: Service, connect: Connect, answer: Answer, message: str
) -> None:
    service.say("/audio/speech", answer)
    stream = await RemoteVoice(connect()).open("sess_1/turn_1", VoiceOptions())
    stream.feed("Hello.")
    stream.finish()
    with pytest.raises(BackendError, match=message):
        async for _ in stream.events():
            pass
    await stream.close()


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("It is 3.50. And more. ", ["It is 3.50. ", "And more. "]),
        ("Good morning, Dr. Brown. Yes", ["Good morning,", " Dr. Brown. "]),
        ("Yes, of course, sir. ", ["Yes, of course,", " sir. "]),
        ("Certainly, that is noted. ", ["Certainly,", " that is noted. "]),
        ("It costs 3,000 crowns, sir", ["It costs 3,000 crowns,"]),
        ("no mark at all", []),
    ],
)
def test_text_is_cut_where_a_speaker_would_pause(text: str, clauses: list[str]) -> None:
    cutter = ClauseCutter()
    found = [clause for letter in text for clause in cutter.add(letter)]
    assert found == clauses
    assert "".join(found) + cutter.rest() == text


def test_text_without_marks_is_cut_between_words() -> None:
    found = ClauseCutter().add("word " * 100)
    assert found and all(clause.endswith("word ") for clause in found)


async def test_no_more_is_asked_of_a_service_than_somebody_hears(
    service: Service, connect: Connect
) -> None:
    n_ms = PAUSED_FROM_BYTES // 48 + 1
    service.say("/audio/speech", pcm(n_ms))
    stream = await RemoteVoice(connect()).open("file", VoiceOptions())
    stream.feed("This is the first. This is the second. This is the third. ")
    stream.finish()
    while stream._sound_bytes < 48 * n_ms:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert len(service.asked("/audio/speech")) == 1
    n_bytes = 0
    async for event in stream.events():
        if isinstance(event, SpeechEnd):
            break
        n_bytes += len(event.samples)
    await stream.close()
    assert n_bytes == 3 * 48 * n_ms and len(service.asked("/audio/speech")) == 3
