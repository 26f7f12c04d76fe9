"""What a caller hears of a model that takes its time: a line, then the reply or the fallback."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, Fault, Reply, calls_first, instant_backends
from tests.tool_service import Service, box
from voiceloop.agent import AgentConfig, AgentTool, Waiting

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
LINE = "One moment, please."
FALLBACK = "Pardon me?"
AGENT = AgentConfig(fallback=FALLBACK)


def ask(caller: Caller, **response: object) -> float:
    caller.send("response.create", response=response)
    return caller.clock()


async def test_a_slow_reply_follows_a_line_that_asks_to_wait(clock: Clock) -> None:
    model = FakeLanguageModel(["Nine to five."], ttft_ms=3200)
    async with Caller(clock, instant_backends(language_model=model), AGENT) as caller:
        asked_s = ask(caller)
        await caller.wait_for("response.done")
        assert caller.transcript() == f"{LINE} Nine to five."
        assert 1.5 <= caller.first_audio_s() - asked_s < 1.6
        told = await caller.wait_for("voiceloop.timeline")
    assert caller.statuses() == ["completed"] and told.event["timeline"]["waiting_line"] == LINE


async def test_a_reply_that_begins_in_time_asks_nobody_to_wait(clock: Clock) -> None:
    model = FakeLanguageModel(["Nine to five."], ttft_ms=1400, ms_per_token=900)
    async with Caller(clock, instant_backends(language_model=model), AGENT) as caller:
        ask(caller)
        await caller.wait_for("response.done")
    assert caller.transcript() == "Nine to five."


async def test_a_model_that_says_nothing_in_five_seconds_is_spoken_for_and_let_go(
    clock: Clock,
) -> None:
    model = FakeLanguageModel(["Nine."], faults=[Fault("commit", "hang")])
    async with Caller(clock, instant_backends(language_model=model), AGENT) as caller:
        asked_s = ask(caller)
        failed = await caller.wait_for("response.done")
        assert 5.0 <= failed.at_s - asked_s < 8.0  # the fallback's own sound behind the five
        assert failed.event["response"]["status_details"]["error"]["code"] == "backend_timeout"
        assert caller.transcript() == f"{LINE} {FALLBACK}"
        assert not model.open_branches  # nobody will hear what it might still say


async def test_the_deadline_and_the_line_are_the_agents(clock: Clock) -> None:
    model = FakeLanguageModel(["Nine."], ttft_ms=2600)
    quiet = AgentConfig(fallback=FALLBACK, waiting=Waiting(say=(), first_token_ms=2500))
    async with Caller(clock, instant_backends(language_model=model), quiet) as caller:
        asked_s = ask(caller)
        await caller.wait_for("response.done")
        assert caller.transcript() == FALLBACK
        assert 2.5 <= caller.first_audio_s() - asked_s < 2.6


async def test_a_reply_that_has_begun_may_take_longer_than_its_first_token(clock: Clock) -> None:
    model = FakeLanguageModel(["It is nine to five on weekdays."], ms_per_token=1500)
    async with Caller(clock, instant_backends(language_model=model), AGENT) as caller:
        ask(caller)
        await caller.wait_for("response.done")
    assert caller.statuses() == ["completed"]


async def test_a_text_reply_is_waited_for_in_silence(clock: Clock) -> None:
    model = FakeLanguageModel(["Nine."], ttft_ms=9000)
    async with Caller(clock, instant_backends(language_model=model), AGENT) as caller:
        ask(caller, output_modalities=["text"])
        await caller.wait_for("response.done")
        [delta] = caller.of("response.output_text.delta")
    assert delta.event["delta"] == "Nine." and caller.statuses() == ["completed"]


async def test_a_model_that_only_had_the_line_said_for_it_is_spoken_for(clock: Clock) -> None:
    model = FakeLanguageModel([Reply("")], ttft_ms=2000)
    async with Caller(clock, instant_backends(language_model=model), AGENT) as caller:
        ask(caller)
        await caller.wait_for("response.done")
    assert caller.transcript() == f"{LINE} {FALLBACK}"


async def test_who_waited_for_the_model_is_not_asked_to_wait_for_a_tool(clock: Clock) -> None:
    tool = AgentTool("price", url="https://shop.test/", side_effect_free=True)
    replies = calls_first("price", then="It is four.", call_id="call_1")
    model = FakeLanguageModel(replies, ttft_ms=2000)
    toolbox = box(clock, price=(tool, Service(takes_s=3.0)))
    agent = AgentConfig(tools=(tool,), fallback=FALLBACK)
    backends = instant_backends(language_model=model)
    async with Caller(clock, backends, agent, toolbox=toolbox) as caller:
        ask(caller)
        await caller.wait_for("response.done", count=2)
    assert caller.transcript() == f"{LINE} It is four."


async def test_a_reply_made_ahead_has_its_time_from_the_release_on(clock: Clock) -> None:
    model = FakeLanguageModel(["Nine."], ttft_ms=2000, p_end_of_turn=lambda text: 0.9)
    async with Caller(clock, instant_backends(language_model=model), AGENT) as caller:
        await caller.say(800)
        await caller.listen_until("response.done")
        told = await caller.wait_for("voiceloop.timeline")
    marks = told.event["timeline"]["marks"]
    assert caller.transcript() == f"{LINE} Nine."
    assert marks["first_token"] - marks["speech_end"] >= 1.5  # the line: it is no token of before


@pytest.mark.parametrize(("ttft_ms", "before"), [(500, ""), (3200, f"{LINE} ")])
async def test_a_model_that_thinks_first_is_seen_to_think(
    clock: Clock, ttft_ms: float, before: str
) -> None:
    model = FakeLanguageModel(
        [Reply("Nine.", thinks=True)], ttft_ms=ttft_ms, p_end_of_turn=lambda text: 0.9
    )
    async with Caller(clock, instant_backends(language_model=model), AGENT) as caller:
        await caller.say(800)
        await caller.listen_until("response.done")
        told = (await caller.wait_for("voiceloop.timeline")).event["timeline"]
    stages = {stage["name"]: stage["ms"] for stage in told["stages"]}
    assert caller.transcript() == f"{before}Nine."
    assert stages["thinks"] > 100 and stages["first token"] == 0.0
    assert sum(stages.values()) == pytest.approx(told["gap_ms"], abs=0.1)


async def test_a_model_that_thinks_for_ever_is_spoken_for(clock: Clock) -> None:
    model = FakeLanguageModel([Reply("Nine.", thinks=True)], ttft_ms=60_000)
    async with Caller(clock, instant_backends(language_model=model), AGENT) as caller:
        ask(caller)
        failed = await caller.wait_for("response.done")
    assert failed.event["response"]["status_details"]["error"]["code"] == "backend_timeout"
    assert caller.transcript() == f"{LINE} {FALLBACK}"
