"""Named slots in a call: filled, read back, confirmed, told to the client and the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from clients.connection import typed
from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, Reply, instant_backends
from tests.tool_service import Service, box
from voiceloop.agent import AgentConfig, AgentSlot, AgentTool
from voiceloop.backends import ChatMessage, ToolCall
from voiceloop.capabilities import Capabilities

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]

AGENT = AgentConfig(slots=(AgentSlot("phone number", "phone", name="phone"),))
ASKED = "What is your phone number?"
NUMBER = "five five five oh one four two one one two"
READ_BACK = "I have 5 5 5, 0 1 4, 2 1 1 2, is that right?"
EXTRAS = {"voiceloop": {"slots": True, "timeline": True}}


def filled(caller: Caller) -> list[tuple[Any, ...]]:
    events = [received.event for received in caller.of("voiceloop.slot")]
    return [(event["name"], event["value"], event["state"]) for event in events]


async def test_a_spoken_number_is_read_back_and_confirmed_and_the_model_told(clock: Clock) -> None:
    recognizer = FakeRecognizer(["book a table", NUMBER, "no six at the end", "yes that's right"])
    model = FakeLanguageModel([ASKED, "Booked."], p_end_of_turn=lambda text: 0.9)
    backends = instant_backends(recognizer=recognizer, language_model=model)
    async with Caller(clock, backends, AGENT, chunk_ms=40) as caller:
        caller.send("session.update", session=EXTRAS)
        for n_turns in range(1, 5):
            await caller.say(2500)
            await caller.listen_until("voiceloop.timeline", count=n_turns)
    corrected = READ_BACK.replace("2 1 1 2", "2 1 1 6")
    assert caller.transcript() == f"{ASKED}{READ_BACK}{corrected}Booked."
    assert filled(caller) == [
        ("phone", "5550142112", "heard"),
        ("phone", "5550142116", "heard"),
        ("phone", "5550142116", "confirmed"),
    ]
    told = [received.event["timeline"] for received in caller.of("voiceloop.timeline")]
    assert [one.get("answered_by") for one in told] == [None, "slots", "slots", None]
    assert len({prompt[-1].content for prompt in model.prompts}) == 2  # read-backs need no model
    assert "- phone = 5550142116" in model.prompts[-1][-1].behind
    assert model.prompts[-1][-1].content == "yes that's right"


async def test_a_reply_made_in_the_pause_knows_what_was_confirmed(clock: Clock) -> None:
    recognizer = FakeRecognizer(["book a table", NUMBER, "yes that's right"])
    model = FakeLanguageModel([ASKED, "Booked."], p_end_of_turn=lambda text: 0.9, ttft_ms=50)
    backends = instant_backends(recognizer=recognizer, language_model=model)
    agent = AgentConfig(slots=AGENT.slots, eagerness="low")
    async with Caller(clock, backends, agent, chunk_ms=40) as caller:
        for n_turns in range(1, 4):
            await caller.say(2500)
            await caller.listen_until("voiceloop.timeline", count=n_turns)
    facts = caller.of("voiceloop.timeline")[-1].event["timeline"]["anticipation"]
    assert facts["draft"] == "released"
    assert "- phone = 5550142112" in model.prompts[-1][-1].behind


async def test_a_session_in_another_language_than_the_slots_is_refused_by_name() -> None:
    now = asyncio.get_running_loop().time
    known = Capabilities(fills_slots=True)
    async with Caller(now, instant_backends(known=lambda: known), AGENT) as caller:
        for language in ("de", "en-GB"):
            audio = {"input": {"transcription": {"language": language}}}
            caller.send("session.update", session={"audio": audio})
        await caller.wait_for("session.updated")
    (refused,) = (received.event["error"] for received in caller.of("error"))
    assert refused["param"] == "session.audio.input.transcription.language"
    assert "en, the language of this agent's slots" in refused["message"]
    assert "'de'" in refused["message"]


async def test_nobody_is_told_of_slots_who_did_not_ask() -> None:
    caller, _ = await typed_call(ASKED, NUMBER)
    assert caller.of("voiceloop.slot") == []


async def test_typed_words_fill_a_slot_too() -> None:
    caller, model = await typed_call(ASKED, NUMBER, "yes", extras=EXTRAS)
    assert filled(caller) == [
        ("phone", "5550142112", "heard"),
        ("phone", "5550142112", "confirmed"),
    ]
    assert "- phone = 5550142112" in model.prompts[-1][-1].behind


async def test_another_response_to_the_same_words_tells_nothing_anew() -> None:
    now = asyncio.get_running_loop().time
    model = FakeLanguageModel([ASKED, "Fine.", "Fine again."])
    async with Caller(now, instant_backends(language_model=model), AGENT) as caller:
        caller.send("session.update", session=EXTRAS)
        for n_done, text in enumerate(("hello", NUMBER, "", ""), 1):
            await type_turn(caller, text, n_done)
    assert filled(caller) == [("phone", "5550142112", "heard")]


async def test_a_later_turn_is_told_of_a_slot_whose_turn_was_deleted() -> None:
    now = asyncio.get_running_loop().time
    model = FakeLanguageModel([ASKED, "Noted.", "Anything else?"])
    async with Caller(now, instant_backends(language_model=model), AGENT) as caller:
        for n_done, text in enumerate(("hello", NUMBER, "yes", "thanks"), 1):
            await type_turn(caller, text, n_done)
        assert "- phone" not in model.prompts[-1][-1].behind  # it stands behind the turn before
        for received in caller.of("conversation.item.added"):
            if (item := received.event["item"])["role"] == "user" and "yes" in str(item["content"]):
                caller.send("conversation.item.delete", item_id=item["id"])
        await type_turn(caller, "and now", 5)
    assert "- phone = 5550142112" in model.prompts[-1][-1].behind


async def typed_call(
    *turns: str, extras: dict[str, Any] | None = None
) -> tuple[Caller, FakeLanguageModel]:
    now = asyncio.get_running_loop().time
    model = FakeLanguageModel([turns[0], "Booked."])
    async with Caller(now, instant_backends(language_model=model), AGENT) as caller:
        if extras is not None:
            caller.send("session.update", session=extras)
        for n_done, text in enumerate(("book a table", *turns[1:]), 1):
            await type_turn(caller, text, n_done)
    return caller, model


async def type_turn(caller: Caller, text: str, n_done: int) -> None:
    """text: "" for another response to what was said."""
    if text:
        caller.send("conversation.item.create", item=typed(text))
    caller.send("response.create", response={"output_modalities": ["text"]})
    await caller.wait_for("response.done", count=n_done)


CALLS_BACK = AgentTool(
    "call_back",
    parameters={
        "type": "object",
        "required": ["phone"],
        "properties": {"phone": {"type": "string"}, "when": {"type": "string"}},
    },
    url="https://shop.test/",
    from_slots=("phone",),
)


@pytest.mark.parametrize(
    ("answer", "called"), [("yes", [{"when": "now", "phone": "5550142112"}]), ("when is it", [])]
)
async def test_a_tool_is_given_what_was_confirmed_and_nothing_that_the_model_made_up(
    answer: str, called: list[dict[str, str]]
) -> None:
    now = asyncio.get_running_loop().time
    arguments = '{"phone": "1", "when": "now"}'

    def reply(messages: tuple[ChatMessage, ...]) -> str | Reply:
        last = messages[-1]
        if last.content == answer:
            return Reply("", (ToolCall("c1", "call_back", arguments),))
        return ASKED if last.role == "user" else last.content

    agent, service = AgentConfig(tools=(CALLS_BACK,), slots=AGENT.slots), Service()
    backends = instant_backends(language_model=FakeLanguageModel(reply))
    toolbox = box(now, call_back=(CALLS_BACK, service))
    async with Caller(now, backends, agent, toolbox=toolbox) as caller:
        for n_done, text in enumerate(("call me", NUMBER), 1):
            await type_turn(caller, text, n_done)
        await type_turn(caller, answer, 4 if called else 3)
    assert service.done == called
