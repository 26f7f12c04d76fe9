"""Whatever happens to the reply that made it, a call has one end and its result one place."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

import pytest

from tests.tool_service import ANY, Service, box
from voiceloop.agent import AgentTool
from voiceloop.backends import ToolCall
from voiceloop.tools.pending import (
    INTERRUPTED,
    MAX_OPEN,
    POSTPONED,
    TOO_LATE,
    TOO_MANY,
    SessionTools,
    are_settled,
)
from voiceloop.tools.toolbox import Fate, Toolbox

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
READ = AgentTool("price", "", ANY, url="https://shop.test/", side_effect_free=True, trusted=True)
WRITE = AgentTool("order", "", ANY, url="https://shop.test/", trusted=True)
TABLE = AgentTool("hours", result="nine")
N_ORDERS = 1000


class Recorded:
    """A conversation, as far as calls are concerned."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.news: dict[str, bool] = {}
        self.counts: Counter[str] = Counter()

    def __call__(self, call: ToolCall, text: str, is_news: bool) -> None:
        self.texts[call.call_id] = text
        self.news[call.call_id] = is_news
        self.counts[call.call_id] += 1


def call(call_id: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(call_id, "any", arguments)


async def test_a_call_that_was_left_is_recorded_when_it_is_over(clock: Clock) -> None:
    service, recorded = Service(), Recorded()
    async with asyncio.TaskGroup() as tasks:
        tools = SessionTools(box(clock, order=(WRITE, service)), tasks, recorded)
        pending = tools.begin(WRITE, call("c1"), is_recorded=True)
        await asyncio.sleep(0.1)
        pending.leave()
        pending.leave()
        assert not recorded.texts
    assert recorded.texts == {"c1": "3"} and recorded.counts["c1"] == 1


async def test_what_changes_nothing_stops_when_it_is_left_and_says_why(clock: Clock) -> None:
    service, recorded = Service(), Recorded()
    async with asyncio.TaskGroup() as tasks:
        tools = SessionTools(box(clock, price=(READ, service)), tasks, recorded)
        pending = tools.begin(READ, call("c1"), is_recorded=True)
        await asyncio.sleep(0.1)
        pending.leave()
    assert recorded.texts == {"c1": INTERRUPTED} and service.n_done == 0


@pytest.mark.parametrize("tool", [READ, WRITE])
async def test_a_call_that_a_reply_goes_on_without_is_told_when_it_is_over(
    clock: Clock, tool: AgentTool
) -> None:
    service, recorded = Service(), Recorded()
    async with asyncio.TaskGroup() as tasks:
        tools = SessionTools(box(clock, **{tool.name: (tool, service)}), tasks, recorded)
        pending = tools.begin(tool, call("c1"), is_recorded=True)
        assert not await are_settled([pending], 0.1)
        told = pending.postpone()
        pending.leave()
    assert told == POSTPONED and recorded.texts == {"c1": "3"}
    assert recorded.news == {"c1": True} and recorded.counts["c1"] == 1
    assert service.n_done == 1


async def test_a_side_effect_is_waited_for_until_its_deadline_and_goes_on(clock: Clock) -> None:
    service, recorded = Service(takes_s=20.0), Recorded()
    began_s = clock()
    async with asyncio.TaskGroup() as tasks:
        tools = SessionTools(box(clock, order=(WRITE, service)), tasks, recorded)
        pending = tools.begin(WRITE, call("c1"), is_recorded=True)
        assert await are_settled([pending], 60.0) and not pending.is_over
        assert clock() - began_s == pytest.approx(WRITE.deadline_ms / 1000, abs=0.1)
        assert pending.postpone() == POSTPONED
    assert recorded.texts == {"c1": "3"} and recorded.news == {"c1": True} and service.n_done == 1


async def test_a_call_beside_the_conversation_is_not_gone_on_with(clock: Clock) -> None:
    service, recorded = Service(), Recorded()
    async with asyncio.TaskGroup() as tasks:
        tools = SessionTools(box(clock, price=(READ, service)), tasks, recorded)
        assert tools.begin(READ, call("c1"), is_recorded=False).postpone() == TOO_LATE
    assert not recorded.texts and not service.n_done


async def test_a_result_that_was_taken_is_recorded_by_nobody_else(clock: Clock) -> None:
    recorded = Recorded()
    async with asyncio.TaskGroup() as tasks:
        tools = SessionTools(Toolbox({}, clock), tasks, recorded)
        pending = tools.begin(TABLE, call("c1"), is_recorded=True)
        assert pending.is_over and pending.take().text == "nine"
        pending.leave()
    assert not recorded.texts


async def test_a_result_that_nobody_took_in_time_is_recorded(clock: Clock) -> None:
    recorded = Recorded()
    async with asyncio.TaskGroup() as tasks:
        tools = SessionTools(Toolbox({}, clock), tasks, recorded)
        tools.begin(TABLE, call("c1"), is_recorded=True).leave()
        tools.begin(TABLE, call("c2"), is_recorded=False).leave()
    assert recorded.texts == {"c1": "nine"}


async def test_who_stops_waiting_stops_nothing_else(clock: Clock) -> None:
    service = Service()
    async with asyncio.TaskGroup() as tasks:
        tools = SessionTools(box(clock, price=(READ, service)), tasks, Recorded())
        pending = tools.begin(READ, call("c1"), is_recorded=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await pending.result()
        assert (await pending.result()).text == "3" and service.n_begun == 1


async def test_a_session_has_only_so_many_calls_open(clock: Clock) -> None:
    async with asyncio.TaskGroup() as tasks:
        tools = SessionTools(box(clock, order=(WRITE, Service())), tasks, Recorded())
        begun = [tools.begin(WRITE, call(str(n)), is_recorded=False) for n in range(MAX_OPEN + 2)]
        assert [each.is_over for each in begun].count(True) == 2
        assert begun[-1].take() is TOO_MANY
        await begun[0].result()
        assert not tools.begin(WRITE, call("late"), is_recorded=False).is_over


async def test_a_bug_of_a_toolbox_costs_a_result_and_no_session(clock: Clock) -> None:
    async with asyncio.TaskGroup() as tasks:
        tools = SessionTools(Toolbox({}, clock), tasks, Recorded())  # knows no such tool
        pending = tools.begin(WRITE, call("c1"), is_recorded=True)
        assert (await pending.result()).fate is Fate.FAILED


async def one_order(clock: Clock, seed: int) -> None:
    """A session in which calls end, replies are cut off and the line drops, in some order."""
    chance = random.Random(seed)
    writes = Service(takes_s=chance.uniform(0.01, 2.0))
    reads = Service(takes_s=chance.uniform(0.01, 2.0))
    toolbox = box(clock, order=(WRITE, writes), price=(READ, reads))
    recorded, taken, begun = Recorded(), Counter[str](), Counter[str]()

    async def reply(number: int) -> None:
        """One reply: makes calls, waits for them, takes the results; cancelled at any point."""
        pending = []
        try:
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            for n in range(chance.randint(1, 4)):
                tool = chance.choice((READ, WRITE))
                call_id = f"{tool.name}-{number}-{n}"
                begun[call_id] += 1
                made = call(call_id, f'{{"n":"{call_id}"}}')
                pending.append(tools.begin(tool, made, is_recorded=True))
            await are_settled(pending, chance.choice((0.0, 0.5, 60.0)))  # its budget
            await asyncio.sleep(chance.choice((0.0, 0.3)))  # interrupted, and may resume
            for each in pending:
                if each.is_over:
                    each.take()
                    taken[each.call.call_id] += 1
                else:
                    each.postpone()
        finally:
            for each in pending:
                each.leave()

    class LineDropped(Exception):
        pass

    is_dropped = chance.random() < 0.3
    try:
        async with asyncio.TaskGroup() as tasks:
            tools = SessionTools(toolbox, tasks, recorded)
            replies = [tasks.create_task(reply(number)) for number in range(3)]
            for task in replies:
                if chance.random() < 0.6:
                    await asyncio.sleep(chance.uniform(0.0, 1.0))
                    task.cancel()
            if is_dropped:
                await asyncio.sleep(chance.uniform(0.0, 2.0))
                raise LineDropped
    except* LineDropped:
        pass
    await toolbox.close()
    orders = [call_id for call_id in begun if call_id.startswith("order")]
    # Every side effect that began has happened, once, whoever left; but where the line dropped in
    # the same turn of the loop as the call was made, it may not have begun at all.
    done = Counter(arguments["n"] for arguments in writes.done)
    assert done <= Counter(orders)
    if not is_dropped:
        assert done == Counter(orders)
        told = taken + recorded.counts
        assert told == Counter(begun.keys()), "each result has one place"
    assert writes.n_begun == writes.n_done and not writes.n_at_once and not reads.n_at_once
    assert max((taken + recorded.counts).values(), default=0) <= 1


async def test_nothing_is_lost_or_done_twice_in_any_order_of_ends_and_interruptions(
    clock: Clock,
) -> None:
    for seed in range(N_ORDERS):
        await one_order(clock, seed)
