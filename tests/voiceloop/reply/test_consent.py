"""A call that the caller has to allow: asked for in the call, made after a yes, never before."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, Reply, instant_backends
from tests.tables import each_row
from tests.tool_service import ANY, Service, box
from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.agent_file import check_agent
from voiceloop.backends import Backends, ChatMessage, ToolCall
from voiceloop.errors import ConfigError
from voiceloop.tools.consent import (
    ASKED,
    MAX_QUESTION_CHARS,
    NO,
    SPEECH,
    UNASKABLE,
    UNCLEAR,
    WAITS,
    Answer,
    answer_of,
    question_of,
)

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
ORDER_17: dict[str, Any] = {
    "type": "object",
    "required": ["order"],
    "properties": {"order": {"type": "integer"}, "reason": {"type": "string"}},
}
REFUND = AgentTool(
    "refund_order", "", ORDER_17, url="https://shop.test/", trusted=True, confirm=True
)
SEARCH = AgentTool("search", "", ANY, url="https://shop.test/", side_effect_free=True)
WRITE = AgentTool("write", "", ANY, url="https://shop.test/", trusted=True)
QUESTION = "Shall I do this: refund order, order 17? Please say yes or no."


def insisting(
    *heard: str,
    name: str = "refund_order",
    arguments: str = '{"order": 17}',
    p_end: float = 0.9,
) -> Backends:
    """A model that calls the tool in every turn, whatever the caller said."""

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        if messages[-1].role == "tool":
            return Reply("Fine.")
        return Reply("", (ToolCall(f"c{len(messages)}", name, arguments),))

    return instant_backends(
        recognizer=FakeRecognizer(heard, ms_per_word=100),
        language_model=FakeLanguageModel(reply, p_end_of_turn=lambda text: p_end),
    )


def n_turns(messages: tuple[ChatMessage, ...]) -> int:
    return sum(message.role == "user" for message in messages)


def outputs(caller: Caller) -> list[str]:
    items = [received.event["item"] for received in caller.of("conversation.item.added")]
    texts = [item["output"] for item in items if item["type"] == "function_call_output"]
    return [json.loads(text)["status"] if "status" in text else text for text in texts]


async def turns(caller: Caller, n: int) -> None:
    """So many turns, each said once the reply to the last one is over."""
    for number in range(n):
        await caller.say(700)
        await caller.listen_until("response.done", count=2 * number + 2)
        await caller.wait_quietly(300)


@pytest.mark.parametrize(
    ("language", "answer", "n_made", "told"),
    [("en", "yes please", 1, "3"), ("en", "no thanks", 0, NO), ("en", "which order", 0, UNCLEAR),
     ("de", "ja bitte", 1, "3"), ("de", "nein danke", 0, NO), ("de", "yes please", 0, UNCLEAR)],
)  # fmt: skip
async def test_the_caller_is_asked_by_voice_and_only_a_yes_has_the_call_made(
    clock: Clock, language: str, answer: str, n_made: int, told: str
) -> None:
    service = Service()
    toolbox = box(clock, refund_order=(REFUND, service))
    agent = AgentConfig(tools=(REFUND,), language=language)
    backends = insisting("refund my order", answer)
    async with Caller(clock, backends, agent, toolbox=toolbox) as caller:
        await turns(caller, 1)
        assert service.n_begun == 0 and outputs(caller) == [ASKED]
        what = "refund order, order 17"
        assert caller.transcript() == SPEECH[language].question.format(what=what)
        await caller.say(700)
        await caller.listen_until("response.done", count=4)
    assert (service.n_done, outputs(caller)) == (n_made, [ASKED, told])


async def test_a_yes_counts_for_one_call_and_for_the_arguments_it_was_said_to(clock: Clock) -> None:
    service = Service()
    toolbox = box(clock, refund_order=(REFUND, service))
    asked_for = ('{"order": 17}', '{"order": 18}', '{"order":18.0}')

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        if messages[-1].role == "tool":
            return Reply("Fine.")
        arguments = asked_for[n_turns(messages) - 1]
        return Reply("", (ToolCall(f"c{len(messages)}", "refund_order", arguments),))

    backends = instant_backends(
        recognizer=FakeRecognizer(("refund my order", "yes do it", "yes do it"), ms_per_word=100),
        language_model=FakeLanguageModel(reply),
    )
    async with Caller(clock, backends, AgentConfig(tools=(REFUND,)), toolbox=toolbox) as caller:
        await turns(caller, 3)
        # The first yes was said to 17, and the second to 18, which is spelled otherwise now.
        assert service.n_begun == 0 and outputs(caller) == [ASKED] * 3


async def test_a_yes_to_another_question_of_the_agent_is_none_to_this_one(clock: Clock) -> None:
    service = Service()
    toolbox = box(clock, refund_order=(REFUND, service))

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        if messages[-1].role == "tool" or n_turns(messages) == 2:
            return Reply("Do you like it here?")
        return Reply("", (ToolCall(f"c{len(messages)}", "refund_order", '{"order": 17}'),))

    backends = instant_backends(
        recognizer=FakeRecognizer(("refund my order", "okay do it", "yes do it"), ms_per_word=100),
        language_model=FakeLanguageModel(reply),
    )
    async with Caller(clock, backends, AgentConfig(tools=(REFUND,)), toolbox=toolbox) as caller:
        for n_done in (2, 3, 5):
            await caller.say(700)
            await caller.listen_until("response.done", count=n_done)
            await caller.wait_quietly(300)
    assert service.n_begun == 0 and outputs(caller) == [ASKED, UNCLEAR]


async def test_a_question_that_was_cut_off_is_answered_by_no_yes(clock: Clock) -> None:
    service = Service()
    toolbox = box(clock, refund_order=(REFUND, service))
    backends = insisting("refund my order", "yes yes yes yes go ahead do it yes")
    async with Caller(clock, backends, AgentConfig(tools=(REFUND,)), toolbox=toolbox) as caller:
        await caller.say(700)
        await caller.listen_until("response.output_audio.delta")
        await caller.say(1800)
        await caller.listen_until("response.done", count=4)
        await caller.wait_quietly(500)
    assert service.n_begun == 0 and "cancelled" in caller.statuses()


async def test_an_answer_after_a_minute_is_none(clock: Clock) -> None:
    service = Service()
    toolbox = box(clock, refund_order=(REFUND, service))
    backends = insisting("refund my order", "yes")
    async with Caller(clock, backends, AgentConfig(tools=(REFUND,)), toolbox=toolbox) as caller:
        await turns(caller, 1)
        await caller.wait_quietly(62_000)
        await caller.say(500)
        await caller.listen_until("response.done", count=4)
    assert service.n_begun == 0 and outputs(caller) == [ASKED, ASKED]


async def test_what_has_to_be_allowed_is_never_made_ahead(clock: Clock) -> None:
    for confirm in (True, False):
        service, tool = Service(), replace(SEARCH, confirm=confirm)
        toolbox = box(clock, search=(tool, service))
        backends = insisting("how is it today please", name="search", arguments="{}", p_end=0.3)
        async with Caller(clock, backends, AgentConfig(tools=(tool,)), toolbox=toolbox) as caller:
            await caller.say(800)
            await caller.listen_until("response.done", count=2)
            [committed] = caller.of("input_audio_buffer.committed")
            assert outputs(caller) == [ASKED if confirm else "3"]
        # The one that needs no yes shows that there was time to make it ahead.
        is_early = [begun_s < committed.at_s for begun_s in service.begun_s]
        assert is_early == ([] if confirm else [True])


# --- by the client ---


def text_turn(caller: Caller, text: str = "refund it", **response: Any) -> None:
    part = {"type": "input_text", "text": text}
    item = {"type": "message", "role": "user", "content": [part]}
    caller.send("conversation.item.create", item=item)
    caller.send("response.create", response={"output_modalities": ["text"], **response})


async def test_a_client_that_wants_to_is_asked_instead_and_answers_once(clock: Clock) -> None:
    for approve, n_made, told in ((True, 1, "3"), (False, 0, NO)):
        service = Service()
        toolbox = box(clock, refund_order=(REFUND, service))
        agent = AgentConfig(tools=(REFUND,))
        async with Caller(clock, insisting(), agent, toolbox=toolbox) as caller:
            caller.send("session.update", session={"voiceloop": {"confirmations": True}})
            text_turn(caller)
            request = (await caller.wait_for("voiceloop.confirmation_requested")).event
            assert (request["name"], request["question"]) == ("refund_order", QUESTION)
            assert json.loads(request["arguments"]) == {"order": 17} and not service.n_begun
            for _ in range(2):
                caller.send("voiceloop.confirm", call_id=request["call_id"], approve=approve)
            await caller.wait_for("response.done", count=2)
            error = (await caller.wait_for("error")).event["error"]
        assert error["param"] == "call_id" and len(caller.of("error")) == 1
        assert (service.n_done, outputs(caller)) == (n_made, [told])


async def test_a_yes_after_a_hand_off_is_to_the_agent_that_asked(clock: Clock) -> None:
    """The next one has a tool of the same name, of which nobody was asked."""
    asked, other = Service(), Service()
    first, then = (box(clock, refund_order=(REFUND, service)) for service in (asked, other))
    async with Caller(clock, insisting(), AgentConfig(tools=(REFUND,)), toolbox=first) as caller:
        caller.send("session.update", session={"voiceloop": {"confirmations": True}})
        text_turn(caller)
        request = (await caller.wait_for("voiceloop.confirmation_requested")).event
        answering = caller.session._answering
        services = replace(answering.services, toolbox=then)
        caller.session._call.hand_to(answering._replace(services=services))
        caller.send("voiceloop.confirm", call_id=request["call_id"], approve=True)
        await caller.wait_quietly(2000)
    assert (asked.n_done, other.n_begun) == (1, 0)


async def test_a_client_that_never_answers_has_allowed_nothing(clock: Clock) -> None:
    service = Service()
    toolbox = box(clock, refund_order=(REFUND, service))
    agent = AgentConfig(tools=(REFUND,))
    async with Caller(clock, insisting(), agent, toolbox=toolbox) as caller:
        caller.send("session.update", session={"voiceloop": {"confirmations": True}})
        text_turn(caller)
        request = (await caller.wait_for("voiceloop.confirmation_requested")).event
        await caller.wait_quietly(61_000)
        caller.send("voiceloop.confirm", call_id=request["call_id"], approve=True)
        await caller.wait_for("error")
    assert service.n_begun == 0 and outputs(caller) == [UNCLEAR]


async def test_a_typed_call_is_asked_for_in_text_and_beside_the_call_not_at_all(
    clock: Clock,
) -> None:
    service = Service()
    toolbox = box(clock, refund_order=(REFUND, service))
    agent = AgentConfig(tools=(REFUND,))
    async with Caller(clock, insisting(), agent, toolbox=toolbox) as caller:
        text_turn(caller, conversation="none")
        await caller.wait_for("response.done", count=2)
        text_turn(caller)
        await caller.wait_for("response.done", count=4)
        said = "".join(one.event["delta"] for one in caller.of("response.output_text.delta"))
        assert said == f"Fine.{QUESTION}" and service.n_begun == 0
        text_turn(caller, "Yes.")
        await caller.wait_for("response.done", count=6)
        prompts = caller.backends.language_model.prompts  # type: ignore[attr-defined]
    assert UNASKABLE in str(prompts[1]) and service.n_done == 1


# --- after what strangers may have written ---


def lured(clock: Clock, search: AgentTool) -> tuple[Caller, Service]:
    """A model that searches, and then does what it read; in the next turn it writes at once."""

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        name = "write"
        if messages[-1].role == "tool":
            if "write" in messages[-2].tool_calls[-1].name:
                return Reply("Fine.")
        elif messages[-1].content == "look it up":
            name = "search"
        return Reply("", (ToolCall(f"c{len(messages)}", name, "{}"),))

    reads, writes = Service(), Service()
    toolbox = box(clock, search=(search, reads), write=(WRITE, writes))
    backends = instant_backends(language_model=FakeLanguageModel(reply))
    agent = AgentConfig(tools=(search, WRITE))
    return Caller(clock, backends, agent, toolbox=toolbox), writes


@pytest.mark.parametrize(("trusted", "n_made"), [(False, 0), (True, 1)])
async def test_after_an_untrusted_result_nothing_acts_unasked_until_the_caller_speaks(
    clock: Clock, trusted: bool, n_made: int
) -> None:
    caller, writes = lured(clock, replace(SEARCH, trusted=trusted))
    async with caller:
        text_turn(caller, "look it up")
        await caller.wait_for("response.done", count=3)
        assert writes.n_begun == n_made
        text_turn(caller, "write it down")
        await caller.wait_for("response.done", count=5)
        assert writes.n_begun == n_made + 1


async def test_only_one_question_is_asked_at_a_time(clock: Clock) -> None:
    service = Service()

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        if messages[-1].role == "tool":
            return Reply("Fine.")
        calls = [ToolCall(f"c{n}", "refund_order", json.dumps({"order": n})) for n in (17, 18)]
        return Reply("", tuple(calls))

    toolbox = box(clock, refund_order=(REFUND, service))
    backends = instant_backends(language_model=FakeLanguageModel(reply))
    async with Caller(clock, backends, AgentConfig(tools=(REFUND,)), toolbox=toolbox) as caller:
        text_turn(caller)
        await caller.wait_for("response.done", count=2)
    assert outputs(caller) == [ASKED, WAITS] and service.n_begun == 0


# --- words ---


@each_row(
    ("language", "text", "answer"),
    [
        ("en", "Yes.", Answer.YES), ("en", "uh yes, please go ahead", Answer.YES),
        ("en", "that's right, thank you", Answer.YES), ("en", "", Answer.UNCLEAR),
        ("en", "yes but only the second one", Answer.UNCLEAR), ("en", "please", Answer.UNCLEAR),
        ("en", "don't do that", Answer.NO), ("en", "yes no wait", Answer.NO),
        ("en-GB", "okay", Answer.YES), ("de", "Ja, auf jeden Fall!", Answer.YES),
        ("de", "nee", Answer.NO), ("fr", "d’accord", Answer.YES),
        ("es", "Sí, adelante", Answer.YES), ("it", "va bene", Answer.YES),
        ("pt", "não", Answer.NO), ("nl", "doe maar", Answer.YES),
        ("xx", "yes", Answer.YES),
    ],
)  # fmt: skip
def test_a_clear_yes_is_nothing_but_a_yes(language: str, text: str, answer: Answer) -> None:
    assert answer_of(text, language) is answer


def test_a_question_names_every_value_and_one_too_long_to_hear_is_not_asked() -> None:
    arguments = {"order": 17, "to": {"name": "Ann", "items": ["tea", 2]}, "gift": True}
    said = question_of(replace(REFUND, name="send_it"), arguments, "en")
    assert "send it, order 17, to name Ann, items tea, 2, gift true" in said
    assert question_of(REFUND, {"reason": "x" * MAX_QUESTION_CHARS}, "en") == ""


def test_a_clients_own_tool_cannot_be_confirmed_and_a_table_not_trusted() -> None:
    for tool in (AgentTool("x", confirm=True), AgentTool("x", result="{}", trusted=True)):
        with pytest.raises(ConfigError):
            check_agent(AgentConfig(tools=(tool,)), "agent.toml")
