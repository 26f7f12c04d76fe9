"""A telephone's sound: whole frames, order, and what marks tell of it."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.codec import Encoding
from tests.fakes import tone
from tests.tables import each_row
from voiceloop.doors.carriers.marks import MARK_EVERY_MS, Marks
from voiceloop.doors.carriers.sound import MOST_AHEAD, FarSound, InOrder
from voiceloop.doors.keypad import COLUMNS, ROWS, tones
from voiceloop.errors import InvalidRequest

FORMATS: list[tuple[Encoding, int]] = [
    ("pcmu", 8000), ("pcma", 8000), ("pcm16", 8000), ("pcm16", 16_000), ("pcm16", 24_000),
]  # fmt: skip


@pytest.mark.parametrize(("encoding", "rate_hz"), FORMATS)
@settings(max_examples=30)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=12))
def test_frames_are_whole_and_all_that_was_said_is_in_them(
    encoding: Encoding, rate_hz: int, cuts: list[int]
) -> None:
    sound, said = FarSound(encoding, rate_hz), tone(1000, 24_000, 440.0)
    edges = [0, *(end for end in accumulate(cuts) if end < len(said)), len(said)]
    frames = [
        frame
        for start, end in zip(edges, edges[1:], strict=False)
        for frame in sound.frames(said[start:end].astype("<i2").tobytes())
    ]
    frames += sound.finish()
    assert {sound.duration_ms(frame) for frame in frames} == {20.0}
    assert len(frames) in (50, 51)
    assert sound.finish() == []
    back = FarSound(encoding, rate_hz)
    heard = np.frombuffer(b"".join(map(back.heard, frames)), "<i2").astype(float)
    common = min(len(heard), len(said))
    assert np.corrcoef(heard[:common], said[:common])[0, 1] > 0.99  # at the same place


@given(st.permutations(range(MOST_AHEAD + 1)), st.integers(0, 3))
def test_pieces_that_come_a_little_out_of_order_are_put_in_order(
    order: list[int], first: int
) -> None:
    pieces = InOrder()
    heard = pieces.take(first, bytes([first]))
    for number in order:
        heard += pieces.take(first + 1 + number, bytes([first + 1 + number]))
        heard += pieces.take(first, b"again")  # a double is dropped
    assert heard == [bytes([first + number]) for number in range(MOST_AHEAD + 2)]


def test_a_piece_that_never_comes_is_given_up() -> None:
    pieces = InOrder()
    heard = [piece for number in (1, 3, 4, 5, 6, 7) for piece in pieces.take(number, b"x")]
    assert len(heard) == 6
    assert pieces.take(None, b"y") == [b"y"]


def sent(marks: Marks, ms: float, now_s: float) -> list[str]:
    names = [marks.observe_sent(20.0, now_s) for _ in range(round(ms / 20.0))]
    return [name for name in names if name]


def test_the_delay_is_what_the_marks_say() -> None:
    marks = Marks()
    assert marks.delay_ms(0.0) == 0.0  # none has come: nothing is known
    first, second = sent(marks, 2 * MARK_EVERY_MS, 10.0)
    marks.observe_played(first, 10.28)
    assert marks.delay_ms(10.28) == pytest.approx(80.0)
    assert marks.delay_ms(10.6) == pytest.approx(200.0)  # the next is overdue by more
    marks.observe_played(second, 10.65)
    assert marks.delay_ms(11.0) == pytest.approx(250.0)


def test_marks_that_come_back_because_of_a_clear_tell_nothing() -> None:
    marks = Marks()
    [first] = sent(marks, MARK_EVERY_MS, 0.0)
    marks.observe_played(first, 0.25)
    stale = sent(marks, MARK_EVERY_MS, 1.0)
    marks.clear(1.05)
    for name in [*stale, first, "no mark of ours", ""]:
        marks.observe_played(name, 1.06)
    assert marks.delay_ms(9.0) == pytest.approx(50.0)
    assert sent(marks, MARK_EVERY_MS, 2.0) not in (stale, [first])


@each_row("key", list("123A456B789C*0#D"))
def test_a_key_sounds_as_its_two_tones_and_no_others(key: str) -> None:
    samples = np.frombuffer(tones(key), "<i2").astype(float)
    loud = samples[: 24_000 // 10]
    spectrum = np.abs(np.fft.rfft(loud * np.hanning(len(loud)), 24_000))
    strongest = {min(group, key=lambda hz: -spectrum[round(hz)]) for group in (ROWS, COLUMNS)}
    position = "123A456B789C*0#D".index(key)
    assert strongest == {ROWS[position // 4], COLUMNS[position % 4]}
    assert not samples[24_000 // 10 :].any()


@pytest.mark.parametrize("digits", ["12x", "1" * 65, "é"])
def test_what_is_no_key_is_refused(digits: str) -> None:
    with pytest.raises(InvalidRequest):
        tones(digits)
