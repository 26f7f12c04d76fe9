"""Who speaks first: a client that configured its session, or began by itself, is not greeted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from clients.connection import typed
from tests.callers import Caller
from voiceloop.agent import AgentConfig
from voiceloop.call.connection import Hello

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
AGENT = AgentConfig(greeting="Welcome to the cafe.")
UPDATE = {"type": "realtime", "tool_choice": "auto"}


def caller(clock: Clock, agent: AgentConfig = AGENT, **hello: Any) -> Caller:
    return Caller(clock, agent=agent, hello=Hello(**hello))


def ask(line: Caller, text: str = "hello") -> None:
    line.send("conversation.item.create", item=typed(text))
    line.send("response.create", response={"output_modalities": ["text"]})


async def test_a_client_that_sends_nothing_is_greeted_after_the_wait_of_the_agent_file(
    clock: Clock,
) -> None:
    async with caller(clock) as line:
        start_s = clock()
        greeted = await line.wait_for("response.created")
        await line.wait_for("response.done")
    assert greeted.at_s - start_s == pytest.approx(1.0, abs=0.05)
    assert line.transcript() == "Welcome to the cafe."


async def test_who_sends_sound_is_greeted_at_once(clock: Clock) -> None:
    async with caller(clock) as line:
        start_s = clock()
        await line.wait_quietly(40)
        greeted = await line.wait_for("response.created")
    assert greeted.at_s - start_s < 0.1


@pytest.mark.parametrize("session", [UPDATE, {"type": "realtime", "instructions": "Be terse."}])
async def test_who_configures_the_session_is_not_greeted_whatever_the_settings(
    clock: Clock, session: dict[str, Any]
) -> None:
    async with caller(clock) as line:
        line.send("session.update", session=session)
        await line.wait_for("session.updated")
        await asyncio.sleep(3.0)
        await line.wait_quietly(100)
        assert not line.of("response.created")
        ask(line)
        await line.wait_for("response.done")
    assert not line.of("error") and len(line.of("response.created")) == 1


async def test_who_asks_first_is_answered_and_not_greeted(clock: Clock) -> None:
    async with caller(clock) as line:
        await asyncio.sleep(0.8)  # an SDK that has much to load
        ask(line)
        await line.wait_for("response.done")
        await asyncio.sleep(3.0)
    assert not line.of("error") and len(line.of("response.created")) == 1
    assert line.of("response.output_text.done")[0].event["text"] != AGENT.greeting


async def test_a_client_secret_with_settings_counts_as_configured(clock: Clock) -> None:
    for session, n_greetings in (({**UPDATE}, 0), ({"type": "realtime", "model": "m"}, 1)):
        async with caller(clock, session=session) as line:
            await asyncio.sleep(3.0)
        assert len(line.of("response.created")) == n_greetings


async def test_the_address_decides_before_all_else(clock: Clock) -> None:
    async with caller(clock, greeting=False) as line:
        await line.wait_quietly(3000)
        assert not line.of("response.created")
    async with caller(clock, greeting=True, session={**UPDATE}) as line:
        start_s = clock()
        line.send("session.update", session={"type": "realtime", "output_modalities": ["text"]})
        greeted = await line.wait_for("response.created")
        await line.wait_for("response.done")
    assert greeted.at_s - start_s < 0.1
    assert line.of("response.output_text.done")[0].event["text"] == AGENT.greeting


async def test_who_asks_for_the_greeting_and_then_begins_is_answered_instead(clock: Clock) -> None:
    async with caller(clock, greeting=True) as line:
        ask(line)
        await line.wait_for("response.done")
        await asyncio.sleep(3.0)
    assert not line.of("error") and len(line.of("response.created")) == 1


async def test_a_transcription_is_not_greeted(clock: Clock) -> None:
    async with caller(clock, intent="transcription") as line:
        await line.wait_quietly(3000)
    assert not line.of("response.created")
