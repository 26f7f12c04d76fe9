"""What is asked over HTTP waits for what calls need, and ends all the same."""

from __future__ import annotations

import pytest

from tests.hand_clock import HandClock
from voiceloop.backends import RecognizerOptions, VoiceOptions
from voiceloop.workers.backlog import (
    LONGEST_REST_S,
    MOST_BYTES,
    PIECE_CHARACTERS,
    QUIET_S,
    SHARE,
    Backlog,
)
from voiceloop.workers.messages import (
    FeedAudio,
    FeedText,
    Finalize,
    FinishText,
    OpenRecognizer,
    OpenVoice,
    Pause,
)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def file_of(backlog: Backlog, stream_id: str, n_segments: int = 1) -> None:
    for _ in range(n_segments):
        assert backlog.put(FeedAudio(stream_id, bytes(3200)))
        assert backlog.put(Finalize(stream_id))


def test_files_take_turns_a_segment_each(clock: HandClock) -> None:
    backlog = Backlog(clock)
    file_of(backlog, "a", 2)
    file_of(backlog, "b")
    taken = [backlog.take() for _ in range(3)]
    assert [piece[0].stream_id for piece in taken] == ["a", "b", "a"]
    assert all(isinstance(piece[-1], Finalize) and len(piece) == 2 for piece in taken)
    assert not backlog


def test_nothing_is_begun_while_a_call_speaks_or_a_model_is_at_something(clock: HandClock) -> None:
    backlog = Backlog(clock)
    file_of(backlog, "a")
    assert not backlog.is_due(is_idle=False)
    assert backlog.is_due(is_idle=True)
    backlog.take()
    file_of(backlog, "a")
    for _ in range(100):  # two seconds of a caller's words
        backlog.observe_call()
        clock.now_s += 0.02
        assert not backlog.is_due(is_idle=False)
    assert backlog.wait_s() == pytest.approx(QUIET_S - 0.02)
    clock.now_s += QUIET_S
    assert backlog.is_due(is_idle=True)


def test_callers_without_a_pause_leave_it_its_small_share(clock: HandClock) -> None:
    backlog = Backlog(clock)
    file_of(backlog, "a", 100)
    spent_s, began_s = 0.0, clock.now_s
    while clock.now_s - began_s < 60.0:
        backlog.observe_call()
        if backlog.is_due(is_idle=True):
            backlog.take()
            clock.now_s += 0.1  # which the models take for a segment
            spent_s += 0.1
        clock.now_s += 0.02
    assert spent_s / (clock.now_s - began_s) == pytest.approx(SHARE, rel=0.2)


def test_models_that_are_never_idle_let_a_piece_pass_now_and_then(clock: HandClock) -> None:
    backlog = Backlog(clock)
    file_of(backlog, "a", 100)
    n_begun = 0
    for _ in range(1000):
        clock.now_s += 0.1
        backlog.observe_call()
        if backlog.is_due(is_idle=False):
            backlog.take()
            n_begun += 1
    assert n_begun == pytest.approx(100.0 / (2 * LONGEST_REST_S), abs=1)


def test_a_long_text_is_spoken_piece_by_piece_and_wholly(clock: HandClock) -> None:
    backlog = Backlog(clock)
    text = "one more word " * 60
    backlog.put(FeedText("a", text))
    backlog.put(FinishText("a"))
    pieces = []
    while backlog:
        pieces += backlog.take()
    assert isinstance(pieces.pop(), FinishText)
    texts = [piece.text for piece in pieces if isinstance(piece, FeedText)]
    assert "".join(texts) == text and len(texts) > 4
    assert all(len(piece) <= PIECE_CHARACTERS and piece.endswith(" ") for piece in texts)


def test_what_a_stream_has_waiting_is_bounded_and_goes_with_it(clock: HandClock) -> None:
    backlog = Backlog(clock)
    assert backlog.put(FeedAudio("a", bytes(MOST_BYTES)))
    assert not backlog.put(FeedAudio("a", bytes(2)))
    assert backlog.put(FeedAudio("b", bytes(2)))
    backlog.forget("a")
    assert backlog.put(FeedAudio("a", bytes(MOST_BYTES)))


def test_an_opening_is_no_piece_of_work(clock: HandClock) -> None:
    backlog = Backlog(clock)
    backlog.put(OpenRecognizer("a", RecognizerOptions(is_batch=True)))
    backlog.put(OpenVoice("b", VoiceOptions(is_batch=True)))
    assert not backlog


def test_a_stream_that_is_paused_is_passed_over_until_it_goes_on(clock: HandClock) -> None:
    backlog = Backlog(clock)
    backlog.put(FeedText("a", "one more word " * 60))
    backlog.put(FeedText("b", "another"))
    assert backlog.take()[0].stream_id == "a"
    backlog.put(Pause("a", is_paused=True))
    assert backlog.take()[0].stream_id == "b"
    assert not backlog and not backlog.is_due(is_idle=True)
    backlog.put(Pause("a", is_paused=False))
    assert backlog and backlog.take()[0].stream_id == "a"


def test_a_pause_ends_with_its_stream(clock: HandClock) -> None:
    backlog = Backlog(clock)
    backlog.put(Pause("a", is_paused=True))
    backlog.forget("a")
    file_of(backlog, "a")
    assert backlog
