"""Tools that the server calls, in a whole session: what the caller hears, and what is done."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.callers import Caller
from tests.fakes import (
    FakeLanguageModel,
    FakeRecognizer,
    Replies,
    Reply,
    calls_first,
    instant_backends,
)
from tests.tool_service import ANY, Service, box
from voiceloop.agent import AgentConfig, AgentTool, Waiting
from voiceloop.backends import Backends, ChatMessage, ToolCall
from voiceloop.canary.turns import Measure, Variant
from voiceloop.config import Ahead, Config
from voiceloop.listening.segment import EARLY_MS
from voiceloop.operation import CanarySettings
from voiceloop.telemetry.metrics import Metrics
from voiceloop.tools.executor import ToolFailed
from voiceloop.tools.pending import POSTPONED

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
READ = AgentTool("price", "", ANY, url="https://shop.test/", side_effect_free=True)
WRITE = AgentTool("order", "", ANY, url="https://shop.test/")
AGENT = AgentConfig(tools=(READ, WRITE))


def calling(*names: str, words: str = "") -> Backends:
    """A model that calls these tools at once, and then says what came of them."""

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        if messages[-1].role != "tool":
            return Reply(words, tuple(ToolCall(f"{n}_{len(messages)}", n, "{}") for n in names))
        results = [message.content for message in messages if message.role == "tool"]
        return Reply(f"It is {' and '.join(results)}.")

    return instant_backends(
        recognizer=FakeRecognizer(["how much is it", "no wait stop"], ms_per_word=100),
        language_model=sure(reply),
    )


def sure(replies: Replies) -> FakeLanguageModel:
    """A model that takes the turn for over at once, so that a reply is made ahead."""
    return FakeLanguageModel(replies, p_end_of_turn=lambda text: 0.9)


def outputs(caller: Caller) -> list[str]:
    items = [received.event["item"] for received in caller.of("conversation.item.added")]
    return [item["output"] for item in items if item["type"] == "function_call_output"]


async def test_two_tools_of_one_reply_are_called_together_and_spoken_of_once(clock: Clock) -> None:
    reads, writes = Service(), Service()
    writes.answer = "4"
    toolbox = box(clock, price=(READ, reads), order=(WRITE, writes))
    async with Caller(clock, calling("price", "order"), AGENT, toolbox=toolbox) as caller:
        await caller.say(800)
        await caller.listen_until("response.done", count=2)
        (first, second) = caller.of("response.done")
        called = caller.of("response.function_call_arguments.done")
    assert caller.transcript() == "It is 3 and 4."
    assert first.at_s - called[-1].at_s == pytest.approx(0.4, abs=0.05)  # not 0.8
    assert outputs(caller) == ["3", "4"] and second.at_s > first.at_s


async def test_a_side_effect_waits_until_what_is_said_with_it_was_said(clock: Clock) -> None:
    service = Service()
    toolbox = box(clock, order=(WRITE, service), price=(READ, Service()))
    backends = calling("order", words="I will order that for you now, one moment please.")
    async with Caller(clock, backends, AGENT, toolbox=toolbox) as caller:
        await caller.say(800)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(EARLY_MS + 100.0)  # it is not taken back any more
        await caller.say(900)  # no wait stop
        await caller.listen_until("response.done")
        await caller.wait_quietly(3000)
        assert service.n_begun <= 1  # by a reply to "no wait stop" alone
        first = caller.of("response.done")[0]
    await toolbox.close()
    assert caller.statuses()[0] == "cancelled"
    assert [json.loads(text) for text in outputs(caller)][:1] == [
        {"error": "not called: the reply was broken off"}
    ]
    assert all(begun_s > first.at_s for begun_s in service.begun_s)


async def test_a_caller_who_speaks_while_an_order_is_under_way_loses_and_doubles_nothing(
    clock: Clock,
) -> None:
    service = Service(takes_s=2.0)
    toolbox = box(clock, order=(WRITE, service), price=(READ, Service()))

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        if messages[-1].content == "order it":
            return Reply("", (ToolCall("c1", "order", "{}"),))
        return Reply("Fine.")

    backends = instant_backends(
        recognizer=FakeRecognizer(["order it", "hello are you there"], ms_per_word=100),
        language_model=FakeLanguageModel(reply),
    )
    async with Caller(clock, backends, AGENT, toolbox=toolbox) as caller:
        await caller.say(600)
        await caller.listen_until("response.function_call_arguments.done")
        await caller.say(900)
        await caller.wait_quietly(4000)
        messages = caller.session.protocol.shown.messages()
    assert service.n_done == service.n_begun == 1
    assert outputs(caller) == ["3"]
    roles = [message.role for message in messages]
    at = roles.index("tool")
    assert messages[at - 1].tool_calls[0].call_id == messages[at].tool_call_id == "c1"


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_a_call_that_the_client_deletes_or_answers_itself_has_no_second_result(
    clock: Clock, is_deleted: bool
) -> None:
    service = Service(takes_s=2.0)
    toolbox = box(clock, order=(WRITE, service), price=(READ, Service()))
    async with Caller(clock, calling("order"), AGENT, toolbox=toolbox) as caller:
        await caller.say(600)
        await caller.listen_until("response.function_call_arguments.done")
        (done,) = caller.of("response.function_call_arguments.done")
        if is_deleted:
            caller.send("conversation.item.delete", item_id=done.event["item_id"])
        else:
            output = {"type": "function_call_output", "output": "nine"}
            caller.send(
                "conversation.item.create", item=output | {"call_id": done.event["call_id"]}
            )
        await caller.listen_until("response.done", count=2)
    assert outputs(caller) == ([] if is_deleted else ["nine"]) and service.n_done == 1


async def test_a_line_that_drops_leaves_the_order_to_its_end(clock: Clock) -> None:
    service = Service(takes_s=1.0)
    toolbox = box(clock, order=(WRITE, service), price=(READ, Service()))
    async with Caller(clock, calling("order"), AGENT, toolbox=toolbox) as caller:
        await caller.say(600)
        await caller.listen_until("response.function_call_arguments.done")
        await caller.wait_quietly(100)
    assert service.n_done == 0
    await toolbox.close()
    assert (service.n_begun, service.n_done) == (1, 1)


async def test_a_tool_that_has_no_answer_is_told_to_the_model_and_the_turn_goes_on(
    clock: Clock,
) -> None:
    tool = AgentTool(
        "price", "", ANY, url="https://shop.test/", side_effect_free=True, deadline_ms=500
    )
    agent, toolbox = AgentConfig(tools=(tool,)), box(clock, price=(tool, Service(takes_s=60.0)))
    async with Caller(clock, calling("price"), agent, toolbox=toolbox) as caller:
        await caller.say(800)
        await caller.listen_until("response.done", count=2)
    assert [json.loads(text) for text in outputs(caller)] == [{"error": "no answer in time"}]
    assert caller.statuses() == ["completed"] * 2


async def gap_ms(clock: Clock, takes_s: float | None, *, is_ahead: bool = True) -> float:
    """From the caller's last sound to the agent's first, after a tool that takes so long."""
    backends, toolbox = calling("price"), box(clock, price=(READ, Service(takes_s or 0.0)))
    if takes_s is None:
        backends = replace(backends, language_model=sure(["It is 3."]))  # of the same words
    config = Config(anticipation=Ahead(() if is_ahead else ("tool_calls",)))
    agent = AgentConfig(tools=(READ,))
    async with Caller(clock, backends, agent, config, toolbox=toolbox) as caller:
        ended_s = await caller.say(800)
        await caller.listen_until("response.output_audio.delta")
        (first, *_) = caller.of("response.output_audio.delta")
    return 1000 * (first.at_s - ended_s)


async def test_what_follows_a_quick_tool_is_drafted_and_costs_the_caller_nothing(
    clock: Clock,
) -> None:
    without_ms = await gap_ms(clock, None)
    assert await gap_ms(clock, 0.1) <= without_ms + 20  # a frame of the caller's
    assert await gap_ms(clock, 0.1, is_ahead=False) >= without_ms + 70
    assert 600 <= await gap_ms(clock, 0.6) <= 700  # it is called at the pause's first frames


@pytest.mark.parametrize("paused_ms", [80, 120, 200])
async def test_a_breath_in_the_pause_does_not_keep_a_tool_from_being_called_there(
    clock: Clock, paused_ms: float
) -> None:
    """What was being made of the same words goes on in the pause behind the breath."""
    replies = calls_first("price", then="It is 3.", call_id="c1")
    model = FakeLanguageModel(replies, ttft_ms=120, p_end_of_turn=lambda text: 0.6)
    recognizer = FakeRecognizer(["how much is it"], ms_per_word=200, partial_delay_ms=45)
    backends = instant_backends(recognizer=recognizer, language_model=model)
    service = Service(takes_s=0.2)
    toolbox = box(clock, price=(READ, service))
    async with Caller(clock, backends, AgentConfig(tools=(READ,)), toolbox=toolbox) as caller:
        await caller.say(800)
        await caller.wait_quietly(paused_ms)
        ended_s = await caller.say(40)
        await caller.listen_until("voiceloop.timeline")
        (done,) = caller.of("voiceloop.timeline")
    assert 1000 * (service.begun_s[0] - ended_s) < 220  # and not behind the end of the turn
    assert done.event["timeline"]["marks"]["endpoint_decision"] > service.begun_s[0]
    assert service.n_begun == 1


async def test_a_drafted_round_is_told_like_any_other(clock: Clock) -> None:
    backends, service = calling("price"), Service(takes_s=0.05)
    model = backends.language_model
    assert isinstance(model, FakeLanguageModel)
    agent = AgentConfig(tools=(READ,))
    async with Caller(clock, backends, agent, toolbox=box(clock, price=(READ, service))) as caller:
        await caller.say(800)
        await caller.listen_until("response.done", count=2)
        messages = caller.session.protocol.shown.messages()
        (call,) = caller.of("response.function_call_arguments.done")
        first, second = caller.of("response.created")
        await caller.listen_until("voiceloop.timeline")
        (done,) = caller.of("voiceloop.timeline")
    (fact,) = done.event["timeline"]["tools"]
    hidden_ms = fact.pop("hidden_ms")
    assert fact == {"name": "price", "fate": "called", "ms": pytest.approx(50, abs=1)}
    assert hidden_ms == pytest.approx(50, abs=1)  # all of it before the turn was over
    assert done.event["timeline"]["response_ids"] == [
        first.event["response"]["id"],
        second.event["response"]["id"],
    ]
    assert service.n_begun == 1 and outputs(caller) == ["3"]
    assert caller.statuses() == ["completed"] * 2 and caller.transcript() == "It is 3."
    assert first.at_s <= call.at_s <= second.at_s
    assert [m.role for m in messages][-4:] == ["user", "assistant", "tool", "assistant"]
    called, told = messages[-3:-1]
    assert called.tool_calls[0].call_id == call.event["call_id"] == told.tool_call_id
    (prompt,) = model.prompts  # the first round was not asked for again
    assert prompt[1:] == messages[:-1]  # behind the instructions


async def test_a_tool_that_fails_ahead_of_the_reply_is_asked_again_by_it(clock: Clock) -> None:
    service = Service(takes_s=0.05, failures=(ToolFailed("expected", told="failed"),))
    agent, toolbox = AgentConfig(tools=(READ,)), box(clock, price=(READ, service))
    async with Caller(clock, calling("price"), agent, toolbox=toolbox) as caller:
        await caller.say(800)
        await caller.listen_until("response.done", count=2)
    assert caller.transcript() == "It is 3." and outputs(caller) == ["3"]
    assert service.n_begun == 2


async def test_a_draft_for_other_words_is_not_said(clock: Clock) -> None:
    """The caller goes on after a pause: what was looked up for the first half is dropped."""

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        if messages[-1].role != "tool":
            n_words = len(messages[-1].content.split())
            return Reply("", (ToolCall(f"c{len(messages)}", "price", f'{{"n": {n_words}}}'),))
        return Reply(f"{messages[-2].tool_calls[0].arguments} is {messages[-1].content}.")

    backends = instant_backends(
        recognizer=FakeRecognizer(["how much is it in all"], ms_per_word=200),
        language_model=sure(reply),
    )
    patient = AgentConfig(tools=(READ,), eagerness="low")  # a pause of 220 ms is none of its ends
    service = Service(takes_s=0.05)
    toolbox = box(clock, price=(READ, service))
    async with Caller(clock, backends, patient, toolbox=toolbox) as caller:
        await caller.say(800)
        await caller.wait_quietly(220)
        await caller.say(400)
        await caller.listen_until("response.done", count=2)
    assert caller.transcript() == '{"n": 6} is 3.' and outputs(caller) == ["3"]
    assert service.n_begun == 2


SLOW = replace(READ, say="Let me see.")


@pytest.mark.parametrize("waiting", [Waiting(), Waiting(say=())])
async def test_a_tool_with_a_line_of_its_own_has_it_said_where_its_result_is_not_there(
    clock: Clock, waiting: Waiting
) -> None:
    without_ms = await gap_ms(clock, None)
    agent = AgentConfig(tools=(SLOW,), waiting=waiting)
    toolbox = box(clock, price=(SLOW, Service(takes_s=0.6)))
    async with Caller(clock, calling("price"), agent, toolbox=toolbox) as caller:
        ended_s = await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
        said = caller.transcript()
        gap = 1000 * (caller.first_audio_s() - ended_s)
    assert said == "Let me see.It is 3." and caller.statuses() == ["completed"] * 3
    assert gap <= without_ms + 20  # a frame of the caller's


async def test_a_line_of_a_tool_is_left_out_where_its_result_is_there_in_time(clock: Clock) -> None:
    agent, toolbox = AgentConfig(tools=(SLOW,)), box(clock, price=(SLOW, Service(takes_s=0.05)))
    async with Caller(clock, calling("price"), agent, toolbox=toolbox) as caller:
        await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
    assert caller.transcript() == "It is 3."


@pytest.mark.parametrize(("takes_s", "said"), [(0.05, "It is 3."), (0.2, "One second.It is 3.")])
async def test_a_tool_called_once_the_turn_is_over_may_be_quick_without_its_line(
    clock: Clock, takes_s: float, said: str
) -> None:
    tool = replace(WRITE, say="One second.")
    agent, toolbox = AgentConfig(tools=(tool,)), box(clock, order=(tool, Service(takes_s)))
    async with Caller(clock, calling("order"), agent, toolbox=toolbox) as caller:
        await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
        called = caller.of("response.function_call_arguments.done")[0]
        waited_s = caller.first_audio_s() - called.at_s
    assert caller.transcript() == said
    assert waited_s == pytest.approx(min(takes_s, 0.1), abs=0.03)


async def test_a_slow_tool_has_the_caller_told_to_wait_once(clock: Clock) -> None:
    agent = AgentConfig(tools=(READ,), waiting=Waiting(("One moment.",)))
    service = Service(takes_s=2.9)
    toolbox = box(clock, price=(READ, service))
    async with Caller(clock, calling("price"), agent, toolbox=toolbox) as caller:
        await caller.say(800)
        await caller.listen_until("response.done", count=3)
        created, done = caller.of("response.created"), caller.of("response.done")
    assert caller.transcript() == "One moment.It is 3." and caller.statuses() == ["completed"] * 3
    assert done[0].at_s == pytest.approx(created[0].at_s + 1.5, abs=0.1)  # the call's own
    with_result_s = service.begun_s[0] + 2.9
    assert created[2].at_s == pytest.approx(with_result_s, abs=0.1)


async def test_a_tool_that_is_waited_for_is_a_stage_of_the_gap_and_nothing_is_said(
    clock: Clock,
) -> None:
    toolbox = box(clock, price=(READ, Service(takes_s=1.0)))
    agent, metrics = AgentConfig(tools=(READ,)), Metrics()
    async with Caller(clock, calling("price"), agent, toolbox=toolbox, metrics=metrics) as caller:
        await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
        (told,) = caller.of("voiceloop.timeline")
    assert caller.transcript() == "It is 3."
    timeline = told.event["timeline"]
    stages = {stage["name"]: stage["ms"] for stage in timeline["stages"]}
    assert 500 <= stages["tools"] <= 1000  # the rest is hidden behind the wait
    assert sum(stages.values()) == pytest.approx(timeline["gap_ms"], abs=0.01)
    count = metrics.registry.get_sample_value
    assert count("voiceloop_tool_calls_total", {"fate": "called"}) == 1


async def test_a_turn_tells_a_trial_its_gap_its_tokens_and_which_calls_were_wrong(
    clock: Clock,
) -> None:
    toolbox = box(clock, price=(READ, Service()))
    agent, metrics = AgentConfig(tools=(READ,)), Metrics(canary=CanarySettings(version="v2"))
    trial, model = metrics.trial, calling("price", "prize")
    async with Caller(clock, model, agent, toolbox=toolbox, metrics=metrics) as caller:
        trial.assign(caller.session.protocol.session_id, "v2")
        await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
        (told,) = caller.of("voiceloop.timeline")
    assert caller.transcript() == "It is 3."
    report = trial.report()
    assert report is not None
    counted = report.turns[Variant.CANARY]
    assert counted[Measure.GAP].mean == told.event["timeline"]["gap_ms"]
    assert (counted[Measure.FAILURES].n, counted[Measure.FAILURES].total) == (1, 0)
    assert (counted[Measure.TOOL_CALLS].n, counted[Measure.TOOL_CALLS].total) == (2, 1)
    assert counted[Measure.TOKENS].total == told.event["timeline"]["anticipation"]["n_reply_tokens"]


async def test_a_reply_that_has_waited_long_enough_answers_without_and_the_result_is_told_later(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Waiting, "tools_s", 3.0)
    slow = AgentTool(
        "price", "", ANY, url="https://shop.test/", side_effect_free=True, deadline_ms=60_000
    )
    agent = AgentConfig(tools=(slow,), waiting=Waiting(()))
    service = Service(takes_s=9.0)
    async with Caller(
        clock, calling("price"), agent, toolbox=box(clock, price=(slow, service))
    ) as caller:
        await caller.say(800)
        await caller.listen_until("response.done", count=2)
        answered = caller.of("response.created")[1]
        assert caller.transcript() == f"It is {POSTPONED}."
        await caller.listen_until("response.done", count=3)
        told = caller.of("response.created")[2]
    asked = caller.of("response.created")[0]
    assert answered.at_s == pytest.approx(asked.at_s + 3.0, abs=0.1)
    assert told.at_s == pytest.approx(asked.at_s + 9.0, abs=0.5) and service.n_begun == 1
    assert outputs(caller) == ["3"] and caller.transcript().endswith("It is 3.")


async def test_an_order_that_outlives_its_deadline_is_not_made_again_and_is_told_later(
    clock: Clock,
) -> None:
    """The model would order again whenever it has no result."""

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        last = messages[-1].content
        if last == "3":
            return Reply("It is ordered.")
        calls = (ToolCall(f"c{len(messages)}", "order", "{}"),)
        return Reply("I will come back to it." if last == POSTPONED else "", calls)

    order = AgentTool("order", "", ANY, url="https://shop.test/", deadline_ms=500)
    service, agent = Service(takes_s=6.0), AgentConfig(tools=(order,))
    backends = instant_backends(
        recognizer=FakeRecognizer(["order it"], ms_per_word=100),
        language_model=FakeLanguageModel(reply),
    )
    async with Caller(clock, backends, agent, toolbox=box(clock, order=(order, service))) as caller:
        await caller.say(600)
        await caller.listen_until("response.done", count=2)
        assert caller.transcript() == "I will come back to it." and service.n_done == 0
        await caller.listen_until("response.done", count=3)
    assert caller.transcript().endswith("It is ordered.") and outputs(caller) == ["3"]
    assert (service.n_begun, service.n_done) == (1, 1)


async def test_a_cough_while_a_tool_is_asked_ends_nothing(clock: Clock) -> None:
    """A false interruption of a silent reply: it goes on waiting, and says the result."""
    backends = instant_backends(
        recognizer=FakeRecognizer(["how much is it", ""], ms_per_word=100),
        language_model=calling("price").language_model,
    )
    service = Service(takes_s=2.8)
    toolbox = box(clock, price=(READ, service))
    agent = AgentConfig(tools=(READ,), waiting=Waiting(say=()))
    async with Caller(clock, backends, agent, toolbox=toolbox) as caller:
        await caller.say(800)
        await caller.listen_until("response.function_call_arguments.done")
        await caller.wait_quietly(500)
        await caller.say(300)
        await caller.wait_quietly(6000)
    assert caller.transcript() == "It is 3." and outputs(caller) == ["3"]
    assert service.n_begun == 1
