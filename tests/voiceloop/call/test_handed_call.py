"""A call that another agent goes on with: all that is of an agent's file is the new one's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.callers import Caller
from tests.fakes import FakeRecognizer, instant_backends
from tests.voiceloop.call.test_call_tools import MemoryPhone, phoned
from voiceloop.agent import AgentConfig, AgentSlot, BargeIn, Waiting
from voiceloop.call.call import Call
from voiceloop.call_manners import CallManners

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
NOTHING = AgentConfig(
    barge_in=BargeIn(speakers="nobody", backchannels=()),
    waiting=Waiting(say=(), acknowledge=()),
    call=CallManners(still_there=""),
)
ALL = AgentConfig(
    language="de",
    barge_in=BargeIn(backchannels=("ja",)),
    waiting=Waiting(acknowledge=("Mm-hm.",)),
    slots=(AgentSlot(asked="number", kind="number", name="number"),),
    hotwords=("cappuccino",),
    tool_timeout_ms=7000,
    call=CallManners(still_there="Are you there?"),
)


def of_agent(call: Call) -> dict[str, Any]:
    """All that outlives a hand-off, and is of an agent."""
    listener, tools, turns = call._listener, call._tools, call._turn_taking
    return {
        "starts early": listener._early.is_enabled,
        "words late": listener._ended.late_s,
        "groups": listener._tells_groups,
        "slots": listener._endpointing._slots,
        "recognizer": listener._recognition._options,
        "reads words": listener._endpointing._reads_words,
        "judge": turns._judge,
        "manners": call._acts._manners,
        "client's tools": tools._client_timeout_s,
    }


@pytest.mark.parametrize(("first", "then"), [(NOTHING, ALL), (ALL, NOTHING)])
async def test_a_hand_off_takes_all_that_the_new_agents_file_says(
    clock: Clock, first: AgentConfig, then: AgentConfig
) -> None:
    async with Caller(clock, agent=then) as fresh:
        wanted = of_agent(fresh.session._call)
    async with Caller(clock, agent=first) as caller:
        session = caller.session
        before = of_agent(session._call)
        assert all(before[name] != wanted[name] for name in wanted)
        answering = session._answering._replace(agent=then)
        object.__setattr__(session._services, "another", lambda name: answering)
        session._answer_by("then")
        assert of_agent(session._call) == wanted


async def test_a_caller_who_says_nothing_is_asked_as_the_new_agent_has_it(clock: Clock) -> None:
    backends = instant_backends(recognizer=FakeRecognizer([]))
    first = replace(NOTHING, greeting="Hello.")
    async with phoned(clock, MemoryPhone(clock), backends, first) as caller:
        await caller.listen_until("output_audio_buffer.stopped")
        session = caller.session
        session._call.hand_to(session._answering._replace(agent=ALL))
        await caller.listen_until("output_audio_buffer.stopped", count=2, limit_ms=20_000)
    assert caller.transcript().endswith("Are you there?")
