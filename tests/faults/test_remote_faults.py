"""A whole call on remote services that are slow, busy, broken or gone in mid-answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.callers import Caller
from tests.fakes import FakeRecognizer
from tests.remote_service import Answer, Remote, scripted_remote
from voiceloop.backends import Backends
from voiceloop.remote import service as remote
from voiceloop.remote.language import RemoteLanguageModel
from voiceloop.remote.recognizer import RemoteRecognizer
from voiceloop.remote.voice import RemoteVoice

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


def caller_of(services: Remote) -> Caller:
    backends = Backends(
        FakeRecognizer(["hello"]),
        RemoteLanguageModel(services.connect()),
        RemoteVoice(services.connect()),
    )
    return Caller(time.monotonic, backends)


async def ask(caller: Caller, modality: str = "text") -> dict[str, Any]:
    """One turn; its `response.done`."""
    n_before = len(caller.of("response.done"))
    content = [{"type": "input_text", "text": "hello"}]
    caller.send(
        "conversation.item.create", item={"type": "message", "role": "user", "content": content}
    )
    caller.send("response.create", response={"output_modalities": [modality]})
    done = await caller.wait_for("response.done", count=n_before + 1)
    response: dict[str, Any] = done.event["response"]
    return response


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
    async with Caller(time.monotonic, backends) as caller:
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
