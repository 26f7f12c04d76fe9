"""What callers wait for is told apart from what is merely slow."""

from __future__ import annotations

import pytest

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
from voiceloop.workers.waits import JUDGED_AT_ONCE, Ask, Waits

SAID, FINAL = Partial(0, ("yes",), (), flushed=True), Transcript(0, ())
SOUND = Speech(b"", 24_000)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


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
    clock: Clock, message: ToWorker, answer: StreamOutput, ask: Ask
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


def test_what_nobody_waits_for_is_no_question(clock: Clock) -> None:
    waits = Waits(clock)
    for message in (FeedAudio("s", b""), FeedText("s", "a"), commit("s", is_batch=True)):
        waits.ask("s", message)
    waits.answer("s", SOUND)
    waits.ask("s", FinishText("s"))  # its first sound has come already
    clock.now_s = 9.0
    assert waits.oldest_s() == 0.0


def test_a_stream_that_is_over_leaves_no_question(clock: Clock) -> None:
    waits = Waits(clock)
    waits.ask("s", Flush("s"))
    waits.ask("s", Finalize("s"))
    waits.forget("s")
    clock.now_s = 9.0
    assert waits.oldest_s() == waits.overdue_s() == 0.0


def test_a_slow_model_is_not_overdue_and_a_late_one_is(clock: Clock) -> None:
    waits = Waits(clock)
    waits.ask("s", commit("s"))
    clock.now_s = 2.0
    waits.answer("s", TextDelta("a"))  # what this machine takes
    waits.ask("s", commit("s"))
    clock.now_s = 5.0
    assert waits.oldest_s() == pytest.approx(3.0)
    assert waits.overdue_s() == 0.0
    clock.now_s = 7.5
    assert waits.overdue_s() == pytest.approx(1.5)


def test_load_does_not_teach_that_late_is_usual(clock: Clock) -> None:
    waits = Waits(clock)
    for number in range(4 * JUDGED_AT_ONCE):
        waits.ask("s", Flush("s"))
        clock.now_s += 0.1 if number < JUDGED_AT_ONCE else 3.0
        waits.answer("s", SAID)
    waits.ask("s", Flush("s"))
    clock.now_s += 1.0
    assert waits.overdue_s() == pytest.approx(0.8)
