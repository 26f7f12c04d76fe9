"""Keys of a telephone: a turn of their own, over the agent too, and nowhere where sensitive."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, Reply, instant_backends
from tests.tool_service import ANY, Service, box
from tests.voiceloop.call.test_sound_line import WEBRTC, MemoryLine
from voiceloop.agent import AgentConfig, AgentSlot, AgentTool
from voiceloop.backends import Backends, ChatMessage, ToolCall

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
ASKS = "Please enter your four digit code."
PIN = AgentSlot("your pin", "number", 4, "pin", sensitive=True)


def echoing(*heard: str, first: str = "Hello there.") -> Backends:
    """A model that says back what it is told."""

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        said = [m.content for m in messages if m.role == "user"]
        return Reply(f"You said {said[-1]}." if len(said) > 1 else first)

    recognizer = FakeRecognizer(list(heard) or ["hello"], ms_per_word=200)
    return instant_backends(recognizer=recognizer, language_model=FakeLanguageModel(reply))


async def press(caller: Caller, keys: str, between_ms: float = 200) -> None:
    for key in keys:
        caller.transport.press(key)
        await caller.wait_quietly(between_ms)


def users(caller: Caller) -> list[str]:
    items = caller.session.protocol.shown.messages()
    return [message.content for message in items if message.role == "user"]


@pytest.mark.parametrize(
    ("question", "keys", "after_ms"),
    [(ASKS, "1234", 0), ("Your order number?", "98765#", 0), ("Your number?", "98765", 2000)],
)
async def test_a_turn_of_keys_ends_at_its_length_at_hash_or_after_two_seconds(
    clock: Clock, question: str, keys: str, after_ms: int
) -> None:
    line = MemoryLine(clock)
    async with Caller(clock, echoing(first=question), hello=WEBRTC, line=line) as caller:
        await caller.say(400)
        await caller.listen_until("output_audio_buffer.stopped")
        await press(caller, keys[:-1])
        caller.transport.press(keys[-1])
        pressed_s = clock()
        await caller.listen_until("input_audio_buffer.committed", count=2)
        committed = caller.of("input_audio_buffer.committed")[1]
        await caller.listen_until("response.done", count=2)
        told = [r.event["event"] for r in caller.of("input_audio_buffer.dtmf_event_received")]
    assert "".join(told) == keys
    assert 1000 * (committed.at_s - pressed_s) == pytest.approx(after_ms, abs=45)
    assert users(caller)[1] == " ".join(keys.strip("#"))


async def test_a_key_over_the_agent_silences_it_at_once(clock: Clock) -> None:
    long = "We have a great many things to tell you before you may choose among all of them."
    line = MemoryLine(clock)
    async with Caller(clock, echoing(first=long), hello=WEBRTC, line=line) as caller:
        await caller.say(400)
        await caller.listen_until("output_audio_buffer.started")
        await caller.wait_quietly(1000)
        caller.transport.press("1")
        pressed_s = clock()
        await caller.listen_until("output_audio_buffer.cleared")
        assert caller.of("output_audio_buffer.cleared")[0].at_s - pressed_s < 0.03
        await caller.listen_until("response.done", count=2)
    assert caller.statuses() == ["cancelled", "completed"]
    assert users(caller)[1] == "1"


async def test_a_tone_that_is_heard_as_words_is_no_turn_beside_the_keys(clock: Clock) -> None:
    backends = echoing("hello", "beep beep", first=ASKS)
    line = MemoryLine(clock)
    async with Caller(clock, backends, hello=WEBRTC, line=line) as caller:
        await caller.say(400)
        await caller.listen_until("output_audio_buffer.stopped")
        for key in "1234":
            caller.transport.press(key)
            await caller.say(180)
            await caller.wait_quietly(60)
        await caller.listen_until("response.done", count=2)
        await caller.wait_quietly(2500)
    assert users(caller) == ["hello", "1 2 3 4"]
    assert caller.statuses() == ["completed", "completed"]


@pytest.mark.parametrize("way", ["keys", "voice"])
async def test_a_sensitive_answer_stands_nowhere_but_in_the_tools_arguments(
    clock: Clock, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        seen.extend(f"{m.content} {m.behind}" for m in messages)
        if messages[-1].role == "tool":
            return Reply("Thank you, you are known.")
        if "pin" in messages[-1].content:
            return Reply("", (ToolCall("c1", "check", '{"pin": "0000"}'),))
        return Reply("Please enter your pin.")

    service = Service()
    check = AgentTool("check", "", ANY, url="https://bank.test/", from_slots=("pin",))
    agent = AgentConfig(slots=(PIN,), tools=(check,))
    recognizer = FakeRecognizer(["hello", "it is four seven one one"], ms_per_word=150)
    backends = instant_backends(recognizer=recognizer, language_model=FakeLanguageModel(reply))
    line = MemoryLine(clock)
    toolbox = box(clock, check=(check, service))
    async with Caller(clock, backends, agent, hello=WEBRTC, line=line, toolbox=toolbox) as caller:
        await caller.say(300)
        await caller.listen_until("output_audio_buffer.stopped")
        if way == "keys":
            await press(caller, "4711")
        else:
            await caller.say(900)
        await caller.listen_until("output_audio_buffer.stopped", count=2)
    assert [json.loads(json.dumps(one))["pin"] for one in service.done] == ["4711"]
    wire = json.dumps([r.event for r in caller.transport.received if "delta" not in r.type])
    everywhere = wire + caplog.text + " ".join(seen) + repr(users(caller))
    for secret in ("4711", "4 7 1 1", "four seven", "seven one"):
        assert secret not in everywhere
    assert not caller.of("input_audio_buffer.dtmf_event_received")
    assert users(caller)[1] == "[pin a]"


async def test_what_was_sensitive_to_an_agent_is_told_to_no_agent_after_it(clock: Clock) -> None:
    """To which the same value is not: its model reads what its slots hold."""
    backends = echoing("hello", "four seven one one", "thanks", first="What is your pin?")
    agent, after = (AgentConfig(slots=(slot,)) for slot in (PIN, replace(PIN, sensitive=False)))
    async with Caller(clock, backends, agent) as caller:
        for count, ms in ((1, 400), (2, 900)):
            await caller.say(ms)
            await caller.listen_until("response.done", count=count)
        caller.session._call.hand_to(caller.session._answering._replace(agent=after))
        await caller.say(400)
        await caller.listen_until("response.done", count=3)
        messages = caller.session.protocol.shown.messages()
    assert "[pin a]" in str(messages) and "4711" not in str(messages)
