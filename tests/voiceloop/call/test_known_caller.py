"""What level and voice say of whether a sound is the caller's, and what becomes of it in a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.callers import RATE_HZ, Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, instant_backends, utterance
from voiceloop.agent import AgentConfig, BargeIn
from voiceloop.backends import Backends
from voiceloop.call.known_caller import (
    LEAST_OF_VOICE,
    LEAST_TURN_MS,
    SECOND_TRY_MS,
    KnownCaller,
    log_odds_of,
)
from voiceloop.listening.voice_print import Print, VoicePrinter

LONG = "Once upon a time there was a roaster. " * 12
FAR = 0.2  # of the caller's amplitude: 14 dB below


def known(*levels_db: float) -> KnownCaller:
    level = KnownCaller()
    for level_db in levels_db:
        level.take(level_db, LEAST_TURN_MS)
    return level


def test_nothing_is_said_of_a_caller_who_has_hardly_spoken() -> None:
    assert known(70.0).log_odds(40.0, 0.0) == 0.0
    level = known(70.0)
    level.take(70.0, LEAST_TURN_MS - 1.0)
    assert level.log_odds(40.0, 0.0) == 0.0
    assert known(70.0, 70.0).log_odds(None, 0.0) == 0.0
    assert known(70.0, 70.0).log_odds(40.0, 0.0) < -3.5


def test_a_caller_who_has_stepped_back_is_known_anew_after_two_turns() -> None:
    level = known(70.0, 70.0, 70.0, 70.0)
    assert level.log_odds(60.0, 0.0) < -3.5
    for _ in range(2):
        level.take(60.0, LEAST_TURN_MS)
    assert level.log_odds(60.0, 0.0) > -1.0


def test_who_is_kept_out_is_heard_at_the_second_try() -> None:
    level = known(70.0, 70.0)
    level.keep_out(10_000.0)
    assert level.log_odds(50.0, 10_500.0) == 0.0
    assert level.log_odds(50.0, 10_000.0 + SECOND_TRY_MS) < -3.5


CALLER, OTHER = (*[1.0] * 8, 120.0), (*[-4.0] * 8, 120.0)  # prints of two people


def test_another_voice_counts_against_a_sound_from_the_second_turn_on() -> None:
    known_by_voice = KnownCaller()
    for expected in (0.0, 0.0):
        assert known_by_voice.log_odds(None, 0.0, OTHER) == expected
        known_by_voice.take(None, LEAST_TURN_MS, CALLER)
    assert known_by_voice.log_odds(None, 0.0, CALLER) == 0.0
    assert known_by_voice.log_odds(None, 0.0, OTHER) == LEAST_OF_VOICE


def test_a_second_person_on_the_telephone_is_a_caller_after_one_turn() -> None:
    handed_over = KnownCaller()
    for voice in (CALLER, CALLER, OTHER):
        handed_over.take(None, LEAST_TURN_MS, voice)
    assert handed_over.log_odds(None, 0.0, OTHER) == handed_over.log_odds(None, 0.0, CALLER) == 0.0


def test_where_anybody_may_speak_nothing_counts_against_anybody() -> None:
    shared = KnownCaller(is_alone=False)
    for _ in range(2):
        shared.take(70.0, LEAST_TURN_MS, CALLER)
    assert shared.log_odds(40.0, 0.0, OTHER) == 0.0


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
@pytest.mark.parametrize(("gain", "by_sound", "stops"), [
    (FAR, True, False), (FAR, False, True), (0.7, True, True),
])  # fmt: skip
async def test_a_voice_across_the_room_does_not_stop_the_agent(
    clock: Callable[[], float], gain: float, by_sound: bool, stops: bool
) -> None:
    agent = AgentConfig(barge_in=BargeIn(by_sound=by_sound))
    async with Caller(clock, scripted(LONG), agent) as caller:
        await known_caller(caller)
        await caller.wait_quietly(2500)
        await caller.play((utterance(1000, RATE_HZ) * gain).astype(np.int16))
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
        await caller.play((utterance(5000, RATE_HZ) * gain).astype(np.int16))
        await caller.wait_quietly(3000)
        assert len(caller.of("response.created")) == n_turns
        await caller.say(1200)  # the caller is heard as before
        await caller.listen_until("response.done", count=n_turns + 1)


@pytest.mark.virtual_time
@pytest.mark.parametrize(("speakers", "has_prints"), [("caller", True), ("any", False)])
async def test_no_print_of_a_voice_is_made_where_anybody_may_speak(
    clock: Callable[[], float],
    monkeypatch: pytest.MonkeyPatch,
    speakers: Literal["caller", "any"],
    has_prints: bool,
) -> None:
    made: list[Print | None] = []
    taken = VoicePrinter.print

    def take(printer: VoicePrinter) -> Print | None:
        made.append(taken(printer))
        return made[-1]

    monkeypatch.setattr(VoicePrinter, "print", take)
    agent = AgentConfig(barge_in=BargeIn(speakers=speakers))
    async with Caller(clock, scripted("Once upon a time."), agent) as caller:
        await caller.say(1200)
        await caller.listen_until("response.done")
    assert any(one is not None for one in made) == has_prints
