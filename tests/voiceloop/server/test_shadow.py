"""What a canary answers for nobody to hear: which turns, how, and what is counted of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tests.callers import Caller
from tests.fakes import FakeBranch, FakeLanguageModel, Fault, Reply
from tests.tool_service import Service, box
from tests.voiceloop.reply.test_server_tools import READ, calling
from voiceloop.agent import AgentConfig
from voiceloop.backends import ChatMessage, GenerateParams, Tool, ToolCall
from voiceloop.canary.trial import MOST_WAITING, Canary, ShadowTurn, Trial
from voiceloop.canary.turns import Measure, TurnFigures, Variant
from voiceloop.operation import CanarySettings
from voiceloop.server.shadow import LOOK_EVERY_S, MOST_BUSY, Shadow
from voiceloop.telemetry.metrics import Metrics

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
PRICE = Tool("price", "", {"required": ["of"], "properties": {"of": {"type": "string"}}})
ASKED = ChatMessage("user", "what is a latte")
TURN = ShadowTurn(
    "call",
    (ChatMessage("system", "You sell coffee."), ASKED),
    (PRICE,),
    GenerateParams(within_ms=900.0),
    "tenant",
    (
        ChatMessage("assistant", "", (ToolCall("a", "price", '{"of": "tea"}'),)),
        ChatMessage("tool", "2", (), "a"),
        ChatMessage("assistant", "", (ToolCall("b", "price", '{"of": "latte"}'),)),
        ChatMessage("tool", "3", (), "b"),
        ChatMessage("assistant", "", (ToolCall("c", "price", '{"of": "cake"}'),)),
        ChatMessage("tool", "4", (), "c"),
    ),
    TurnFigures(n_tokens=12, n_tool_calls=1, token_ms=2.0),
)


def trying(shadow: float = 1.0) -> Trial:
    trial = Trial(CanarySettings(version="v2", shadow=shadow))
    trial.assign("call", "v1")
    return trial


@asynccontextmanager
async def shadow_of(trial: Trial, model: FakeLanguageModel) -> AsyncIterator[None]:
    task = asyncio.create_task(Shadow(trial, model).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def counted(trial: Trial, variant: Variant, measure: Measure) -> tuple[float, float]:
    report = trial.report()
    assert report is not None
    sums = report.turns[variant][measure]
    return sums.n, sums.total


async def test_its_tools_say_what_they_said_to_the_call_and_it_is_work_of_the_lowest_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[GenerateParams] = []

    def commit(branch: FakeBranch, tail: tuple[ChatMessage, ...], params: GenerateParams) -> bool:
        asked.append(params)
        return at_first(branch, tail, params)

    at_first = FakeBranch.commit
    monkeypatch.setattr(FakeBranch, "commit", commit)

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        if messages[-1].role == "user":
            return Reply("", (ToolCall("x", "price", '{"of": "latte"}'),))
        return Reply(f"It is {messages[-1].content} dollars")

    trial, model = trying(), FakeLanguageModel(reply)
    trial.offer_shadow("call", lambda: TURN)
    async with shadow_of(trial, model):
        await asyncio.sleep(2 * LOOK_EVERY_S)
    assert [messages[-1].content for messages in model.prompts] == [ASKED.content, "3"]
    assert not model.open_branches
    assert [(params.is_batch, params.within_ms) for params in asked] == [(True, 0.0)] * 2
    assert counted(trial, Variant.SHADOW, Measure.TOOL_CALLS) == (1, 0)
    assert counted(trial, Variant.SHADOWED, Measure.TOKENS) == (1, 12)
    assert counted(trial, Variant.SHADOW, Measure.TOKENS)[0] == 1
    told = {one.measure: one for one in trial.status().shadow}
    assert told[Measure.TOKENS].baseline == 12 and told[Measure.TOKENS].n_canary == 1


async def test_a_call_that_cannot_be_made_is_counted_and_not_answered() -> None:
    wrong = Reply("", (ToolCall("x", "price", "{}"),))
    trial, model = trying(), FakeLanguageModel(lambda messages: wrong)
    trial.offer_shadow("call", lambda: TURN)
    async with shadow_of(trial, model):
        await asyncio.sleep(2 * LOOK_EVERY_S)
    assert len(model.prompts) == 1
    assert counted(trial, Variant.SHADOW, Measure.TOOL_CALLS) == (1, 1)


async def test_a_model_that_fails_or_hangs_is_a_failed_turn_and_the_next_is_answered() -> None:
    trial = trying()
    model = FakeLanguageModel(faults=[Fault("branch"), Fault("branch", "hang", nth=1)])
    for _ in range(3):
        trial.offer_shadow("call", lambda: TURN)
    async with shadow_of(trial, model):
        await asyncio.sleep(60.0)
    assert counted(trial, Variant.SHADOW, Measure.FAILURES) == (3, 2)


async def test_a_bug_costs_one_turn_and_the_next_is_answered() -> None:
    def reply(messages: tuple[ChatMessage, ...]) -> str:
        if len(model.prompts) == 1:
            raise ValueError("a bug")
        return "Three."

    trial, model = trying(), FakeLanguageModel(reply)
    for _ in range(2):
        trial.offer_shadow("call", lambda: TURN)
    async with shadow_of(trial, model):
        await asyncio.sleep(60.0)
    assert counted(trial, Variant.SHADOW, Measure.FAILURES) == (2, 1)


async def test_a_busy_engine_is_left_to_the_calls_it_has() -> None:
    trial, model = trying(), FakeLanguageModel()
    model.utilization = MOST_BUSY + 0.1
    trial.offer_shadow("call", lambda: TURN)
    async with shadow_of(trial, model):
        await asyncio.sleep(10 * LOOK_EVERY_S)
        assert not model.prompts
        model.utilization = 0.0
        await asyncio.sleep(2 * LOOK_EVERY_S)
    assert len(model.prompts) == 1


def test_a_share_of_the_others_turns_is_kept_and_of_those_so_many_at_once() -> None:
    trial = trying(0.25)
    for _ in range(40):
        trial.offer_shadow("call", lambda: TURN)
    kept = [trial.take_shadow_turn() for _ in range(MOST_WAITING + 1)]
    assert kept == [TURN] * MOST_WAITING + [None]
    for _ in range(8):
        trial.offer_shadow("call", lambda: TURN)
    assert [trial.take_shadow_turn() for _ in range(3)] == [TURN, TURN, None]


@pytest.mark.parametrize(("shadow", "n_kept"), [(0.1, 10), (0.3, 30), (0.7, 70), (0.9, 90)])
def test_the_share_that_is_kept_is_the_one_that_was_asked_for(shadow: float, n_kept: int) -> None:
    trial, kept = trying(shadow), []
    for _ in range(100):
        trial.offer_shadow("call", lambda: TURN)
        kept.append(trial.take_shadow_turn())
    assert len(kept) - kept.count(None) == n_kept


def test_a_turn_that_no_model_answered_has_the_next_one_kept_in_its_place() -> None:
    trial = trying(0.5)
    for made in (TURN, None, TURN):
        trial.offer_shadow("call", lambda made=made: made)  # type: ignore[misc]
    assert trial.take_shadow_turn() == TURN


@pytest.mark.parametrize(
    ("shadow", "version"), [(0.0, "v1"), (1.0, "v2")], ids=["off", "of the canary itself"]
)
def test_no_turn_is_kept_that_is_not_wanted(shadow: float, version: str) -> None:
    trial = Trial(CanarySettings(version="v2", shadow=shadow))
    trial.assign("call", version)
    for call_id in ("call", "unknown"):
        trial.offer_shadow(call_id, lambda: TURN)
    assert trial.take_shadow_turn() is None


def test_what_was_answered_for_another_trial_is_not_counted() -> None:
    trial = Trial(replace(CanarySettings(), shadow=1.0))
    trial.begin(Canary(2, ("v2",)))
    trial.assign("call", "v1")
    trial.offer_shadow("call", lambda: TURN)
    trial.begin(Canary(3, ("v3",)))
    assert trial.take_shadow_turn() is None
    trial.begin(None)
    trial.observe_shadow(TURN, TurnFigures())
    assert trial.report() is None


async def test_a_turn_of_a_call_is_kept_with_what_its_tools_said(clock: Clock) -> None:
    toolbox = box(clock, price=(READ, Service()))
    trial = Trial(CanarySettings(version="v2", shadow=1.0))
    agent, metrics = AgentConfig(tools=(READ,)), Metrics(trial=trial)
    async with Caller(clock, calling("price"), agent, toolbox=toolbox, metrics=metrics) as caller:
        trial.assign(caller.session.protocol.session_id, "v1")
        await caller.say(800)
        await caller.listen_until("voiceloop.timeline")
    turn = trial.take_shadow_turn()
    assert turn is not None and turn.prompt[-1].role == "user" and turn.tools
    [called, said] = turn.answer
    assert called.tool_calls[0].name == "price" and said.content == "3"
    assert turn.figures.n_tool_calls == 1
