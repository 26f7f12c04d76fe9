"""What nobody waits for any more is known by how long it was to be waited for."""

from __future__ import annotations

import pytest

from tests.hand_clock import HandClock
from voiceloop.backends import GenerateParams, Staged, TextDelta, Transcript
from voiceloop.workers.deadlines import GRACE_S, Deadlines
from voiceloop.workers.messages import Commit, Finalize


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def test_a_reply_whose_first_token_is_too_late_is_given_up(clock: HandClock) -> None:
    deadlines = Deadlines(clock)
    deadlines.ask(Commit("a", (), GenerateParams(within_ms=5000)))
    deadlines.ask(Commit("b", (), GenerateParams(within_ms=5000)))
    deadlines.ask(Commit("c", (), GenerateParams()))  # for which somebody waits for ever
    deadlines.answer("a", Staged(1, 1, 1, None))  # no answer to that
    deadlines.answer("b", TextDelta("Sure"))
    clock.now_s += 5.0 + GRACE_S
    assert deadlines.passed() == []
    clock.now_s += 0.01
    assert deadlines.passed() == ["a"]
    deadlines.forget("a")
    assert deadlines.passed() == []


def test_transcripts_answer_in_the_order_in_which_they_were_asked_for(clock: HandClock) -> None:
    deadlines = Deadlines(clock)
    deadlines.ask(Finalize("a"))  # of a sound that nobody waits for
    deadlines.ask(Finalize("a", 6000))
    deadlines.answer("a", Transcript(0, ()))
    clock.now_s += 7.0
    assert deadlines.passed() == ["a"]
    deadlines.answer("a", Transcript(1, ()))
    assert deadlines.passed() == []
