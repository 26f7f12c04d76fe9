"""What callers wait for is told apart from what is merely slow."""

from __future__ import annotations

import pytest

from tests.hand_clock import HandClock
from voiceloop.backends import (
    Generated,
    GenerateParams,
    Partial,
    Speech,
    TextDelta,
    Transcript,
    Usage,
)
from voiceloop.workers.messages import (
    Commit,
    FeedAudio,
    FeedText,
    Finalize,
    FinishText,
    Flush,
    StreamOutput,
    ToWorker,
)
from voiceloop.workers.waits import DOUBLES_IN_S, JUDGED_AT_ONCE, LEAST_JUDGED, Ask, Waits

SAID, FINAL = Partial(0, ("yes",), (), flushed=True), Transcript(0, ())
SOUND = Speech(b"", 24_000)


@pytest.fixture
def clock() -> HandClock:
    return HandClock(0.0)


def learn(waits: Waits, clock: HandClock, seconds: float, times: int = LEAST_JUDGED) -> None:
    """So many flushes, each answered after so long."""
    for _ in range(times):
        waits.ask("early.0", Flush("early.0"))
        clock.now_s += seconds
        waits.answer("early.0", SAID)


def commit(stream_id: str, *, is_batch: bool = False) -> Commit:
    return Commit(stream_id, (), GenerateParams(is_batch=is_batch))


@pytest.mark.parametrize(
    ("message", "answer", "ask"),
    [
        (Flush("s"), SAID, Ask.WORDS),
        (Finalize("s"), FINAL, Ask.TRANSCRIPT),
        (commit("s"), TextDelta("a"), Ask.FIRST_TOKEN),
        (commit("s"), Generated("stop", Usage()), Ask.FIRST_TOKEN),
        (FinishText("s"), SOUND, Ask.FIRST_SOUND),
    ],
)
def test_a_question_is_open_until_its_first_answer(
    clock: HandClock, message: ToWorker, answer: StreamOutput, ask: Ask
) -> None:
    waits = Waits(clock)
    waits.ask("s", message)
    clock.now_s = 0.3
    assert waits.oldest_s() == pytest.approx(0.3)
    waits.answer("other", answer)
    assert waits.oldest_s() == pytest.approx(0.3)
    waits.answer("s", answer)
    clock.now_s = 5.0
    waits.answer("s", answer)
    assert waits.oldest_s() == 0.0
    assert waits.take_answers() == [(ask, pytest.approx(0.3))]
    assert not waits.take_answers()


def test_what_nobody_waits_for_is_no_question(clock: HandClock) -> None:
    waits = Waits(clock)
    for message in (FeedAudio("s", b""), FeedText("s", "a"), commit("s", is_batch=True)):
        waits.ask("s", message)
    waits.answer("s", SOUND)
    waits.ask("s", FinishText("s"))  # its first sound has come already
    clock.now_s = 9.0
    assert waits.oldest_s() == 0.0


def test_a_stream_that_is_over_leaves_no_question(clock: HandClock) -> None:
    waits = Waits(clock)
    waits.ask("s", Flush("s"))
    waits.ask("s", Finalize("s"))
    waits.forget("s")
    clock.now_s = 9.0
    assert waits.oldest_s() == 0.0 and not waits.overdue_s()


def test_a_slow_model_is_not_overdue_and_a_late_one_is(clock: HandClock) -> None:
    waits = Waits(clock)
    learn(waits, clock, 2.0)  # what this machine takes
    waits.ask("s", Flush("s"))
    clock.now_s += 3.0
    assert waits.oldest_s() == pytest.approx(3.0)
    assert not waits.overdue_s()
    clock.now_s += 2.5
    assert waits.overdue_s() == {"s": pytest.approx(1.5)}


def test_nothing_is_overdue_of_a_kind_whose_usual_time_nobody_knows(clock: HandClock) -> None:
    waits = Waits(clock)
    learn(waits, clock, 0.1)
    waits.ask("s", commit("s"))
    clock.now_s += 5.5  # the first token of a cold model
    assert not waits.overdue_s()
    waits.ask("s", Flush("s"))
    clock.now_s += 5.5
    assert waits.overdue_s() == {"s": pytest.approx(5.3)}


def test_the_first_answers_warm_up_and_the_longest_of_them_is_usual(clock: HandClock) -> None:
    waits = Waits(clock)
    learn(waits, clock, 0.1, times=LEAST_JUDGED - 1)
    waits.ask("s", Flush("s"))
    clock.now_s += 3.0
    assert not waits.overdue_s()
    waits.answer("s", SAID)
    waits.ask("s", Flush("s"))
    clock.now_s += 7.0
    assert waits.overdue_s() == {"s": pytest.approx(1.0)}


def test_what_one_call_waits_for_twice_counts_once_and_of_two_calls_each(clock: HandClock) -> None:
    waits = Waits(clock)
    learn(waits, clock, 0.1)
    for stream_id in ("sess_a.0/1", "sess_a.voice_1/2", "sess_b.0/3"):
        waits.ask(stream_id, Flush(stream_id))
        clock.now_s += 1.0
    late_s = waits.overdue_s()
    assert late_s == {"sess_a": pytest.approx(2.8), "sess_b": pytest.approx(0.8)}


def test_load_does_not_teach_that_late_is_usual(clock: HandClock) -> None:
    waits = Waits(clock)
    learn(waits, clock, 0.1, times=JUDGED_AT_ONCE)
    learn(waits, clock, 3.0, times=JUDGED_AT_ONCE)
    waits.ask("s", Flush("s"))
    clock.now_s += 1.0
    assert waits.overdue_s() == {"s": pytest.approx(0.8, abs=0.05)}


def test_what_takes_longer_for_an_hour_becomes_usual(clock: HandClock) -> None:
    waits = Waits(clock)
    learn(waits, clock, 0.1, times=JUDGED_AT_ONCE)
    for _ in range(12):
        clock.now_s += DOUBLES_IN_S / 2
        learn(waits, clock, 0.8, times=JUDGED_AT_ONCE)
    waits.ask("s", Flush("s"))
    clock.now_s += 1.5
    assert not waits.overdue_s()
