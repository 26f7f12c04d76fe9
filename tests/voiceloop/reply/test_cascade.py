"""Two language models in one call: who answers, and who goes on where one fails."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
import pytest

from clients.connection import typed
from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeVoice, Fault, calls_first, instant_backends
from voiceloop.admission.allowance import Allowance
from voiceloop.agent import AgentConfig, AgentRoute, AgentTool, Waiting
from voiceloop.backends import (
    MAIN_MODEL,
    OWN_MODEL,
    Backends,
    Cascade,
    NamedModel,
    RouteSigns,
)
from voiceloop.call.connection import Hello
from voiceloop.capabilities import Capabilities
from voiceloop.config import Ahead, Config
from voiceloop.operation import KeyQuota

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
QUIET = Waiting(say=(), openers=("-",), first_token_ms=1000)
AGENT = AgentConfig(fallback="Pardon me?", waiting=QUIET)
ITEM = {"type": "object", "required": ["item"], "properties": {"item": {"type": "string"}}}
SMALL = ["I am the small one, and glad of it."]
LARGE = ["I am the large one, with much to say, and more."]


def cascade(
    large: FakeLanguageModel, small: FakeLanguageModel | None = None, **options: Any
) -> Backends:
    """The server's own model is the small one, `big` the large one."""
    small = small or FakeLanguageModel(SMALL)
    return instant_backends(
        language_model=small,
        models={OWN_MODEL: NamedModel(small), "big": NamedModel(large, **options)},
        cascade=Cascade(OWN_MODEL, "big"),
    )


async def speakers(caller: Caller, count: int = 1) -> Sequence[tuple[str, str]]:
    """Model and reason of who made the newest reply."""
    told = await caller.wait_for("voiceloop.timeline", count=count)
    return [(one["model"], one["reason"]) for one in told.event["timeline"]["speakers"]]


async def answered(caller: Caller, count: int = 1, **response: object) -> str:
    caller.send("response.create", response=response)
    await caller.wait_for("response.done", count=count)
    return caller.transcript()


async def test_the_large_model_answers_where_nothing_speaks_for_the_small(clock: Clock) -> None:
    async with Caller(clock, cascade(FakeLanguageModel(LARGE)), AGENT) as caller:
        assert await answered(caller) == LARGE[0]
        assert await speakers(caller) == [("big", "default")]


async def test_low_effort_takes_the_small_model_and_high_effort_the_large(clock: Clock) -> None:
    async with Caller(clock, cascade(FakeLanguageModel(LARGE)), AGENT) as caller:
        caller.send("session.update", session={"type": "realtime", "reasoning": {"effort": "low"}})
        told = await caller.wait_for("session.updated")
        assert told.event["session"]["reasoning"] == {"effort": "low"}
        assert await answered(caller) == SMALL[0]
        await answered(caller, 2, reasoning={"effort": "high"})
        assert await speakers(caller, 2) == [("big", "effort")]


async def test_a_rule_of_the_agent_goes_before_the_effort(clock: Clock) -> None:
    rule = AgentRoute("small", words=("opening hours",))
    agent = AgentConfig(waiting=QUIET, route=(rule,))
    async with Caller(clock, cascade(FakeLanguageModel(LARGE)), agent) as caller:
        item = {"type": "message", "role": "user"}
        said = [{"type": "input_text", "text": "Your opening hours, please?"}]
        caller.send("conversation.item.create", item={**item, "content": said})
        await answered(caller, reasoning={"effort": "high"})
        assert await speakers(caller) == [(MAIN_MODEL, "route 1")]
        saved = replace(rule, model="large")
        caller.session.take_agent(replace(agent, route=(saved,)))  # as `--reload` does
        await answered(caller, 2, reasoning={"effort": "low"})
        assert await speakers(caller, 2) == [("big", "route 1")]


@pytest.mark.parametrize(
    ("agent", "effort", "said"),
    [
        ({}, "medium", "We close at six on Friday."),
        ({}, "high", LARGE[0]),  # the large one is asked for
        ({"quote": "always"}, "high", "We close at six on Friday."),
        ({"quote": "never"}, "medium", LARGE[0]),
    ],
)
async def test_what_the_author_wrote_is_said_where_the_small_model_would_garble_it(
    clock: Clock, agent: dict[str, Any], effort: str, said: str
) -> None:
    told = "You are Tom. We close at six on Friday. Parking is free."
    backends = dataclasses.replace(
        cascade(FakeLanguageModel(LARGE)), known=lambda: Capabilities(made_for="another agent")
    )
    config = AgentConfig(instructions=told, waiting=QUIET, **agent)
    async with Caller(clock, backends, config) as caller:
        caller.send("conversation.item.create", item=typed("When do you close on Friday?"))
        assert await answered(caller, reasoning={"effort": effort}) == said


@pytest.mark.parametrize(
    ("effort", "quote", "said"),
    [
        ("low", "auto", "Bell: $4."),
        ("medium", "auto", "A bell is four dollars."),
        ("medium", "always", "Bell: $4."),
    ],
)
async def test_the_large_model_tells_what_came_of_its_own_calls_itself(
    clock: Clock, effort: str, quote: Literal["auto", "always"], said: str
) -> None:
    calls = calls_first("get_price", '{"item": "bell"}', then="A bell is four dollars.")
    price = AgentTool(
        "get_price", "Price of one item.", ITEM, side_effect_free=True,
        result={"bell": {"price": "$4"}},
    )  # fmt: skip
    backends = dataclasses.replace(
        cascade(FakeLanguageModel(calls), FakeLanguageModel(calls)),
        known=lambda: Capabilities(made_for="another agent"),
    )
    config = AgentConfig("You are Tom.", waiting=QUIET, tools=(price,), quote=quote)
    async with Caller(clock, backends, config) as caller:
        caller.send("conversation.item.create", item=typed("I want one."))
        caller.send("response.create", response={"reasoning": {"effort": effort}})
        await caller.wait_for("voiceloop.timeline")
        assert caller.transcript() == said


async def test_both_models_read_the_turn_as_it_is_spoken(clock: Clock) -> None:
    large, small = FakeLanguageModel(LARGE), FakeLanguageModel(SMALL)
    async with Caller(clock, cascade(large, small), AGENT) as caller:
        await caller.say(800)
        await caller.listen_until("response.done")
        staged = [
            [text for one in model.branches for text in one.staged] for model in (large, small)
        ]
        assert staged[0] == staged[1] and staged[0][-1]
        await asyncio.sleep(0)
        assert not small.prompts and len(small.open_branches) <= 1  # the next turn's


async def test_a_model_without_a_first_token_in_time_is_gone_on_for(clock: Clock) -> None:
    large = FakeLanguageModel(LARGE, faults=[Fault("commit", "hang")])
    async with Caller(clock, cascade(large), AGENT) as caller:
        asked_s = clock()
        assert await answered(caller) == SMALL[0]
        assert caller.first_audio_s() - asked_s < 1.4
        assert await speakers(caller) == [("big", "default"), (MAIN_MODEL, "failed")]
        assert caller.statuses() == ["completed"] and not large.open_branches


async def test_a_link_that_breaks_in_a_reply_costs_the_clause_that_is_not_whole(
    clock: Clock,
) -> None:
    # Ten tokens: "I am the large one, with much to" and then nothing more.
    large = FakeLanguageModel(LARGE, faults=[Fault("commit", after=8)], ms_per_token=30)
    small = FakeLanguageModel(["I am the large one, and here I go on."])
    async with Caller(clock, cascade(large, small), AGENT) as caller:
        text = await answered(caller)
        assert text == "I am the large one, and here I go on."
        [spoken] = [one["from_char"] for one in await _later_speakers(caller)]
        assert spoken == len("I am the large one,")
        words = [item.content for item in caller.session.protocol.shown.messages("")]
        assert words[-1] == text  # the history, too, holds one reply in one voice


async def _later_speakers(caller: Caller) -> list[dict[str, Any]]:
    told = await caller.wait_for("voiceloop.timeline")
    found: list[dict[str, Any]] = told.event["timeline"]["speakers"]
    return found[1:]


async def test_what_was_heard_of_a_broken_clause_is_not_said_again(clock: Clock) -> None:
    large = FakeLanguageModel(
        ["Certainly we have seven and"], faults=[Fault("commit", after=4)], ms_per_token=400
    )
    small = FakeLanguageModel(["eight tables left."])
    backends = cascade(large, small)
    async with Caller(clock, backends, AGENT) as caller:
        text = await answered(caller)
    assert text.startswith("Certainly we ") and text.endswith("eight tables left.")
    assert text.count("Certainly") == 1


async def test_where_both_fail_the_fallback_is_said_once(clock: Clock) -> None:
    faulty = [FakeLanguageModel(["Hm."], faults=[Fault("commit")]) for _ in range(2)]
    async with Caller(clock, cascade(*faulty), AGENT) as caller:
        assert await answered(caller) == "Pardon me?"
        assert caller.statuses() == ["failed"]


async def test_a_model_that_is_away_is_passed_over_and_asked_again_once_it_is_back(
    clock: Clock,
) -> None:
    is_there = False
    backends = cascade(FakeLanguageModel(LARGE), is_there=lambda: is_there)
    async with Caller(clock, backends, AGENT) as caller:
        await answered(caller)
        assert await speakers(caller) == [(MAIN_MODEL, "link")]
        is_there = True
        await answered(caller, 2)
        assert await speakers(caller, 2) == [("big", "default")]


async def test_a_session_switches_its_model_between_two_turns(clock: Clock) -> None:
    large, small = FakeLanguageModel(LARGE), FakeLanguageModel(SMALL)
    async with Caller(clock, cascade(large, small), AGENT) as caller:
        await answered(caller)
        caller.send("session.update", session={"type": "realtime", "model": "main"})
        await caller.wait_for("session.updated")
        assert small.branches[-1].messages[-1].role == "assistant"  # it reads before its turn
        await answered(caller, 2)
        assert await speakers(caller, 2) == [(MAIN_MODEL, "session")]


async def test_a_call_that_a_model_does_not_serve_is_answered_without_it(clock: Clock) -> None:
    backends = cascade(FakeLanguageModel(LARGE), language="de")
    async with Caller(clock, backends, AGENT) as caller:
        assert await answered(caller) == SMALL[0]


async def test_a_reply_held_on_the_large_model_is_released_as_ever(clock: Clock) -> None:
    small = FakeLanguageModel(SMALL, p_end_of_turn=lambda text: 0.9)
    async with Caller(clock, cascade(FakeLanguageModel(LARGE), small), AGENT) as caller:
        await caller.say(800)
        await caller.listen_until("response.done")
        told = await caller.wait_for("voiceloop.timeline")
    assert told.event["timeline"]["anticipation"]["draft"] == "released"
    assert caller.transcript() == LARGE[0]


async def test_with_a_slow_voice_the_clause_that_is_being_spoken_is_ended(clock: Clock) -> None:
    large = FakeLanguageModel(LARGE, faults=[Fault("commit", after=8)], ms_per_token=30)
    small = FakeLanguageModel(["and here I go on."])
    backends = cascade(large, small)
    backends = Backends(
        backends.recognizer, small, FakeVoice(ms_per_audio_word=200),
        models=backends.models, cascade=backends.cascade,
    )  # fmt: skip
    async with Caller(clock, backends, AGENT) as caller:
        text = await answered(caller)
    assert text == "I am the large one, and here I go on."


@pytest.mark.parametrize("after", [0, 3, 6, 9, 15])
@pytest.mark.parametrize("ms_per_token", [0, 40, 300])
@pytest.mark.parametrize("slow_voice_ms", [0, 250])
async def test_wherever_a_link_is_cut_nothing_is_said_twice_or_lost(
    clock: Clock, after: int, ms_per_token: int, slow_voice_ms: int
) -> None:
    text = "We close at six on Saturday, and the kitchen is open until half past five."
    large = FakeLanguageModel([text], faults=[Fault("commit", after=after)], ttft_ms=60,
                              ms_per_token=ms_per_token)  # fmt: skip
    backends = cascade(large, FakeLanguageModel(["We close at six on Saturday, and so on."]))
    voice = FakeVoice(ms_per_audio_word=slow_voice_ms)
    backends = dataclasses.replace(backends, voice=voice)
    async with Caller(clock, backends, AGENT) as caller:
        said = await answered(caller)
        assert caller.statuses() == ["completed"]
    words = [word.strip(",.") for word in said.split()]
    assert words[:6] == ["We", "close", "at", "six", "on", "Saturday"][: len(words)]
    assert words.count("Saturday") == 1 and said.endswith("and so on.")


DRAFTS = {
    "kept": ("Yes, we open on Sunday.", {"n_tokens": 5, "n_kept": 4}),
    "wrong": ("No, never on a Sunday.", {"n_tokens": 5, "n_kept": 0}),
}


@pytest.mark.parametrize("draft", DRAFTS)
async def test_what_the_small_model_drafts_in_the_pause_the_large_one_verifies(
    clock: Clock, draft: str
) -> None:
    said, told = DRAFTS[draft]
    small = FakeLanguageModel([said], p_end_of_turn=lambda text: 0.9)
    text = "Yes, we open on Saturday, and I am glad."
    large = FakeLanguageModel([text], ttft_ms=700, ms_per_token=90)
    backends = cascade(large, small)
    verified = Cascade(OWN_MODEL, "big", verifies=lambda: True)
    gaps = {}
    for name, pair in (("alone", backends.cascade), ("verified", verified)):
        backends = dataclasses.replace(backends, cascade=pair)
        async with Caller(clock, backends, AGENT) as caller:
            await caller.say(800)
            await caller.listen_until("response.done")
            timeline = (await caller.wait_for("voiceloop.timeline")).event["timeline"]
        assert caller.transcript() == text
        assert timeline.get("draft") == (told if name == "verified" else None)
        assert timeline["speakers"][0]["model"] == "big"
        gaps[name] = timeline["gap_ms"]
    drafted = [one.drafts for one in small.branches]
    assert sum(map(len, drafted)) == 1
    assert gaps["verified"] < gaps["alone"] - 100 if draft == "kept" else not told["n_kept"]


async def test_nothing_is_drafted_where_verifying_is_off_or_the_small_model_answers(
    clock: Clock,
) -> None:
    small = FakeLanguageModel(SMALL, p_end_of_turn=lambda text: 0.9)
    as_served = cascade(FakeLanguageModel(LARGE), small)
    verified = dataclasses.replace(
        as_served, cascade=Cascade(OWN_MODEL, "big", verifies=lambda: True)
    )
    by_rule = AgentConfig(waiting=QUIET, route=(AgentRoute("small"),))
    for agent, backends in ((AGENT, as_served), (by_rule, verified)):
        async with Caller(clock, backends, agent) as caller:
            await caller.say(800)
            await caller.listen_until("response.done")
    assert not any(one.drafts for one in small.branches)


async def test_a_draft_to_words_that_have_changed_is_not_sent(clock: Clock) -> None:
    # The fake refuses a stale one.
    small = FakeLanguageModel(SMALL, p_end_of_turn=lambda text: 0.9, ms_per_token=60)
    backends = cascade(FakeLanguageModel(LARGE, ms_per_token=90), small)
    backends = dataclasses.replace(
        backends, cascade=Cascade(OWN_MODEL, "big", verifies=lambda: True)
    )
    config = Config(anticipation=Ahead(("early_start",)))
    async with Caller(clock, backends, AGENT, config=config) as caller:
        await caller.say(800)
        await caller.wait_quietly(200)
        await caller.say(600)
        await caller.listen_until("response.done")
        assert caller.transcript() == LARGE[0]


@pytest.mark.parametrize(
    ("signs", "rules", "who"),
    [
        (RouteSigns(0.3, 0.1, 0.1), (), (MAIN_MODEL, "head")),
        (RouteSigns(0.7, 0.1, 0.1), (), ("big", "head")),
        (None, (), ("big", "default")),
        (RouteSigns(0.3, 0.8, 0.1), (AgentRoute("large", likely="tool"),), ("big", "route 1")),
        (RouteSigns(0.7, 0.2, 0.1), (AgentRoute("small", likely="tool"),), ("big", "head")),
    ],
)
async def test_the_route_head_says_who_answers_what_nothing_else_decides(
    clock: Clock, signs: RouteSigns | None, rules: tuple[AgentRoute, ...], who: tuple[str, str]
) -> None:
    small = FakeLanguageModel(SMALL, p_end_of_turn=lambda text: 0.9, route=signs)
    backends = cascade(FakeLanguageModel(LARGE), small)
    backends = dataclasses.replace(backends, cascade=Cascade(OWN_MODEL, "big", large_share=0.4))
    agent = dataclasses.replace(AGENT, route=rules)
    async with Caller(clock, backends, agent) as caller:
        await caller.say(800)
        await caller.listen_until("response.done")
        assert await speakers(caller) == [who]
        timeline = caller.of("voiceloop.timeline")[0].event["timeline"]
    assert timeline["anticipation"]["draft"] == "released"  # it was held on the one that answers
    assert timeline.get("route") == (None if signs is None else msgspec.to_builtins(signs))


async def test_where_a_keys_quota_of_the_large_model_is_spent_the_small_one_answers(
    clock: Clock,
) -> None:
    spent = list[str]()
    allowance = Allowance(KeyQuota(large_tokens=10), clock, spent.append)
    backends = cascade(FakeLanguageModel(LARGE))
    hello = Hello(timeline=True, allowance=allowance)
    async with Caller(clock, backends, AGENT, hello=hello) as caller:
        await answered(caller)
        assert await speakers(caller) == [("big", "default")]  # eleven words, on credit
        assert spent == ["large_tokens"]
        await answered(caller, 2)
        assert await speakers(caller, 2) == [(MAIN_MODEL, "quota")]
        await answered(caller, 3, reasoning={"effort": "high"})
        assert await speakers(caller, 3) == [("big", "effort")]
