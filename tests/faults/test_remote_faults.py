"""A whole call on remote services that are slow, busy, broken or gone in mid-answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from clients.connection import typed
from tests.callers import Caller
from tests.dialect_service import streamed
from tests.fakes import FakeRecognizer
from tests.remote_service import Answer, Remote, scripted_remote
from voiceloop.agent import AgentConfig, AgentTool, Waiting
from voiceloop.backends import Backends
from voiceloop.remote import service as remote
from voiceloop.remote.language import RemoteLanguageModel
from voiceloop.remote.recognizer import RemoteRecognizer
from voiceloop.remote.voice import RemoteVoice
from voiceloop.tools.toolbox import toolbox_of

pytestmark = pytest.mark.virtual_time

ITEM = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
PRICE = AgentTool("price", "", ITEM, result="four dollars")
AGENT = AgentConfig(
    tools=(PRICE,), fallback="Say that again?", waiting=Waiting(say=(), first_token_ms=500)
)
CHAT, VOICE, HEARD = "/chat/completions", "/audio/speech", "/audio/transcriptions"
PCM = b"\x00\x20" * 4800  # 200 ms


def reply(*texts: str, **options: Any) -> Answer:
    lines = [{"choices": [{"delta": {"content": text}}]} for text in texts]
    lines.append({"choices": [{"delta": {}, "finish_reason": "stop"}]})
    pieces = [f"data: {json.dumps(line)}\n\n".encode() for line in lines]
    if options.get("drop_after"):
        del pieces[-1]
    return Answer(pieces, content_type="text/event-stream", **options)


def speech(**options: Any) -> Answer:
    return Answer([PCM], content_type="audio/pcm", **options)


@pytest.fixture
async def services(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Remote]:
    monkeypatch.setattr(remote, "RETRY_PAUSES_S", (0.0, 0.0))
    async with scripted_remote() as running:
        running.service.say(VOICE, speech())
        yield running


def caller_of(services: Remote, agent: AgentConfig | None = None) -> Caller:
    backends = Backends(
        FakeRecognizer(["hello"]),
        RemoteLanguageModel(services.connect()),
        RemoteVoice(services.connect()),
    )
    toolbox = toolbox_of(agent, asyncio.get_running_loop().time) if agent is not None else None
    return Caller(asyncio.get_running_loop().time, backends, agent, toolbox=toolbox)


async def ask(caller: Caller, modality: str = "text") -> dict[str, Any]:
    """One turn; its `response.done`."""
    n_before = len(caller.of("response.done"))
    caller.send("conversation.item.create", item=typed("hello"))
    caller.send("response.create", response={"output_modalities": [modality]})
    done = await caller.wait_for("response.done", count=n_before + 1)
    response: dict[str, Any] = done.event["response"]
    return response


def heard(caller: Caller) -> list[str]:
    """What each reply said aloud."""
    return [r.event["transcript"] for r in caller.of("response.output_audio_transcript.done")]


def said(response: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for item in response["output"] for part in item["content"])


@pytest.mark.parametrize("status", [429, 500])
async def test_a_service_that_fails_once_is_answered_as_if_nothing_was(
    services: Remote, status: int
) -> None:
    services.service.say(CHAT, Answer([b"busy"], status), reply("good ", "morning"))
    async with caller_of(services) as caller:
        response = await ask(caller)
    assert (response["status"], said(response)) == ("completed", "good morning")


@pytest.mark.parametrize("status", [429, 500])
async def test_a_service_that_stays_broken_is_one_error_and_the_next_turn_is_answered(
    services: Remote, status: int
) -> None:
    services.service.say(CHAT, *[Answer([b"busy"], status)] * 3, reply("now"))
    async with caller_of(services) as caller:
        failed, answered = await ask(caller), await ask(caller)
    assert failed["status"] == "failed" and failed["output"] == []
    assert failed["status_details"]["error"]["code"] == "backend_error"
    assert (answered["status"], said(answered)) == ("completed", "now")


async def test_a_reply_dropped_in_the_middle_fails_and_is_not_said_twice(services: Remote) -> None:
    services.service.say(CHAT, reply("half a ", "reply", drop_after=True), reply("whole"))
    async with caller_of(services) as caller:
        failed, answered = await ask(caller), await ask(caller)
        deltas = [r.event["delta"] for r in caller.of("response.output_text.delta")]
    assert failed["status"] == "failed"
    assert said(answered) == "whole"
    assert "".join(deltas) == "half a replywhole"


async def test_a_slow_service_is_waited_for_while_the_call_goes_on(services: Remote) -> None:
    release = asyncio.Event()
    services.service.say(CHAT, reply("late", hold=release))
    async with caller_of(services) as caller:
        asked = asyncio.create_task(ask(caller))
        await services.service.wait_asked(CHAT, 1)
        caller.send("session.update", session={"type": "realtime", "instructions": "be brief"})
        await caller.wait_for("session.updated")
        release.set()
        assert said(await asked) == "late"


async def test_a_voice_that_breaks_off_fails_its_turn_and_speaks_the_next(services: Remote) -> None:
    services.service.say(CHAT, reply("Good morning."))
    services.service.say(VOICE, speech(drop_after=True), speech())
    async with caller_of(services) as caller:
        failed, answered = await ask(caller, "audio"), await ask(caller, "audio")
        heard_ms = caller.audio_ms(answered["id"])
    assert (failed["status"], answered["status"]) == ("failed", "completed")
    assert heard_ms >= 150


async def test_a_turn_that_cannot_be_transcribed_is_one_error_and_the_next_is_heard(
    services: Remote,
) -> None:
    services.service.say(CHAT, reply("I heard you."))
    heard = Answer([json.dumps({"text": "hello"}).encode()])
    services.service.say(HEARD, Answer([b"no such model"], 404))  # however often it is asked
    backends = Backends(
        RemoteRecognizer(services.connect()),
        RemoteLanguageModel(services.connect()),
        RemoteVoice(services.connect()),
    )
    transcription = {"model": "any"}
    async with Caller(asyncio.get_running_loop().time, backends) as caller:
        caller.send(
            "session.update",
            session={"type": "realtime", "audio": {"input": {"transcription": transcription}}},
        )
        await caller.say(400)
        await caller.listen_until("conversation.item.input_audio_transcription.failed")
        await caller.listen_until("response.done")
        services.service.say(HEARD, heard)
        await caller.say(400)
        await caller.listen_until("response.done", count=2)
        await caller.listen_until("conversation.item.input_audio_transcription.completed")
    assert caller.statuses() == ["failed", "completed"]
    assert len(caller.of("conversation.item.input_audio_transcription.failed")) == 1


def calling(*parts: dict[str, Any]) -> Answer:
    """A reply that calls a tool, in these pieces."""
    return streamed(*({"tool_calls": [part]} for part in parts), finish_reason="tool_calls")


def piece(arguments: str, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"index": index, "function": {"arguments": arguments, **more}}


NAMED = {"index": 0, "id": "c0", "function": {"name": "price", "arguments": '{"item": "tea"}'}}
BROKEN = calling(piece('{"item": "te', name="price"))
WHOLE_CALLS = {
    "in one piece": calling(NAMED),
    "the name last": calling(piece('{"item": '), piece('"tea"}', name="price")),
    "said again": calling(NAMED, NAMED),
    "the second first": calling(
        piece('{"item": "pie"}', 1, name="price"), piece('{"item": "tea"}', 0, name="price")
    ),
}


@pytest.mark.parametrize("called", WHOLE_CALLS.values(), ids=WHOLE_CALLS)
async def test_a_call_is_made_in_whichever_pieces_it_comes(
    services: Remote, called: Answer
) -> None:
    services.service.say(CHAT, called, reply("Four dollars."))
    async with caller_of(services, AGENT) as caller:
        assert (await ask(caller, "audio"))["status"] == "completed"
        await caller.wait_for("response.done", count=2)
        assert heard(caller) == ["Four dollars."]
    asked = json.loads(services.service.asked(CHAT)[1])["messages"]
    [calls] = [message["tool_calls"] for message in asked if message.get("tool_calls")]
    assert calls[0]["function"] == {"name": "price", "arguments": '{"item": "tea"}'}


async def test_a_broken_call_is_asked_for_once_more_bound_to_a_tool(services: Remote) -> None:
    services.service.say(CHAT, BROKEN, calling(NAMED), reply("Four dollars."))
    async with caller_of(services, AGENT) as caller:
        await ask(caller, "audio")
        await caller.wait_for("response.done", count=2)
        assert heard(caller) == ["Four dollars."]
    choices = [json.loads(body).get("tool_choice") for body in services.service.asked(CHAT)]
    assert choices[1] == "required"


LIES = {
    "a page of HTML": Answer([b"<html>hello</html>"], content_type="text/html"),
    "a chunk that is none": Answer([b"data: [1]\n\n"], content_type="text/event-stream"),
    "an error in mid-stream": Answer(
        [b'data: {"error": {"message": "you said hello", "code": "overloaded"}}\n\n'],
        content_type="text/event-stream",
    ),
    "no words at all": streamed({"content": None}, {"content": ""}),
    "a broken call, again and again": BROKEN,
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_who_is_lied_to_by_a_service_hears_the_fallback_and_then_an_answer(
    services: Remote, lie: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    services.service.say(CHAT, lie)
    async with caller_of(services, AGENT) as caller:
        await ask(caller, "audio")
        services.service.say(CHAT, reply("Good morning."))
        await ask(caller, "audio")
        assert heard(caller) == [AGENT.fallback, "Good morning."]
    assert "you said" not in caplog.text
    assert len(services.service.asked(CHAT)) <= 6  # none is asked for ever


async def test_a_model_that_thinks_for_ever_is_not_waited_for(services: Remote) -> None:
    never = asyncio.Event()
    thinking = streamed({"reasoning_content": "hm"}, {"reasoning_content": "hm"})
    thinking.hold_end = never
    services.service.say(CHAT, thinking, reply("Good morning."))
    async with caller_of(services, AGENT) as caller:
        await ask(caller, "audio")
        await services.service.hung_up.wait()
        await ask(caller, "audio")
        assert heard(caller) == [AGENT.fallback, "Good morning."]


async def test_a_service_that_takes_less_than_it_said_is_shown_less(services: Remote) -> None:
    told = {"error": {"message": "too long", "code": "context_length_exceeded"}}
    listed = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 100_000}]}
    services.service.say("/models", Answer([json.dumps(listed).encode()]))
    services.service.say(CHAT, reply("one"), reply("two"), Answer([json.dumps(told).encode()], 400))
    model = RemoteLanguageModel(remote_service := services.connect())
    await remote_service.start()
    backends = Backends(FakeRecognizer(["hello"]), model, RemoteVoice(services.connect()))
    async with Caller(asyncio.get_running_loop().time, backends) as caller:
        assert [said(await ask(caller)) for _ in range(2)] == ["one", "two"]
        n_before = len(services.service.asked(CHAT))
        asked = asyncio.create_task(ask(caller))
        await services.service.wait_asked(CHAT, n_before + 1)
        services.service.say(CHAT, reply("three"))
        assert said(await asked) == "three"
    sent = [json.loads(body)["messages"] for body in services.service.asked(CHAT)]
    assert len(sent[-1]) < len(sent[n_before])
