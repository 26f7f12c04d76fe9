"""Every call ends in its deadline in a text for the model, and no side effect happens twice."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from tests.tool_service import ANY, Service, box
from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.backends import ToolCall
from voiceloop.errors import ConfigError
from voiceloop.tools.executor import ToolFailed
from voiceloop.tools.http import HttpTool
from voiceloop.tools.limit import CallLimit
from voiceloop.tools.result import MAX_RESULT_CHARS
from voiceloop.tools.toolbox import (
    LATE_READ,
    LATE_WRITE,
    MAX_EFFECT_S,
    NOT_BEGUN,
    Fate,
    ServedTool,
    Toolbox,
    ToolResult,
    toolbox_of,
)

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]


def read(**fields: Any) -> AgentTool:
    fields = {"parameters": ANY} | fields
    return AgentTool("price", url="https://shop.test/", side_effect_free=True, **fields)


def write(**fields: Any) -> AgentTool:
    fields = {"parameters": ANY} | fields
    return AgentTool("order", url="https://shop.test/", **fields)


def call(tool: AgentTool, arguments: str = "{}") -> ToolCall:
    return ToolCall("call_1", tool.name, arguments)


def error(result: ToolResult) -> str:
    assert result.is_error
    return str(json.loads(result.text)["error"])


async def test_a_tool_with_a_table_is_answered_by_the_file(clock: Clock) -> None:
    tool = AgentTool("hours", result="nine to five")
    result = await box(clock).call(tool, call(tool))
    assert (result.text, result.fate) == ("nine to five", Fate.TABLE)


async def test_no_answer_in_time_is_told_as_what_it_is(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(takes_s=90.0)
    tools = box(clock, price=(read(), service), order=(write(deadline_ms=500), service))
    began_s = clock()
    late_read = await tools.call(read(), call(read()))
    late_write = await tools.call(write(), call(write(), '{"card": "4111"}'))
    assert (error(late_read), error(late_write)) == (LATE_READ, LATE_WRITE)
    assert clock() - began_s == pytest.approx(3.0 + MAX_EFFECT_S, abs=0.01)
    assert late_write.fate is Fate.LATE and service.n_at_once == 0
    assert "4111" not in caplog.text


async def test_a_failure_is_told_without_its_details(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    failure = ToolFailed("https://shop.test: expected an answer, found 500", told="failed (500)")
    tools = box(clock, order=(write(), Service(failures=(failure,))))
    with caplog.at_level(logging.WARNING):
        assert error(await tools.call(write(), call(write()))) == "failed (500)"
    assert "shop.test" in caplog.text


def failing(*, may_help: bool = True, is_unsent: bool = False) -> ToolFailed:
    return ToolFailed("expected", told="failed", may_help=may_help, is_unsent=is_unsent)


@pytest.mark.parametrize(("tool", "failures", "n_begun", "fate"), [
    (read(), (failing(),), 2, Fate.CALLED),
    (read(), (failing(), failing()), 2, Fate.FAILED),
    (read(), (failing(may_help=False),), 1, Fate.FAILED),
    (write(), (failing(),), 1, Fate.FAILED),
    (write(), (failing(is_unsent=True),), 2, Fate.CALLED),
    (write(), (failing(is_unsent=True, may_help=False),), 1, Fate.FAILED),
])  # fmt: skip
async def test_a_call_is_made_again_where_that_can_help_and_do_no_harm(
    clock: Clock, tool: AgentTool, failures: tuple[ToolFailed, ...], n_begun: int, fate: Fate
) -> None:
    service = Service(failures=failures)
    result = await box(clock, **{tool.name: (tool, service)}).call(tool, call(tool))
    assert (service.n_begun, result.fate) == (n_begun, fate)


async def test_tries_and_their_pauses_are_within_the_one_deadline(clock: Clock) -> None:
    service = Service(takes_s=0.8, failures=(failing(), failing()))
    tool = read(deadline_ms=1000)
    began_s = clock()
    assert error(await box(clock, price=(tool, service)).call(tool, call(tool))) == LATE_READ
    assert clock() - began_s == pytest.approx(1.0, abs=0.01)


async def test_two_same_calls_with_side_effects_are_two(clock: Clock) -> None:
    service = Service()
    tools = box(clock, order=(write(), service))
    await asyncio.gather(*(tools.call(write(), call(write())) for _ in range(2)))
    assert service.n_done == 2


async def test_the_key_of_a_call_is_that_of_its_tries_and_of_no_other_call(clock: Clock) -> None:
    service = Service(failures=(failing(is_unsent=True),))
    tools = box(clock, order=(write(), service))
    for _ in range(2):  # by two callers, whose models both say "call_1"
        await tools.call(write(), call(write()))
    first, again, other = service.keys
    assert first == again != other


async def test_no_more_run_at_once_than_the_limit_and_waiting_counts(clock: Clock) -> None:
    service, tool = Service(takes_s=1.0), write(deadline_ms=2500)
    tools = Toolbox({"order": ServedTool(tool, service.run, CallLimit("order", 2))}, clock)
    found = await asyncio.gather(*(tools.call(tool, call(tool)) for _ in range(11)))
    assert service.most_at_once == 2
    fates = [each.fate for each in found]
    assert fates.count(Fate.CALLED) == 6 == service.n_begun  # two of them from 2 to 3 s
    assert [error(each) for each in found if each.fate is Fate.LATE] == [NOT_BEGUN] * 4
    assert [error(each) for each in found if each.fate is Fate.FAILED] == ["too busy at the moment"]


async def test_the_model_is_given_the_kept_fields_and_no_more(clock: Clock) -> None:
    service, tool = Service(), read(keep=("cost",))
    service.answer = json.dumps({"cost": "a" * MAX_RESULT_CHARS, "secret": 1})
    result = await box(clock, price=(tool, service)).call(tool, call(tool))
    assert result.text.startswith('{"cost": "aaa') and "secret" not in result.text
    assert result.text.endswith("a [cut: 12 more characters]")


async def test_arguments_that_are_none_call_nothing(clock: Clock) -> None:
    service = Service()
    result = await box(clock, order=(write(), service)).call(write(), call(write(), "[1]"))
    assert error(result) == "arguments: expected a JSON object, found a list"
    assert service.n_begun == 0


async def test_a_side_effect_under_way_is_finished_though_nobody_waits_for_it(
    clock: Clock,
) -> None:
    service, reads = Service(takes_s=2.0), Service(takes_s=2.0)
    tools = box(clock, order=(write(), service), price=(read(), reads))
    asked = [asyncio.create_task(tools.call(each, call(each))) for each in (write(), read())]
    await asyncio.sleep(0.5)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await tools.close()
    assert (service.n_begun, service.n_done) == (1, 1)
    assert (reads.n_begun, reads.n_done) == (1, 0)


async def test_a_side_effect_that_has_begun_goes_on_behind_its_deadline(clock: Clock) -> None:
    service, tool = Service(takes_s=20.0), write(deadline_ms=500)
    result = await box(clock, order=(tool, service)).call(tool, call(tool))
    assert (result.text, result.fate, service.n_done) == ("3", Fate.CALLED, 1)


async def test_all_processes_are_started_and_closed(clock: Clock) -> None:
    service = Service()
    tools = box(clock, order=(write(), service))
    await tools.start()
    assert service.is_open
    await tools.close()
    assert not service.is_open


async def test_a_tool_that_cannot_start_ends_the_start_and_leaves_nothing_open(
    clock: Clock,
) -> None:
    class Absent(Service):
        async def start(self) -> None:
            raise ConfigError("tool 'order': expected a function, found none")

    service = Service()
    tools = box(clock, price=(read(), service), order=(write(), Absent()))
    with pytest.raises(ConfigError, match="found none"):
        await tools.start()
    assert not service.is_open


async def test_the_agent_file_says_which_tools_are_executed(clock: Clock) -> None:
    tools = (
        AgentTool("hours", result="nine"),
        AgentTool("book"),
        AgentTool("price", url="${SHOP}"),
        AgentTool("pay", python="till:pay"),
    )
    made = toolbox_of(AgentConfig(tools=tools), clock, environment={"SHOP": "http://shop.test"})
    assert set(made.served) == {"price", "pay"} and set(made.processes) == {"pay"}
    await made.close()
    with pytest.raises(ConfigError, match=r"expected \$SHOP in the environment"):
        toolbox_of(AgentConfig(tools=tools), clock, environment={})


async def test_an_undeclared_argument_reaches_no_service(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service()
    tool = write(parameters={"type": "object", "properties": {"n": {"type": "integer"}}})
    tools = box(clock, order=(tool, service))
    refused = await tools.call(tool, call(tool, '{"n": 1, "is_admin": true}'))
    assert "is_admin is none of its parameters" in error(refused)
    assert "is_admin" not in caplog.text and not service.done
    assert (await tools.call(tool, call(tool, '{"n": 1}'))).fate is Fate.CALLED


async def test_the_words_of_a_service_that_refuses_are_in_no_log(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def words() -> AsyncIterator[bytes]:
        yield b"no customer Anna Canary"

    def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404, content=words())

    async with httpx.AsyncClient(transport=httpx.MockTransport(refuse)) as client:
        tool = write()
        limit = CallLimit("order", 1)
        served = {"order": ServedTool(tool, HttpTool(tool, {}, client).run, limit)}
        refused = await Toolbox(served, clock).call(tool, call(tool))
    assert "Canary" in error(refused)  # the model can mend it
    assert "404" in caplog.text and "Canary" not in caplog.text
