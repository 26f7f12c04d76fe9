"""A reply that breaks is never heard as it is: calls begun as text, stray marks, a stuck model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from clients.connection import typed
from tests.callers import Caller
from tests.fakes import FakeBranch, FakeLanguageModel, FakeRecognizer, Reply, instant_backends
from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.backends import ChatMessage, GenerateParams, ToolCall
from voiceloop.reply.plan import GENERATE_DEADLINE_S

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
PARAMETERS = {
    "type": "object",
    "properties": {"day": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["day", "people"],
}
BOOK = AgentTool("book", parameters=PARAMETERS)
BARE = '{{"name": "book", "arguments": {"day": "Friday", "people": 2}}}'
FRIDAY = '{"day": "Friday", "people": 2}'


def ask(caller: Caller, **response: object) -> None:
    caller.send("response.create", response=response)


def texts(caller: Caller) -> str:
    return "".join(r.event["delta"] for r in caller.of("response.output_text.delta"))


def called(caller: Caller) -> list[str]:
    return [r.event["arguments"] for r in caller.of("response.function_call_arguments.done")]


SENTENCE = "We close at five every day. "
CASH = "You can pay with " + "cash " * 30 + 'total", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("written", "heard"),
    [
        (CASH, "You can pay with cash cash cash Pardon me?"),
        ("We close at five. </tool_call> Bye.", "We close at five. Pardon me?"),
        (SENTENCE * 7, SENTENCE * 2),
    ],
)
@pytest.mark.parametrize("modality", ["audio", "text"])
async def test_a_reply_that_breaks_ends_in_the_fallback_or_behind_a_sentence(
    clock: Clock, written: str, heard: str, modality: str
) -> None:
    backends = instant_backends(language_model=FakeLanguageModel([written]))
    async with Caller(clock, backends, AgentConfig(fallback="Pardon me?")) as caller:
        ask(caller, output_modalities=[modality])
        await caller.wait_for("response.done")
    told = caller.transcript() if modality == "audio" else texts(caller)
    assert told.split() == heard.split()
    assert caller.statuses() == ["completed"] and not called(caller)


@pytest.mark.parametrize("name", ["book", "bok"])
@pytest.mark.parametrize("tools", [(AgentTool("bock"),), ()])
async def test_a_call_of_no_tool_that_was_offered_is_not_heard(
    clock: Clock, name: str, tools: tuple[AgentTool, ...]
) -> None:
    model = FakeLanguageModel([BARE.replace("book", name)])
    agent = AgentConfig(fallback="Pardon me?", tools=tools)
    async with Caller(clock, instant_backends(language_model=model), agent) as caller:
        ask(caller)
        await caller.wait_for("response.done")
    assert caller.transcript() == "Pardon me?" and len(model.prompts) == 1 and not called(caller)


async def test_a_call_that_breaks_where_no_tool_was_offered_ends_in_the_fallback(
    clock: Clock,
) -> None:
    model = FakeLanguageModel([Reply("One moment.", is_malformed=True)])
    agent = AgentConfig(fallback="Pardon me?")
    async with Caller(clock, instant_backends(language_model=model), agent) as caller:
        ask(caller)
        await caller.wait_for("response.done")
    assert caller.transcript().split() == "One moment. Pardon me?".split()
    assert caller.statuses() == ["completed"] and len(model.prompts) == 1


@pytest.mark.parametrize("with_tool", [False, True])
@pytest.mark.parametrize(
    "answer",
    ['{"name": "Ann", "age": 3}', '{"name": "Ann", "parameters": [1]}', '[{"name": "book"}]'],
)
async def test_an_answer_in_json_is_written_as_it_is(
    clock: Clock, answer: str, with_tool: bool
) -> None:
    model = FakeLanguageModel([answer])
    agent = AgentConfig(tools=(BOOK,) if with_tool else ())
    async with Caller(clock, instant_backends(language_model=model), agent) as caller:
        ask(caller, output_modalities=["text"])
        await caller.wait_for("response.done")
    assert texts(caller) == answer
    assert len(model.prompts) == 1 and not called(caller)


async def test_a_stuck_model_writes_no_further(clock: Clock) -> None:
    model = FakeLanguageModel([CASH], ms_per_token=1000)
    async with Caller(clock, instant_backends(language_model=model)) as caller:
        ask(caller)
        begun_s = clock()
        done = await caller.wait_for("response.done")
        assert done.at_s - begun_s < 15 and not model.open_branches


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("One moment.", CASH),
        ("One moment.", "</tool_call> Bye."),
        ("One moment." + " cash" * 6, ""),  # what repeats is known at the end only
    ],
)
@pytest.mark.parametrize("modality", ["audio", "text"])
async def test_a_call_is_answered_though_the_text_beside_it_breaks(
    clock: Clock, before: str, after: str, modality: str
) -> None:
    first = Reply(before, (ToolCall("call_1", "hours", "{}"),), text_after=after)
    model = FakeLanguageModel([first, "We open at nine."])
    agent = AgentConfig(tools=(AgentTool("hours", result="nine"),), fallback="Pardon me?")
    async with Caller(clock, instant_backends(language_model=model), agent) as caller:
        ask(caller, output_modalities=[modality])
        begun_s = clock()
        done = await caller.wait_for("response.done", count=2)
    told = caller.transcript() if modality == "audio" else texts(caller)
    assert told.startswith("One moment.") and told.endswith("We open at nine.")
    assert "Pardon" not in told and "tool_call" not in told and "cash cash cash cash" not in told
    assert done.at_s - begun_s < 10 and caller.statuses() == ["completed"] * 2


@pytest.mark.parametrize("modality", ["audio", "text"])
async def test_a_call_begun_as_text_is_asked_for_as_a_call(clock: Clock, modality: str) -> None:
    model = FakeLanguageModel([BARE])
    agent = AgentConfig(tools=(AgentTool("book"),))
    async with Caller(clock, instant_backends(language_model=model), agent) as caller:
        caller.send("conversation.item.create", item=message("a table on friday"))
        ask(caller, output_modalities=[modality])
        await caller.wait_for("response.done")
    # The fake answers a demand with a call; the text of its first answer is nowhere.
    assert [prompt[-1].content for prompt in model.prompts] == ["a table on friday"] * 2
    assert len(called(caller)) == 1 and not caller.of("response.output_audio.delta")
    assert not texts(caller)
    assert caller.statuses() == ["completed"]


async def test_who_is_asked_again_is_told_how_long_the_caller_still_waits(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    told_ms: list[float] = []
    commit = FakeBranch.commit

    def recorded(self: FakeBranch, tail: tuple[ChatMessage, ...], params: GenerateParams) -> bool:
        told_ms.append(params.within_ms)
        return commit(self, tail, params)

    monkeypatch.setattr(FakeBranch, "commit", recorded)
    model = FakeLanguageModel([BARE], ttft_ms=2000)
    agent = AgentConfig(tools=(AgentTool("book"),))
    async with Caller(clock, instant_backends(language_model=model), agent) as caller:
        caller.send("conversation.item.create", item=message("a table on friday"))
        ask(caller)
        await caller.wait_for("response.done")
    first_ms, second_ms = told_ms
    assert first_ms == agent.waiting.first_token_ms
    assert second_ms == pytest.approx(1000 * GENERATE_DEADLINE_S - 2000, abs=100)


def message(text: str) -> dict[str, Any]:
    return typed(text)


@pytest.mark.parametrize("lacking", ['{"day": "Friday"}', '{"day": "", "people": 2}', "[]", "{"])
async def test_a_call_without_its_required_arguments_does_not_leave(
    clock: Clock, lacking: str
) -> None:
    seen: list[ChatMessage] = []

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        seen.append(messages[-1])
        is_told = messages[-1].role == "tool"
        return Reply("How many people?") if is_told else Reply("", (call(lacking),))

    agent = AgentConfig(tools=(BOOK,))
    backends = instant_backends(language_model=FakeLanguageModel(reply))
    async with Caller(clock, backends, agent) as caller:
        ask(caller)
        await caller.wait_for("response.done")
        kinds = [type(item).__name__ for item in caller.session.protocol.conversation.items()]
    assert caller.transcript() == "How many people?"
    assert (caller.statuses(), called(caller), kinds) == (["completed"], [], ["Message"])
    error = json.loads(seen[-1].content)["error"]
    assert ("people" in error) is ('"people"' not in lacking)


@pytest.mark.parametrize("modality", ["audio", "text"])
async def test_the_words_of_the_second_answer_stand_apart_from_those_of_the_first(
    clock: Clock, modality: str
) -> None:
    model = FakeLanguageModel([Reply("One moment.", (call("{}"),)), "How many people?"])
    agent = AgentConfig(tools=(BOOK,))
    async with Caller(clock, instant_backends(language_model=model), agent) as caller:
        ask(caller, output_modalities=[modality])
        await caller.wait_for("response.done")
    told = caller.transcript() if modality == "audio" else texts(caller)
    assert told == "One moment. How many people?"


async def test_the_model_may_make_up_for_a_call_that_lacked_something(clock: Clock) -> None:
    model = FakeLanguageModel([Reply("", (call("{}"),)), Reply("", (call(FRIDAY),))])
    backends = instant_backends(language_model=model)
    async with Caller(clock, backends, AgentConfig(tools=(BOOK,))) as caller:
        ask(caller)
        done = await caller.wait_for("response.done")
    assert called(caller) == [FRIDAY]
    assert len(model.prompts) == 2
    assert done.event["response"]["usage"]["output_tokens"] == 2  # the calls, both


@pytest.mark.parametrize("said", ["", "Sure, one moment."])
async def test_a_call_that_breaks_off_is_asked_for_once_more_and_bound(
    clock: Clock, said: str
) -> None:
    model = FakeLanguageModel([Reply(said, is_malformed=True)])
    agent = AgentConfig(tools=(AgentTool("book"),))
    async with Caller(clock, instant_backends(language_model=model), agent) as caller:
        ask(caller)
        await caller.wait_for("response.done")
    assert len(model.prompts) == 2 and len(called(caller)) == 1
    assert (caller.transcript(), caller.statuses()) == (said, ["completed"])


async def test_a_call_that_keeps_breaking_off_is_spoken_for(clock: Clock) -> None:
    class Stubborn(FakeLanguageModel):
        def reply_to(self, messages: tuple[ChatMessage, ...], index: int | None = None) -> Reply:
            return Reply("One moment.", is_malformed=True)

    model = Stubborn([""])
    agent = AgentConfig(fallback="Pardon me?")  # without tools nothing can be bound
    async with Caller(clock, instant_backends(language_model=model), agent) as caller:
        ask(caller)
        await caller.wait_for("response.done")
    assert caller.transcript().endswith("Pardon me?")


async def test_a_model_that_never_gives_what_is_required_is_asked_twice_and_spoken_for(
    clock: Clock,
) -> None:
    model = FakeLanguageModel([Reply("One moment.", (call("{}"),))])
    agent = AgentConfig(tools=(BOOK,), fallback="Pardon me?")
    async with Caller(clock, instant_backends(language_model=model), agent) as caller:
        ask(caller)
        await caller.wait_for("response.done")
    assert len(model.prompts) == 2 and not called(caller)
    assert caller.transcript().endswith("Pardon me?")


async def test_a_reply_made_ahead_that_breaks_is_heard_as_one_asked_for(clock: Clock) -> None:
    heard = []
    for p_end in (0.99, 0.0):
        backends = instant_backends(
            recognizer=FakeRecognizer(["how can i pay here"], ms_per_word=150),
            language_model=FakeLanguageModel([CASH], p_end_of_turn=lambda text, p=p_end: p),
        )
        async with Caller(clock, backends, AgentConfig(fallback="Pardon me?")) as caller:
            await caller.say(900)
            await caller.listen_until("response.done")
        heard.append(caller.transcript().split())
    assert heard[0] == heard[1] == "You can pay with cash cash cash Pardon me?".split()


def call(arguments: str) -> ToolCall:
    return ToolCall("call_1", "book", arguments)
