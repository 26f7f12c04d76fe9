"""A call that one agent of the server hands to another, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from clients.connection import typed
from tests.fakes import FakeLanguageModel, Reply, instant_backends
from tests.voiceloop.server.test_app import Running, event, running, until
from tests.voiceloop.server.test_resume import say
from voiceloop.agent import AgentConfig, AgentSlot, AgentTool
from voiceloop.backends import ChatMessage, ToolCall
from voiceloop.call_manners import Transfer
from voiceloop.config import Config
from voiceloop.errors import ConfigError

pytestmark = pytest.mark.virtual_time

TO_BILLING = Transfer("billing", "agent:bills", words=("the billing desk",))
DESK = AgentConfig(
    name="Desk",
    instructions="the desk",
    greeting="The desk.",
    transfers=(TO_BILLING,),
    tools=(AgentTool("hours", result="nine to five"),),
)
BILLS = AgentConfig(
    name="Bills",
    instructions="the bills",
    greeting="Billing here.",
    tools=(AgentTool("balance", result="12 euros"),),
    transfers=(Transfer("desk", "agent:desk"),),
)
TRANSFER = ToolCall("c1", "transfer", '{"to": "billing", "summary": "a bill of May"}')


def model(said: Sequence[ChatMessage]) -> Reply:
    """Hands on who says "bill"; else tells its instructions, and all that it was shown."""
    if said[0].content == "the desk" and "bill" in said[-1].content and said[-1].role == "user":
        return Reply("I will connect you.", (TRANSFER,))
    return Reply(" | ".join(message.content for message in said if message.content))


@asynccontextmanager
async def serving(folder: Path, **changes: Any) -> AsyncIterator[Running]:
    desk = replace(DESK, **changes)
    others = {"desk": desk, "bills": BILLS}
    backends = instant_backends(language_model=FakeLanguageModel(model))
    async with running(Config(agents=folder), backends, agent=desk, others=others) as server:
        yield server


async def handed(client: ClientConnection, words: str) -> list[dict[str, Any]]:
    """Say this and wait until the other agent has greeted; every event of it."""
    await client.send(json.dumps({"type": "conversation.item.create", "item": typed(words)}))
    await client.send(json.dumps({"type": "response.create"}))
    seen: list[dict[str, Any]] = []
    while not any(one.get("transcript") == BILLS.greeting for one in seen):
        seen.append(await event(client))
    await until(client, "response.done")
    return seen


@pytest.mark.parametrize("words", ["a question about my bill", "the billing desk please"])
async def test_another_agent_goes_on_with_its_greeting_tools_and_words(
    tmp_path: Path, words: str
) -> None:
    """By the model, and by words without it."""
    async with serving(tmp_path) as server, server.connect("?agent=desk") as client:
        seen = await handed(client, words)
        (updated,) = (one["session"] for one in seen if one["type"] == "session.updated")
        assert updated["instructions"] == "the bills"
        assert {tool["name"] for tool in updated["tools"]} == {"balance", "transfer"}
        told = await say(client, "how much is it")
        assert told.startswith("the bills | ") and words in told
        await asyncio.sleep(5.0)  # until the greeting has been played
        counted = server.gateway.metrics.registry.get_sample_value
        labels = {"agent": "bills", "outcome": "completed"}
        assert counted("voiceloop_agent_turns_total", labels) == 2.0


@pytest.mark.parametrize(("history", "shown"), [("summary", "a bill of May"), ("none", "")])
async def test_the_other_agent_is_shown_of_the_call_what_the_file_says(
    tmp_path: Path, history: str, shown: str
) -> None:
    transfers = (replace(TO_BILLING, history=history),)
    async with serving(tmp_path, transfers=transfers) as server:
        async with server.connect("?agent=desk") as client:
            await handed(client, "my number is 4711 and this is my bill")
            told = await say(client, "how much is it")
            assert "4711" not in told and "handed to you" in told and shown in told
            assert ("May" in told) == bool(shown)


async def test_the_other_agents_slots_know_no_more_than_it_is_shown(tmp_path: Path) -> None:
    def asks(said: Sequence[ChatMessage]) -> Reply:
        if "bill" in said[-1].content or said[0].content == "the bills":
            return (
                model(said) if said[0].content == "the desk" else Reply(said[-1].behind or "none")
            )
        return Reply("What is your phone number?")

    slots = (AgentSlot(asked="phone number", kind="number", name="phone"),)
    desk = replace(DESK, slots=slots, transfers=(replace(TO_BILLING, history="none"),))
    others = {"desk": desk, "bills": replace(BILLS, slots=slots)}
    backends = instant_backends(language_model=FakeLanguageModel(asks))
    async with running(Config(agents=tmp_path), backends, agent=desk, others=others) as server:
        async with server.connect("?agent=desk") as client:
            await say(client, "hello")
            await say(client, "five five five oh one four two one one two")
            await handed(client, "this is about my bill")
            assert await say(client, "how much is it") == "none"


async def test_a_call_that_was_handed_on_is_resumed_with_the_agent_it_was_handed_to(
    tmp_path: Path,
) -> None:
    transfers = (replace(TO_BILLING, history="none"),)
    async with serving(tmp_path, transfers=transfers) as server:
        async with server.connect("?agent=desk&voiceloop.resume=1") as client:
            await handed(client, "my number is 4711 and this is my bill")
            await say(client, "how much is it")
            ticket = (await until(client, "voiceloop.resume_ticket"))["ticket"]
        async with server.connect("?agent=desk&voiceloop.resume=1") as client:
            await client.send(json.dumps({"type": "voiceloop.resume", "ticket": ticket}))
            await until(client, "voiceloop.resumed")
            told = await say(client, "and now")
            assert told.startswith("the bills | ") and "4711" not in told


async def test_no_agent_hands_on_a_caller_who_has_not_spoken_to_it(tmp_path: Path) -> None:
    """Two agents that would hand a call to and fro between them."""
    back = ToolCall("c2", "transfer", '{"to": "desk"}')

    def to_and_fro(said: Sequence[ChatMessage]) -> Reply:
        if said[-1].role == "tool":
            return Reply("")
        return Reply("", (TRANSFER if said[0].content == "the desk" else back,))

    others = {"desk": DESK, "bills": replace(BILLS, greeting="")}
    backends = instant_backends(language_model=FakeLanguageModel(to_and_fro))
    config = Config(agents=tmp_path)
    async with running(config, backends, agent=DESK, others=others) as server:
        async with server.connect("?agent=desk") as client:
            await client.send(
                json.dumps({"type": "conversation.item.create", "item": typed("hello")})
            )
            await client.send(json.dumps({"type": "response.create"}))
            said = []
            while said[-1:] != [BILLS.call.not_transferred]:
                done = await until(client, "response.output_audio_transcript.done")
                said.append(done["transcript"])
            assert said == [DESK.call.transferring] * 2 + [BILLS.call.not_transferred]


async def test_an_agent_that_is_not_here_ends_the_start(tmp_path: Path) -> None:
    lost = replace(DESK, transfers=(Transfer("x", "agent:nobody"),))
    with pytest.raises(
        ConfigError, match=r"desk.toml: transfers\[0\].to: expected an agent of desk, bills"
    ):
        async with running(Config(agents=tmp_path), others={"desk": lost, "bills": BILLS}):
            pass
    with pytest.raises(ConfigError, match="--agents names a folder"):
        async with running(agent=lost):
            pass
