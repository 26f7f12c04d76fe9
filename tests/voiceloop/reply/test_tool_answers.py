"""Which calls lack an argument that their tool requires, and which are made when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.tool_service import ANY, Service, box
from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.backends import PreemptiveCall, Tool, ToolCall
from voiceloop.reply.tool_answers import MAX_AHEAD, ToolAnswers, as_results
from voiceloop.tools.executor import ToolFailed
from voiceloop.tools.pending import MAX_EARLY_AGE_S, PendingCall, SessionTools, are_settled

Clock = Callable[[], float]

TEXT = {"type": "string"}
NULL = {"type": "null"}
NO_TOOLS: Any = None  # of a test in which nothing is called


def lacks(schema: Any, **given: Any) -> bool:
    parameters = {"type": "object", "properties": {"note": schema}, "required": ["note"]}
    answers = ToolAnswers(AgentConfig(), [Tool("book", "", parameters)], NO_TOOLS)
    return answers.missing(ToolCall("call", "book", json.dumps(given))) == ("note",)


@pytest.mark.parametrize("schema", [TEXT, {"enum": ["a"]}, {"const": 0}, {"anyOf": [TEXT]}, {}, 1])
def test_null_and_an_empty_text_say_nothing(schema: Any) -> None:
    assert lacks(schema) and lacks(schema, note=None) and lacks(schema, note="")
    assert not lacks(schema, note="a") and not lacks(schema, note=0) and not lacks(schema, note=[])


@pytest.mark.parametrize(
    "schema",
    [
        NULL,
        {"type": ["string", "null"]},
        {"anyOf": [TEXT, NULL]},
        {"oneOf": [{"anyOf": [NULL]}, TEXT]},
        {"enum": ["a", None]},
        {"const": None},
    ],
)
def test_where_null_is_an_answer_it_is_none_the_less_to_be_given(schema: Any) -> None:
    assert lacks(schema) and not lacks(schema, note=None) and not lacks(schema, note="")


@pytest.mark.parametrize("schema", [{"enum": ["", "a"]}, {"const": ""}, {"oneOf": [{"const": ""}]}])
def test_an_empty_text_that_the_schema_names_is_an_answer(schema: Any) -> None:
    assert lacks(schema, note=None) and not lacks(schema, note="")


READ = AgentTool("price", "", ANY, url="https://shop.test/", side_effect_free=True)
WRITE = AgentTool("order", "", ANY, url="https://shop.test/")
AGENT = AgentConfig(tools=(READ, WRITE, AgentTool("hours", result="nine"), AgentTool("book")))


async def over(answers: ToolAnswers, calls: list[ToolCall]) -> tuple[PendingCall, ...]:
    pending = answers.of(calls)
    assert await are_settled(pending, 60.0)
    return pending


class Made:
    """The calls of one reply, within a session whose conversation is a list."""

    def __init__(self, clock: Clock, tasks: asyncio.TaskGroup) -> None:
        self.reads, self.writes = Service(), Service()
        self.recorded: list[tuple[str, str]] = []
        toolbox = box(clock, price=(READ, self.reads), order=(WRITE, self.writes))
        tools = SessionTools(
            toolbox,
            tasks,
            lambda call, text, _: self.recorded.append((call.call_id, text)),
        )
        self.answers = ToolAnswers(AGENT, AGENT.session_settings().tools, tools)


@pytest.mark.virtual_time
async def test_calls_of_one_round_take_as_long_as_the_longest(clock: Clock) -> None:
    calls = [ToolCall(f"c{n}", name, "{}") for n, name in enumerate(("price", "order", "hours"))]
    async with asyncio.TaskGroup() as tasks:
        made = Made(clock, tasks)
        began_s = clock()
        results = await over(made.answers, calls)
    assert clock() - began_s == pytest.approx(0.4, abs=0.01)
    told = [(message.tool_call_id, message.content) for message in as_results(results, None)]
    assert told == [("c0", "3"), ("c1", "3"), ("c2", "nine")]
    made.answers.end_round()
    made.answers.leave()
    assert made.recorded == []  # the reply has them


@pytest.mark.virtual_time
async def test_a_call_made_early_or_ahead_is_not_made_again(clock: Clock) -> None:
    early, ahead = ToolCall("c1", "price", '{"a":1}'), ToolCall("c2", "price", '{"a":2}')
    async with asyncio.TaskGroup() as tasks:
        made = Made(clock, tasks)
        made.answers.call_ahead(PreemptiveCall(1, ahead.name, ahead.arguments))
        made.answers.call_ahead(PreemptiveCall(1, "order", "{}"))
        made.answers.call_early(early)
        made.answers.call_early(ToolCall("c3", "order", "{}"))
        await asyncio.sleep(0.4)
        began_s = clock()
        results = await over(made.answers, [early, ahead])
    assert clock() == began_s and len(results) == 2
    assert made.reads.n_begun == 2 and made.writes.n_begun == 0


@pytest.mark.virtual_time
async def test_two_equal_calls_with_side_effects_are_two(clock: Clock) -> None:
    async with asyncio.TaskGroup() as tasks:
        made = Made(clock, tasks)
        await over(made.answers, [ToolCall(each, "order", "{}") for each in ("c1", "c2")])
    assert made.writes.done == [{}, {}] and len(set(made.writes.keys)) == 2


@pytest.mark.virtual_time
async def test_where_a_client_answers_one_of_the_calls_the_server_makes_none(clock: Clock) -> None:
    names = ("order", "price", "book")
    calls = [ToolCall(f"c{n}", name, "{}") for n, name in enumerate(names)]
    async with asyncio.TaskGroup() as tasks:
        made = Made(clock, tasks)
        made.answers.call_early(calls[1])
        assert made.answers.of(calls) == ()
        assert made.answers.of([]) == ()
    assert made.writes.n_begun == 0 and made.reads.n_done == 0 and made.recorded == []


@pytest.mark.virtual_time
async def test_what_was_read_ahead_of_a_side_effect_is_read_again(clock: Clock) -> None:
    async with asyncio.TaskGroup() as tasks:
        made = Made(clock, tasks)
        made.answers.call_ahead(PreemptiveCall(1, "price", "{}"))
        await asyncio.sleep(0.5)
        await over(made.answers, [ToolCall("c1", "order", "{}")])
        made.answers.end_round()
        made.reads.answer = "4"
        [result] = await over(made.answers, [ToolCall("c2", "price", "{}")])
    assert result.take().text == "4" and made.reads.n_begun == 2


@pytest.mark.virtual_time
@pytest.mark.parametrize(("failures", "age_s", "n_begun"), [
    (0, MAX_EARLY_AGE_S - 0.1, 1),
    (0, MAX_EARLY_AGE_S + 0.1, 2),
    (1, 0.1, 2),
])  # fmt: skip
async def test_what_was_read_ahead_in_vain_or_long_ago_is_read_again(
    clock: Clock, failures: int, age_s: float, n_begun: int
) -> None:
    async with asyncio.TaskGroup() as tasks:
        made = Made(clock, tasks)
        made.reads.failures = [ToolFailed("expected", told="failed")] * failures
        made.answers.call_ahead(PreemptiveCall(1, "price", "{}"))
        await asyncio.sleep(made.reads.takes_s + age_s)
        assert len(made.answers.made_ahead(1)) == 2 - n_begun
        [result] = await over(made.answers, [ToolCall("c1", "price", "{}")])
    assert result.take().text == "3" and made.reads.n_begun == n_begun


@pytest.mark.virtual_time
async def test_only_so_many_calls_are_made_ahead(clock: Clock) -> None:
    async with asyncio.TaskGroup() as tasks:
        made = Made(clock, tasks)
        for number in range(2 * MAX_AHEAD):
            made.answers.call_ahead(PreemptiveCall(1, "price", f'{{"a":{number}}}'))
    assert made.reads.n_begun == MAX_AHEAD
