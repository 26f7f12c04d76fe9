"""What a sound's level says of whether it is the caller's, and what becomes of it in a call."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.callers import RATE_HZ, Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, instant_backends, utterance
from voiceloop.agent import AgentConfig, BargeIn
from voiceloop.backends import Backends
from voiceloop.call.barge_in import (
    LEAST_TURN_MS,
    CallerLevel,
    log_odds_of,
)

LONG = "Once upon a time there was a roaster. " * 12
FAR = 0.2  # of the caller's amplitude: 14 dB below


def known(*levels_db: float) -> CallerLevel:
    level = CallerLevel()
    for level_db in levels_db:
        level.take(level_db, LEAST_TURN_MS, 0.0)
    return level


def test_nothing_is_said_of_a_caller_who_has_hardly_spoken() -> None:
    assert known().log_odds(40.0, 0.0) == 0.0
    level = known()
    level.take(70.0, LEAST_TURN_MS - 1.0, 0.0)
    assert level.log_odds(40.0, 0.0) == 0.0
    assert known(70.0, 70.0).log_odds(None, 0.0) == 0.0
    assert known(70.0, 70.0).log_odds(40.0, 0.0) < -3.5


def test_after_one_turn_only_what_is_far_softer_is_somebody_elses() -> None:
    once, twice = known(70.0), known(70.0, 70.0)
    assert once.log_odds(64.0, 0.0) > -1.0 > twice.log_odds(64.0, 0.0)
    assert once.log_odds(58.0, 0.0) < -3.5


def test_a_caller_who_has_stepped_back_is_known_anew_after_two_turns() -> None:
    level = known(70.0, 70.0, 70.0, 70.0)
    for softer_db in (60.0, 52.0, 68.0):  # a step back; a second caller, softer still; the first
        assert level.log_odds(softer_db, 0.0) < -3.5 or softer_db > 60.0
        for _ in range(2):
            level.take(softer_db, LEAST_TURN_MS, 0.0)
        assert level.log_odds(softer_db, 0.0) == 0.0


def test_who_is_kept_out_is_heard_at_the_second_try() -> None:
    level = known(70.0, 70.0)
    level.keep_out(10_000.0, in_silence=False)
    assert level.log_odds(50.0, 10_500.0) == 0.0
    assert level.log_odds(50.0, 17_000.0) < -3.5
    assert level.take(50.0, LEAST_TURN_MS, 10_500.0)
    assert level.log_odds(50.0, 20_000.0) == 0.0  # adopted at once


@pytest.mark.parametrize("speech_ms", [LEAST_TURN_MS, 300.0])
def test_who_is_kept_out_before_the_caller_speaks_is_somebody_else(speech_ms: float) -> None:
    level = known(70.0, 70.0)
    level.keep_out(10_000.0, in_silence=True)
    assert level.log_odds(50.0, 11_000.0) < -3.5  # nobody has waited for an answer
    assert level.log_odds(50.0, 30_500.0) < -3.5
    assert not level.take(50.0, 300.0, 11_500.0)  # a soft "yes"
    assert level.log_odds(50.0, 29_000.0) == 0.0
    assert not level.take(69.0, speech_ms, 11_500.0)  # the caller, as loud as ever
    assert level.log_odds(50.0, 11_500.0) < -3.5


@given(st.floats(-80.0, 80.0), st.floats(0.0, 40.0))
def test_softer_is_never_likelier_the_caller_and_nothing_is_certain(
    below_db: float, more_db: float
) -> None:
    assert -4.0 < log_odds_of(below_db + more_db) <= log_odds_of(below_db) <= 0.0


async def known_caller(caller: Caller) -> None:
    """Two turns, and the beginning of the agent's third answer."""
    for n_turns in (1, 2):
        await caller.say(1200)
        await caller.listen_until("response.done", count=n_turns)
        await caller.wait_quietly(500)
    n_deltas = len(caller.of("response.output_audio.delta"))
    await caller.say(1200)
    await caller.listen_until("response.output_audio.delta", count=n_deltas + 1)


def scripted(third: str) -> Backends:
    words = ["i want a latte please", "with oat milk please", "tell me a story", "at seven today"]
    recognizer = FakeRecognizer(words, ms_per_word=200)
    model = FakeLanguageModel(["Yes.", "Yes.", third, "At seven."])
    return instant_backends(recognizer=recognizer, language_model=model)


@pytest.mark.virtual_time
@pytest.mark.parametrize(("gain", "options", "stops"), [
    (FAR, BargeIn(), False), (FAR, BargeIn(speakers="any"), True), (0.7, BargeIn(), True),
])  # fmt: skip
async def test_a_voice_across_the_room_does_not_stop_the_agent(
    clock: Callable[[], float], gain: float, options: BargeIn, stops: bool
) -> None:
    agent = AgentConfig(barge_in=options)
    async with Caller(clock, scripted(LONG), agent) as caller:
        await known_caller(caller)
        await caller.wait_quietly(2500)
        await caller.play(far(1000, gain))
        await caller.wait_quietly(1500)
    assert ("cancelled" in caller.statuses()[2:3]) == stops


@pytest.mark.virtual_time
@pytest.mark.parametrize(("gain", "n_turns"), [(FAR, 3), (0.7, 4)])
async def test_nor_is_it_answered_where_it_outlasts_the_agent(
    clock: Callable[[], float], gain: float, n_turns: int
) -> None:
    async with Caller(clock, scripted("Once upon a time.")) as caller:
        await known_caller(caller)
        await caller.wait_quietly(300)
        await caller.play(far(5000, gain))
        await caller.wait_quietly(3000)
        assert len(caller.of("response.created")) == n_turns
        await caller.say(1200)  # the caller is heard as before
        await caller.listen_until("response.done", count=n_turns + 1)


def far(ms: float, gain: float = FAR) -> NDArray[np.int16]:
    return (utterance(ms, RATE_HZ) * gain).astype(np.int16)


@pytest.mark.virtual_time
@pytest.mark.parametrize("waits_ms", [2000, 12_000])
async def test_in_silence_who_is_across_the_room_is_answered_at_the_second_try(
    clock: Callable[[], float], waits_ms: int
) -> None:
    """A caller who has turned away, or somebody who takes the telephone: adopted from then on."""
    async with Caller(clock, scripted("At seven.")) as caller:
        await known_caller(caller)
        await caller.listen_until("response.done", count=3)
        for n_turns in (3, 4, 5):
            await caller.wait_quietly(waits_ms)
            await caller.play(far(1500))
            await caller.wait_quietly(3000)
            assert len(caller.of("response.created")) == n_turns
            assert len(caller.of("input_audio_buffer.committed")) == n_turns
        assert len(caller.of("input_audio_buffer.speech_stopped")) == 6
        counted = caller.services.metrics.registry.get_sample_value
        for action in ("kept_out", "second_try"):
            assert counted("voiceloop_barge_ins_total", {"action": action}) == 1


@pytest.mark.virtual_time
@pytest.mark.parametrize(("ms", "gain", "options", "is_answered"), [
    (1500, FAR, BargeIn(), False), (1500, 0.7, BargeIn(), True),
    (1500, FAR, BargeIn(speakers="any"), True), (500, FAR, BargeIn(), True),
])  # fmt: skip
async def test_in_silence_people_in_the_room_who_talk_on_are_not_answered(
    clock: Callable[[], float], ms: float, gain: float, options: BargeIn, is_answered: bool
) -> None:
    """A soft "yes" is: short turns are soft."""
    async with Caller(clock, scripted("At seven."), AgentConfig(barge_in=options)) as caller:
        await known_caller(caller)
        await caller.listen_until("response.done", count=3)
        await caller.wait_quietly(2000)
        for _ in range(1 if is_answered else 4):
            await caller.play(far(ms, gain))
            await caller.wait_quietly(900)
        await caller.wait_quietly(3000)
        assert (len(caller.of("response.created")) > 3) is is_answered


@pytest.mark.virtual_time
async def test_whoever_stops_the_agent_by_a_word_is_answered_however_soft(
    clock: Callable[[], float],
) -> None:
    words = ["i want a latte please", "with oat milk please", "stop i want some tea now"]
    backends = instant_backends(
        recognizer=FakeRecognizer(words, ms_per_word=200),
        language_model=FakeLanguageModel(["Yes.", LONG, "Tea."]),
    )
    async with Caller(clock, backends) as caller:
        await caller.say(1200)
        await caller.wait_quietly(4000)
        await caller.say(1200)
        await caller.wait_quietly(3000)
        await caller.play(far(1800))
        await caller.wait_quietly(3000)
        assert caller.statuses() == ["completed", "cancelled", "completed"]


@pytest.mark.virtual_time
async def test_a_television_in_silence_does_not_stop_the_answer_that_follows(
    clock: Callable[[], float],
) -> None:
    words = ["i want a latte please", "with oat milk please", "in the room tonight"]
    recognizer = FakeRecognizer([*words, "tell me a story", words[-1]], ms_per_word=200)
    backends = instant_backends(
        recognizer=recognizer, language_model=FakeLanguageModel(["Yes.", "Yes.", LONG])
    )
    async with Caller(clock, backends) as caller:
        for _ in range(2):
            await caller.say(1200)
            await caller.wait_quietly(4000)
        await caller.play(far(1500))
        await caller.wait_quietly(1600)
        await caller.say(1200)
        await caller.wait_quietly(3000)
        await caller.play(far(1500))
        await caller.wait_quietly(1500)
        assert len(caller.of("response.created")) == 3
        assert "cancelled" not in caller.statuses()


@pytest.mark.virtual_time
async def test_who_asks_for_the_answers_gets_the_words_of_soft_voices_too(
    clock: Callable[[], float],
) -> None:
    async with Caller(clock, scripted("At seven.")) as caller:
        await known_caller(caller)
        await caller.listen_until("response.done", count=3)
        detection = {"type": "semantic_vad", "create_response": False}
        session = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
        caller.send("session.update", session=session)
        await caller.wait_quietly(2000)
        await caller.play(far(1500))
        await caller.wait_quietly(3000)
        assert len(caller.of("input_audio_buffer.committed")) == 4


@pytest.mark.virtual_time
async def test_people_in_the_room_do_not_end_a_wait(clock: Callable[[], float]) -> None:
    """Who asked the agent to wait is asked back all the same."""
    words = ["i want a latte please", "with oat milk please", "hold on please", "in the room"]
    recognizer = FakeRecognizer(words, ms_per_word=200)
    async with Caller(clock, instant_backends(recognizer=recognizer)) as caller:
        for _ in range(3):
            await caller.say(1200)
            await caller.wait_quietly(4000)
        await caller.play(far(1500))
        await caller.wait_quietly(10_000)
        assert len(caller.of("response.created")) == 2
        await caller.wait_quietly(15_000)
        assert len(caller.of("response.created")) == 3
