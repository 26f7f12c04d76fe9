"""A caller on a telephone: the agent's texts name them, and their silence ends the call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.callers import Caller
from tests.fakes import FakeRecognizer, instant_backends
from tests.voiceloop.call.test_call_tools import PHONE, MemoryPhone, phoned
from tests.voiceloop.call.test_sound_line import MemoryLine
from voiceloop.agent import AgentConfig
from voiceloop.call.turn_taking import ASKS_BACK_MS
from voiceloop.call_manners import CallManners
from voiceloop.telephony import NO_PHONE, PhoneCall

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
CALL = PhoneCall("sip", "+4930123", "+49309", {"X-Order": "A 7\n{caller.number}<b>"})
AGENT = AgentConfig(
    instructions="The caller's number is {caller.number}.",
    greeting="Hello, is this about {caller.x-order}?",
)


async def test_the_agents_texts_name_the_caller_in_one_plain_line(clock: Clock) -> None:
    hello = replace(PHONE, phone=CALL)
    async with Caller(clock, agent=AGENT, hello=hello, line=MemoryLine(clock)) as caller:
        await caller.listen_until("output_audio_buffer.stopped")
        instructions = caller.session.protocol.settings.instructions
    assert instructions == "The caller's number is +4930123."
    assert caller.transcript() == "Hello, is this about A 7 caller.number b?"
    assert NO_PHONE.filled("{caller.number} {other}") == "unknown {other}"


async def test_a_caller_who_comes_back_from_a_transfer_is_told_so_first(clock: Clock) -> None:
    hello = replace(PHONE, phone=replace(CALL, returned="busy"))
    async with Caller(clock, agent=AGENT, hello=hello, line=MemoryLine(clock)) as caller:
        await caller.listen_until("output_audio_buffer.stopped")
    assert caller.transcript() == CallManners().not_transferred


async def test_who_says_nothing_is_asked_and_then_let_go(clock: Clock) -> None:
    agent = AgentConfig(greeting="Hello.")
    async with phoned(clock, MemoryPhone(clock), instant_backends(), agent) as caller:
        await caller.listen_until("output_audio_buffer.stopped")
        greeted_s = clock()
        await caller.listen_until("output_audio_buffer.started", count=2, limit_ms=11_000)
        asked_s = clock()
        assert asked_s - greeted_s == pytest.approx(10.0, abs=0.3)
        while not caller.transport.closed:
            await caller.wait_quietly(100)
        assert 20.0 < clock() - asked_s < 24.0
    assert caller.transcript() == "Hello.Are you still there?Goodbye."
    assert caller.transport.closed == (1000, "nobody spoke any more")


async def test_who_says_nothing_to_an_agent_without_a_greeting_is_asked_too(clock: Clock) -> None:
    async with phoned(clock, MemoryPhone(clock), instant_backends(), AgentConfig()) as caller:
        await caller.listen_until("output_audio_buffer.stopped", limit_ms=12_000)
    assert caller.transcript() == "Are you still there?"


async def test_who_asked_to_wait_has_the_time_for_it(clock: Clock) -> None:
    backends = instant_backends(recognizer=FakeRecognizer(["hold on"], ms_per_word=200))
    agent = AgentConfig(greeting="Hello.")
    async with phoned(clock, MemoryPhone(clock), backends, agent) as caller:
        await caller.listen_until("output_audio_buffer.stopped")
        await caller.say(600)
        await caller.wait_quietly(ASKS_BACK_MS - 1000)
        assert caller.transcript() == "Hello."
        await caller.listen_until("output_audio_buffer.stopped", count=2, limit_ms=5000)
    assert caller.transcript() == "Hello.Are you still there?"


async def test_who_answers_the_question_is_asked_anew_later(clock: Clock) -> None:
    agent = AgentConfig(greeting="Hello.")
    async with phoned(clock, MemoryPhone(clock), instant_backends(), agent) as caller:
        await caller.listen_until("output_audio_buffer.stopped", count=2, limit_ms=15_000)
        await caller.say(600)
        await caller.listen_until("output_audio_buffer.stopped", count=3)
        await caller.listen_until("output_audio_buffer.stopped", count=4, limit_ms=15_000)
        assert not caller.transport.closed
    assert caller.transcript().count("Are you still there?") == 2
