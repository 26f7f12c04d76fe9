"""A tool that a plain question names with its value: called by rule, in a whole session."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from clients.connection import typed
from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, Reply, instant_backends
from tests.tool_service import Service, box
from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.backends import Backends, ChatMessage
from voiceloop.knowledge.told import DONT_KNOW

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
NO_SCHEMA = {"required": ["day"], "properties": {"day": {"enum": 5}}}
ITEM = {"type": "object", "required": ["item"], "properties": {"item": {"type": "string"}}}
TABLE = AgentTool(
    "get_price", "Price of one item.", ITEM, side_effect_free=True, result={"bell": {"price": "$4"}}
)
CHOICE = ITEM | {"properties": {"item": {"type": "string", "enum": ["bell"]}}}
SERVICE = AgentTool(
    "get_price", "Price of one item.", CHOICE, url="https://shop.test/", side_effect_free=True
)
ASKED = "how much is a bell"


def models() -> tuple[Backends, FakeLanguageModel]:
    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        return Reply("The model speaks.")

    model = FakeLanguageModel(reply, p_end_of_turn=lambda text: 0.9)
    heard = FakeRecognizer([ASKED], ms_per_word=100)
    return instant_backends(recognizer=heard, language_model=model), model


def agent(tool: AgentTool) -> AgentConfig:
    return AgentConfig("You are Tom.", tools=(tool,), quote="always")


def outputs(caller: Caller) -> list[str]:
    items = [received.event["item"] for received in caller.of("conversation.item.added")]
    return [item["output"] for item in items if item["type"] == "function_call_output"]


async def test_a_spoken_question_has_its_tool_called_and_the_result_said(clock: Clock) -> None:
    backends, model = models()
    async with Caller(clock, backends, agent(TABLE)) as caller:
        await caller.say(600)
        await caller.listen_until("voiceloop.timeline")
    (called,) = caller.of("response.function_call_arguments.done")
    assert json.loads(called.event["arguments"]) == {"item": "bell"}
    assert outputs(caller) == ['{"price": "$4"}'] and caller.transcript() == "Bell: $4."
    timeline = caller.of("voiceloop.timeline")[-1].event["timeline"]
    assert timeline["answered_by"] == "quote" and not model.prompts


async def test_a_service_is_asked_in_the_callers_pause(clock: Clock) -> None:
    service, (backends, model) = Service(takes_s=0.1), models()
    service.answer = '{"price": "$4"}'
    toolbox = box(clock, get_price=(SERVICE, service))
    async with Caller(clock, backends, agent(SERVICE), toolbox=toolbox) as caller:
        ended_s = await caller.say(600)
        await caller.listen_until("voiceloop.timeline")
    (called,) = caller.of("response.function_call_arguments.done")
    assert ended_s < service.begun_s[0] < called.at_s and service.n_done == 1
    assert caller.transcript() == "Bell: $4." and not model.prompts


async def test_a_result_that_is_no_few_words_is_the_models_to_tell(clock: Clock) -> None:
    service, (backends, model) = Service(takes_s=0.1), models()
    service.answer = '{"error": "closed"}'
    toolbox = box(clock, get_price=(SERVICE, service))
    async with Caller(clock, backends, agent(SERVICE), toolbox=toolbox) as caller:
        await caller.say(600)
        await caller.listen_until("voiceloop.timeline")
    assert caller.transcript() == "The model speaks." and service.n_done == 1
    assert [message.role for message in model.prompts[0][-3:]] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    "session",
    [{"tools": []}, {"tool_choice": "none"}, {"instructions": "You are somebody else entirely."}],
)
async def test_a_typed_question_asks_the_tool_only_where_the_session_has_it(
    clock: Clock, session: dict[str, object]
) -> None:
    item = typed("How much is a bell?")
    backends, _ = models()
    async with Caller(clock, backends, agent(TABLE)) as caller:
        settings = {"type": "realtime", "output_modalities": ["text"]} | session
        caller.send("session.update", session=settings)
        caller.send("conversation.item.create", item=item)
        caller.send("response.create")
        await caller.wait_for("response.done")
    assert bool(caller.of("response.function_call_arguments.done")) == ("instructions" in session)


@pytest.mark.parametrize("kind", ["string", "integer"])
async def test_a_day_that_a_question_names_is_looked_up_though_the_tool_lists_none(
    clock: Clock, kind: str
) -> None:
    """A number of days or a date is no name of one."""
    day = {"type": "object", "required": ["day"], "properties": {"day": {"type": kind}}}
    url = "https://clinic.test/"
    slots = AgentTool("find_free_slots", "Free times.", day, url=url, side_effect_free=True)
    service, (backends, _) = Service(), models()
    service.answer = '{"slots": "9 am"}'
    toolbox = box(clock, find_free_slots=(slots, service))
    async with Caller(clock, backends, agent(slots), toolbox=toolbox) as caller:
        caller.send("session.update", session={"type": "realtime", "output_modalities": ["text"]})
        caller.send("conversation.item.create", item=typed("And which are free on Monday?"))
        caller.send("response.create")
        await caller.wait_for("voiceloop.timeline")
    called = caller.of("response.function_call_arguments.done")
    if kind == "integer":
        assert called == []
        return
    assert json.loads(called[0].event["arguments"]) == {"day": "monday"}
    assert caller.of("response.output_text.done")[-1].event["text"] == "Monday: 9 am."


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([], DONT_KNOW),
        ([{"type": "function", "name": "track"}], "The model speaks."),
        ([{"type": "function", "name": "track", "parameters": NO_SCHEMA}], "The model speaks."),
    ],
    ids=["nobody's", "a client's", "of no sound schema"],
)
async def test_a_clients_tool_may_know_what_the_instructions_do_not(
    clock: Clock, tools: list[dict[str, object]], said: str
) -> None:
    backends, _ = models()
    told = AgentConfig(instructions="We are in Kirk Street. We sell bells.", quote="always")
    async with Caller(clock, backends, told) as caller:
        caller.send("session.update", session={"type": "realtime", "tools": tools})
        caller.send("conversation.item.create", item=typed("How do I track it?"))
        caller.send("response.create")
        await caller.wait_for("response.done")
    assert caller.transcript() == said


async def test_and_the_other_asks_its_price_behind_a_price_question(clock: Clock) -> None:
    backends, model = models()
    async with Caller(clock, backends, agent(TABLE)) as caller:
        caller.send("session.update", session={"type": "realtime", "output_modalities": ["text"]})
        for text in ("How much is a horn?", "And the bell?"):
            caller.send("conversation.item.create", item=typed(text))
            caller.send("response.create")
            await caller.wait_for("response.done")
        await caller.listen_until("voiceloop.timeline")
    (called,) = caller.of("response.function_call_arguments.done")
    assert json.loads(called.event["arguments"]) == {"item": "bell"}
