"""A client's tool that nobody answers: the agent is told, and says a sentence."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, Reply, instant_backends
from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.backends import Backends, ChatMessage, ToolCall
from voiceloop.server.process import _tell_of_clients_tools

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
AGENT = AgentConfig(tools=(AgentTool("book"), AgentTool("hours", result="nine")))
SORRY = "Sorry, I could not book that."


def backends(words: str = "") -> Backends:
    """words: what the agent says with the call."""

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        if messages[-1].role == "tool":
            return Reply(SORRY if "error" in messages[-1].content else "It is booked.")
        return Reply(words, (ToolCall(f"call_{len(messages)}", "book", "{}"),))

    return instant_backends(
        recognizer=FakeRecognizer(["a table please"], ms_per_word=150),
        language_model=FakeLanguageModel(reply),
    )


def answer(caller: Caller) -> None:
    call_id = caller.of("response.function_call_arguments.done")[0].event["call_id"]
    output = {"type": "function_call_output", "call_id": call_id, "output": '{"ok": true}'}
    caller.send("conversation.item.create", item=output)


def outputs(caller: Caller) -> list[str]:
    items = [r.event["item"] for r in caller.of("conversation.item.added")]
    return [item["output"] for item in items if item["type"] == "function_call_output"]


async def called(caller: Caller) -> float:
    """The caller speaks, and the reply is a call; when it was over."""
    await caller.say(800)
    return (await caller.wait_for("response.done")).at_s


@pytest.mark.parametrize(
    ("agent", "waited_s"), [(AGENT, 10.0), (replace(AGENT, tool_timeout_ms=2_000), 2.0)]
)
async def test_after_the_timeout_the_call_has_an_error_and_the_caller_a_sentence(
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    agent: AgentConfig,
    waited_s: float,
) -> None:
    async with Caller(clock, backends(), agent) as caller:
        over_s = await called(caller)
        created = await caller.wait_for("response.created", count=2)
        await caller.wait_for("response.done", count=2)
    assert created.at_s - over_s == pytest.approx(waited_s, abs=0.1)
    [output] = outputs(caller)
    assert "error" in json.loads(output)
    assert caller.transcript() == SORRY
    assert "tool book" in caplog.text


async def test_a_call_that_is_answered_in_time_is_left_alone(clock: Clock) -> None:
    async with Caller(clock, backends(), AGENT) as caller:
        await called(caller)
        await caller.wait_quietly(9_000)
        answer(caller)
        caller.send("response.create")
        await caller.wait_for("response.done", count=2)
        await caller.wait_quietly(15_000)
    assert caller.transcript() == "It is booked." and len(caller.of("response.created")) == 2


async def test_a_call_that_is_answered_while_the_agent_speaks_is_left_alone(clock: Clock) -> None:
    words = "One moment please, I ask the kitchen for a table."
    async with Caller(clock, backends(words), AGENT) as caller:
        await caller.say(800)
        await caller.wait_for("response.function_call_arguments.done")
        answer(caller)
        await caller.wait_for("response.done")
        caller.send("response.create")
        await caller.wait_for("response.done", count=2)
        await caller.wait_quietly(15_000)
    assert len(outputs(caller)) == 1 and len(caller.of("response.created")) == 2
    assert caller.transcript() == words + "It is booked."


async def test_an_output_that_comes_late_is_taken(clock: Clock) -> None:
    async with Caller(clock, backends(), AGENT) as caller:
        await called(caller)
        await caller.wait_for("response.done", count=2)
        answer(caller)
        caller.send("response.create")
        await caller.wait_for("response.done", count=3)
    assert not caller.of("error") and caller.transcript().endswith("It is booked.")


async def test_a_caller_who_speaks_meanwhile_is_answered_once(clock: Clock) -> None:
    async with Caller(clock, backends(), replace(AGENT, tool_timeout_ms=1_000)) as caller:
        await called(caller)
        await caller.wait_quietly(400)
        await caller.say(1_200)  # the time is over while the caller speaks
        await caller.wait_for("response.done", count=2)
        await caller.wait_quietly(500)
    assert len(caller.of("response.created")) == 2 and not caller.of("error")


async def test_a_call_overdue_while_the_agent_speaks_of_something_else_is_told_of_afterwards(
    clock: Clock,
) -> None:
    other = "We have got a garden, and in summer you may sit there until eleven in the evening."

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        if sum(message.role == "user" for message in messages) == 1:
            return Reply("", (ToolCall("call_1", "book", "{}"),))
        is_told = any("error" in message.content for message in messages if message.role == "tool")
        return Reply(SORRY if is_told else other)

    model = FakeLanguageModel(reply)
    models = instant_backends(recognizer=FakeRecognizer(["hello"]), language_model=model)
    async with Caller(clock, models, replace(AGENT, tool_timeout_ms=3_000)) as caller:
        await called(caller)
        await caller.say(800)
        await caller.listen_until("conversation.item.added", count=5)
        assert len(caller.of("response.created")) == 2 and len(caller.of("response.done")) == 1
        await caller.listen_until("response.done", count=3)
        await caller.wait_quietly(500)
        items = caller.session.protocol.conversation.items()
    assert caller.transcript() == other + SORRY and len(caller.of("response.created")) == 3
    kinds = [type(item).__name__ for item in items]
    assert kinds == ["Message", "FunctionCall", "FunctionCallOutput", *["Message"] * 3]
    added = caller.of("conversation.item.added")[-2].event
    assert added["previous_item_id"] == items[1].id and added["item"]["id"] == items[2].id
    roles = [message.role for message in model.prompts[-1][-5:]]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]


@pytest.mark.parametrize("timeout_ms", [0, 1_000])
async def test_where_the_client_decides_what_follows_nothing_is_done(
    clock: Clock, timeout_ms: int
) -> None:
    async with Caller(clock, backends(), replace(AGENT, tool_timeout_ms=timeout_ms)) as caller:
        if timeout_ms:
            audio = {"input": {"turn_detection": {"type": "server_vad", "create_response": False}}}
            caller.send("session.update", session={"type": "realtime", "audio": audio})
        caller.send("response.create")
        await caller.wait_for("response.done")
        await caller.wait_quietly(120_000 if not timeout_ms else 5_000)
    assert len(caller.of("response.created")) == 1
    kinds = [r.event["item"]["type"] for r in caller.of("conversation.item.added")]
    assert kinds == ["function_call"]


def test_the_start_names_the_tools_of_the_client(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    _tell_of_clients_tools(AgentConfig(tools=AGENT.tools[1:]))
    assert not caplog.records
    _tell_of_clients_tools(AGENT)
    assert caplog.messages == ["the client has to answer calls of these tools, within 10 s: book"]
