"""Which sounds over the agent take the floor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voiceloop.agent import BargeIn
from voiceloop.barge_in import BargeInJudge


def judge_speech(judge: BargeInJudge, until_ms: int, soon: bool = False) -> list[str]:
    found = []
    for ms in range(32, until_ms + 1, 32):
        if (action := judge.judge(ms, 0, reply_ends_soon=soon)) is not None:
            found.append(action)
    return found


def test_speech_that_goes_on_ducks_holds_and_stops() -> None:
    assert judge_speech(BargeInJudge(BargeIn()), 400) == ["duck", "hold", "stop"]


def test_a_word_stops_at_once() -> None:
    judge = BargeInJudge(BargeIn())
    judge_speech(judge, 96)
    judge.observe_words(("wait",))
    assert judge.judge(100, 0, reply_ends_soon=False) == "stop"
    assert judge.judge(200, 0, reply_ends_soon=False) is None


@pytest.mark.parametrize("said", ["yeah", "Mm-hmm", "uh huh", "uh", "okay yeah", "I see"])
def test_a_backchannel_gives_the_floor_back(said: str) -> None:
    judge = BargeInJudge(BargeIn())
    judge.observe_words(tuple(said.split()))
    assert judge_speech(judge, 500) == ["duck", "hold"]
    assert judge.judge(500, 250, reply_ends_soon=False) == "resume"


@pytest.mark.parametrize("said", ["no", "yeah but", "right now", "see i"])
def test_more_than_a_backchannel_is_none(said: str) -> None:
    judge = BargeInJudge(BargeIn())
    judge.observe_words(tuple(said.split()))
    assert "stop" in judge_speech(judge, 100)


def test_a_backchannel_at_the_very_end_is_an_answer() -> None:
    judge = BargeInJudge(BargeIn())
    judge.observe_words(("yeah",))
    assert judge_speech(judge, 64, soon=True) == ["stop"]


def test_a_click_resumes_without_a_hold() -> None:
    judge = BargeInJudge(BargeIn())
    assert judge_speech(judge, 96) == ["duck"]
    assert judge.judge(96, 224, reply_ends_soon=False) == "resume"
    assert judge.state == "idle"


def test_switched_off_it_never_acts() -> None:
    assert judge_speech(BargeInJudge(BargeIn(enabled=False)), 2000) == []


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2000), st.integers(0, 400), st.sampled_from(["", "yeah", "no", "uh"])
        ),
        max_size=30,
    )
)
def test_every_state_is_left_by_speech_or_by_silence(steps: list[tuple[int, int, str]]) -> None:
    judge = BargeInJudge(BargeIn())
    for speech_ms, silence_ms, words in steps:
        judge.observe_words(tuple(words.split()))
        judge.judge(speech_ms, silence_ms, reply_ends_soon=False)
    before = judge.state
    if before == "stopped":
        return
    action = judge.judge(100, 1000, reply_ends_soon=False)
    assert judge.state in ("idle", "stopped")
    assert (action is None) == (before == "idle" and judge.state == "idle")
