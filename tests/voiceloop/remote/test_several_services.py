"""Several services of one role: who is asked, and who next."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from tests.remote_service import Answer, Remote, scripted_remote
from tests.voiceloop.remote.test_language_service import PARAMS, USER, reply
from voiceloop.backends import (
    Generated,
    RecognizerOptions,
    Speech,
    SpeechEnd,
    TextDelta,
    Transcript,
    VoiceOptions,
)
from voiceloop.config import load_config
from voiceloop.errors import BackendError, BackendRefused, ConfigError
from voiceloop.models import opening
from voiceloop.remote import service as remote
from voiceloop.remote.language import RemoteLanguageModel
from voiceloop.remote.pool import reachable_first
from voiceloop.remote.recognizer import RemoteRecognizer
from voiceloop.remote.voice import RemoteVoice

CHAT, SPEECH, WORDS = "/chat/completions", "/audio/speech", "/audio/transcriptions"
Two = tuple[Remote, Remote]


@pytest.fixture
async def two(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Two]:
    monkeypatch.setattr(remote, "RETRY_PAUSES_S", ())
    async with AsyncExitStack() as stack:
        yield (
            await stack.enter_async_context(scripted_remote()),
            await stack.enter_async_context(scripted_remote()),
        )


def model_of(two: Two) -> RemoteLanguageModel:
    model = RemoteLanguageModel(*(one.connect() for one in two), reads_ahead=False)
    for place in model.places.values():
        place.service._is_there = True
    return model


def own_and_other(model: RemoteLanguageModel, two: Two, call: str) -> Two:
    """The service that this call is with, and the other."""
    own = model.place_of(call, "", ()).service.url
    first, second = two
    return (first, second) if own == first.opened[0].url else (second, first)


async def answer(model: RemoteLanguageModel, call: str = "sess_1.turn_1") -> str:
    branch = await model.branch(call, ())
    text = ""
    try:
        branch.commit(USER, PARAMS)
        async for event in branch.events():
            if isinstance(event, TextDelta):
                text += event.text
            if isinstance(event, Generated):
                return text
    finally:
        await branch.close()
    raise AssertionError("the branch ended without a reply")


async def test_a_call_stays_with_one_service_and_calls_spread(two: Two) -> None:
    for one in two:
        one.service.say(CHAT, reply({"content": "hello"}))
    model = model_of(two)
    for turn in range(4):
        await answer(model, f"sess_1.turn_{turn}")
    own, other = own_and_other(model, two, "sess_1.turn_9")
    assert (len(own.service.asked(CHAT)), len(other.service.asked(CHAT))) == (4, 0)


async def test_a_request_that_fails_before_its_first_token_goes_to_the_next(two: Two) -> None:
    model = model_of(two)
    own, other = own_and_other(model, two, "sess_1.turn_1")
    own.service.say(CHAT, Answer([b"busy"], status=503))
    other.service.say(CHAT, reply({"content": "hello"}))
    assert await answer(model) == "hello"
    assert len(own.service.asked(CHAT)) == 1


async def test_a_reply_that_was_heard_in_part_is_not_begun_anew(two: Two) -> None:
    model = model_of(two)
    own, other = own_and_other(model, two, "sess_1.turn_1")
    own.service.say(CHAT, reply({"content": "half of"}, done=False, drop_after=True))
    other.service.say(CHAT, reply({"content": "hello"}))
    with pytest.raises(BackendError):
        await answer(model)
    assert not other.service.asked(CHAT)


async def test_what_a_service_refuses_no_other_is_asked(two: Two) -> None:
    model = model_of(two)
    own, other = own_and_other(model, two, "sess_1.turn_1")
    own.service.say(CHAT, Answer([b"{}"], status=400))
    with pytest.raises(BackendRefused):
        await answer(model)
    assert not other.service.asked(CHAT)


@dataclass
class Told:
    url: str
    reachable: bool = True
    n_open: int = 0


def test_who_is_there_and_less_busy_is_asked_first() -> None:
    away, busy, idle = Told("away", reachable=False), Told("busy", n_open=9), Told("idle")
    order = reachable_first([away, busy, idle], random.Random(0))
    assert [one.url for one in order] == ["idle", "busy", "away"]
    assert [one.url for one in reachable_first([away], random.Random(0))] == ["away"]


async def test_a_clause_that_one_voice_fails_another_speaks(two: Two) -> None:
    broken, good = two
    broken.service.say(SPEECH, Answer([b"busy"], status=503))
    good.service.say(SPEECH, Answer([bytes(2400)], content_type="audio/pcm"))
    services = [one.connect() for one in two]
    services[0]._is_there = True  # and so it is asked first
    stream = await RemoteVoice(*services).open("sess_1.turn_1", VoiceOptions())
    stream.feed("Hello there. ")
    stream.feed("And more of it.")
    stream.finish()
    events = []
    async for event in stream.events():
        events.append(event)
        if isinstance(event, SpeechEnd):
            break
    await stream.close()
    assert sum(len(one.samples) for one in events if isinstance(one, Speech)) == 4800
    assert len(broken.service.asked(SPEECH)) == 1  # who has answered is asked again


async def test_a_segment_that_one_recognizer_fails_another_hears(two: Two) -> None:
    broken, good = two
    broken.service.say(WORDS, Answer([b"busy"], status=503))
    good.service.say(WORDS, Answer([b'{"text": "two lattes"}']))
    services = [one.connect() for one in two]
    services[0]._is_there = True
    stream = await RemoteRecognizer(*services).open("sess_1", RecognizerOptions())
    stream.feed(b"\x00\x20" * 8000)
    stream.finalize()
    event = await anext(aiter(stream.events()))
    await stream.close()
    assert isinstance(event, Transcript) and event.text == "two lattes"


async def test_a_server_starts_with_those_that_are_there_and_looks_after_the_others(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "LOOK_AGAIN_S", 0.0)
    first, second = two
    first.service.say("/models", Answer([b"{}"], drop_before=True), Answer([b"{}"]))
    services = [one.connect() for one in two]
    await opening._start_any(services)
    async with asyncio.timeout(20):
        while not services[0].reachable:  # noqa: ASYNC110 - its watch tells nobody
            await asyncio.sleep(0)
    assert services[1].reachable
    first.service.say("/models", Answer([b"{}"], drop_before=True))
    with pytest.raises(BackendError):
        await opening._start_any([first.connect()])


@pytest.mark.parametrize("given", ["http://a/v1,http://b/v1", ["http://a/v1", "http://b/v1"]])
def test_urls_are_one_or_a_list(given: object) -> None:
    assert load_config(flags={"llm_url": given}).llm_url == ("http://a/v1", "http://b/v1")
    from_variable = load_config(environ={"VOICELOOP_LLM_URL": "http://a/v1,http://b/v1"})
    assert from_variable.llm_url == ("http://a/v1", "http://b/v1")
    with pytest.raises(ConfigError, match="llm_url: expected a URL"):
        load_config(flags={"llm_url": "http://a/v1,b"})
