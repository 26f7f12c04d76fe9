"""An opener of the small model where the large one is late: rare, bound, and never said again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, Fault
from tests.tables import each_row
from tests.voiceloop.reply.test_cascade import cascade
from voiceloop.agent import AgentConfig, Waiting
from voiceloop.config import Ahead, Config
from voiceloop.errors import ConfigError
from voiceloop.openers import OPENERS, commits, openers_of, words_of
from voiceloop.reply.opener import ONE_IN, Openers, Waits
from voiceloop.reply.repeats import Repeats
from voiceloop.reply.voice import KeptLines

Clock = Callable[[], float]
AGENT = AgentConfig(waiting=Waiting(say=()))
ANSWER = "We open at nine on weekdays."


def chooses(line: str) -> FakeLanguageModel:
    """A small model that says this where it is bound to an opener."""
    return FakeLanguageModel([json.dumps(line)], p_end_of_turn=lambda text: 0.9)


async def a_turn(caller: Caller, count: int = 1) -> dict[str, object]:
    """The timeline of a spoken turn."""
    await caller.say(800)
    await caller.listen_until("response.done", count=count)
    told = await caller.wait_for("voiceloop.timeline", count=count)
    timeline: dict[str, object] = told.event["timeline"]
    return timeline


@pytest.mark.virtual_time
async def test_the_small_models_choice_is_said_where_the_large_one_is_late(clock: Clock) -> None:
    backends = cascade(
        FakeLanguageModel([ANSWER], ttft_ms=900), chooses("Let me think about that.")
    )
    async with Caller(clock, backends, AGENT) as caller:
        told = await a_turn(caller)
        assert caller.transcript() == f"Let me think about that. {ANSWER}"
        assert told["opener"] == "Let me think about that." and "waiting_line" not in told
        marks = told["marks"]
        assert isinstance(marks, dict)
        released_s = marks["endpoint_decision"]
        assert 0.1 <= marks["first_audio_queued"] - released_s < 0.13
        words = [item.content for item in caller.session.protocol.shown.messages("")]
        assert words[-1] == f"Let me think about that. {ANSWER}"


@pytest.mark.virtual_time
async def test_a_large_model_that_begins_in_time_has_no_opener(clock: Clock) -> None:
    large = FakeLanguageModel([ANSWER], ttft_ms=60)
    async with Caller(clock, cascade(large, chooses("Let me have a look.")), AGENT) as caller:
        told = await a_turn(caller)
        assert caller.transcript() == ANSWER and "opener" not in told


@pytest.mark.virtual_time
async def test_history_holds_the_opener_as_far_as_it_was_heard(clock: Clock) -> None:
    large = FakeLanguageModel([ANSWER], ttft_ms=4000)
    backends = cascade(large, chooses("Let me think about that."))
    async with Caller(clock, backends, AGENT) as caller:
        await caller.say(800)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(900)
        await caller.say(800)  # the caller goes on, in the opener
        await caller.wait_quietly(500)
        said = [m.content for m in caller.session.protocol.shown.messages("")]
    heard = next(text for text in said if text.startswith("Let"))
    assert len(heard) < len("Let me think about that.")


@pytest.mark.virtual_time
async def test_what_the_large_model_says_again_of_it_is_left_out(clock: Clock) -> None:
    large = FakeLanguageModel([f"One moment, let me check. {ANSWER}"], ttft_ms=900)
    async with Caller(clock, cascade(large, chooses("Let me have a look.")), AGENT) as caller:
        await a_turn(caller)
        assert caller.transcript() == f"Let me have a look. {ANSWER}"


@pytest.mark.virtual_time
async def test_a_large_model_that_is_always_late_is_asked_to_go_on_behind_it(clock: Clock) -> None:
    large, waits = FakeLanguageModel([ANSWER], ttft_ms=400), Waits()
    for _ in range(5):
        waits.observe(400.0, 400.0)
    backends = cascade(large, chooses("Let me have a look."))
    kept = KeptLines()
    async with Caller(clock, backends, AGENT, waits=waits, kept_lines=kept) as caller:
        await caller.wait_quietly(2000)  # the lines are kept as sound meanwhile
        told = await a_turn(caller)
    await kept.close()
    [branch] = [one for one in large.branches if one.committed]
    assert branch.committed[0].begins_with == told["opener"] == "Let me have a look."
    marks = told["marks"]
    assert isinstance(marks, dict)
    assert marks["first_audio_queued"] - marks["endpoint_decision"] < 0.03  # it waits for nothing
    assert caller.transcript() == f"Let me have a look. {ANSWER}"


@pytest.mark.virtual_time
async def test_a_model_that_fails_behind_an_opener_is_gone_on_for(clock: Clock) -> None:
    large = FakeLanguageModel([ANSWER], faults=[Fault("commit", "hang")])
    small = FakeLanguageModel(
        lambda messages: ANSWER if len(small.prompts) else json.dumps("Let me have a look."),
        p_end_of_turn=lambda text: 0.2,
    )
    agent = AgentConfig(waiting=Waiting(say=(), first_token_ms=1000))
    config = Config(anticipation=Ahead(("speculative_reply",)))
    async with Caller(clock, cascade(large, small), agent, config) as caller:
        await a_turn(caller)
        assert caller.transcript() == f"{OPENERS['en'][0]} {ANSWER}"


@pytest.mark.virtual_time
async def test_a_choice_under_way_takes_nothing_from_the_small_models_own_reply(
    clock: Clock,
) -> None:
    small = FakeLanguageModel(
        lambda messages: ANSWER if small.prompts else json.dumps("Let me have a look."),
        ttft_ms=1500,
        p_end_of_turn=lambda text: 0.9,
    )
    # The large one is lost while the small one chooses, so that it answers itself.
    backends = cascade(
        FakeLanguageModel([ANSWER]),
        small,
        is_there=lambda: not any(one.attempts for one in small.branches),
    )
    async with Caller(clock, backends, AGENT) as caller:
        await a_turn(caller)
        assert any(one.attempts for one in small.branches)
        assert caller.transcript() == ANSWER


def openers(waits: Waits) -> Openers:
    return Openers(OPENERS["en"], waits, asyncio.TaskGroup(), lambda line: 1000.0)


def test_openers_are_one_in_five_where_the_large_model_is_sometimes_late() -> None:
    of_call, n_said = openers(Waits()), 0
    for turn in range(50):
        line = of_call.lines()[0] if of_call.may_open else None
        n_said += line is not None
        of_call.observe(line, 300.0 if turn % 2 else 20.0, 300.0)
    assert n_said == 10


def test_the_same_words_are_said_once_in_five_openers() -> None:
    waits = Waits()
    for _ in range(20):
        waits.observe(800.0, 800.0)
    of_call, said = openers(waits), list[str]()
    for _ in range(100):
        assert of_call.may_open
        said.append(of_call.lines("date")[0])
        of_call.observe(said[-1], 800.0, 800.0)
    assert all(len(set(said[i : i + ONE_IN])) == ONE_IN for i in range(len(said) - ONE_IN))


@pytest.mark.parametrize("language", OPENERS)
def test_the_lines_that_ship_commit_to_nothing(language: str) -> None:
    for line in OPENERS[language]:
        assert commits(line, language) is None and len(words_of(line)) <= 8


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("Yes, let me look.", "'yes'"),
        ("I have 2 tables, I think.", "'2'"),
        ("We have seven left, let me see.", "'seven'"),
        ("Let me look that up for you in my book.", "found 10"),
    ],
)
def test_an_agents_line_that_commits_is_refused(line: str, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        openers_of((line,), "en")


@each_row(
    ("said", "text", "new"),
    [
        ("Let me have a look.", "Let me have a look. We open at nine.", "We open at nine."),
        ("Let me have a look.", "Let me check. We open at nine.", "We open at nine."),
        ("Let me have a look.", "Let me tell you a story.", "Let me tell you a story."),
        ("Let me have a look.", "We open at nine.", "We open at nine."),
        ("We open at nine, and", "and close at six.", "close at six."),
        ("We open at nine, and", "We open at nine, and close at six.", "close at six."),
        ("We open at nine, and the", "We open at nine, and close at six.", "and close at six."),
        ("We open.", "Weekdays only.", "Weekdays only."),
    ],
)
@each_row("step", [1, 3, 7, 100])
def test_an_echo_is_left_out_however_the_text_comes(
    said: str, text: str, new: str, step: int
) -> None:
    acts = {word for line in OPENERS["en"] for word in words_of(line)}
    echo = Repeats(said, acts)
    pieces = [text[i : i + step] for i in range(0, len(text), step)]
    assert "".join([*map(echo.feed, pieces), echo.finish()]) == new
