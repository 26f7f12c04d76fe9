"""Where samples lie: the session's clock under late, lost and too many frames; its channels."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from voiceloop.recording.timeline import LEFT, RATE_HZ, RIGHT, SessionClock, Sheet

FRAME_S = 0.02


def heard(clock: SessionClock, arrivals_s: list[float]) -> list[float]:
    """Where each stretch begins that these frames of 20 ms make."""
    places = (clock.advance(FRAME_S, at_s) for at_s in arrivals_s)
    return [place for place in places if place is not None]


def on_time(n_frames: int, from_s: float = 100.0, frame_s: float = FRAME_S) -> list[float]:
    return [from_s + (n + 1) * frame_s for n in range(n_frames)]


@settings(max_examples=40)
@given(delays_ms=st.lists(st.integers(0, 250), min_size=100, max_size=400))
@example(delays_ms=[200] * 12 + [0] * 12 + [1] * 64 + [250] * 80)
def test_frames_that_are_held_up_on_their_way_leave_no_hole(delays_ms: list[int]) -> None:
    clock = SessionClock(100.0)
    arrivals, last_s = [], 0.0
    for due_s, delay_ms in zip(on_time(len(delays_ms)), delays_ms, strict=True):
        last_s = max(last_s, due_s + delay_ms / 1000.0)  # a line keeps the order
        arrivals.append(last_s)
    heard(clock, arrivals)
    clock.settle()
    # A first frame that was late counts, once.
    assert clock.end_s <= len(delays_ms) * FRAME_S + 0.25 + 1e-9


@settings(max_examples=40)
@given(ppm=st.integers(-200, 200), jitter=st.lists(st.floats(0.0, 0.04), min_size=50, max_size=50))
def test_a_sound_card_that_is_off_moves_the_voices_apart_by_less_than_a_millisecond(
    ppm: int, jitter: list[float]
) -> None:
    clock, frame_s = SessionClock(100.0), FRAME_S * (1.0 + ppm / 1e6)
    jitter[0] = 0.0
    for n, due_s in enumerate(on_time(3 * 60 * 50, frame_s=frame_s)):
        clock.advance(FRAME_S, due_s + jitter[n % 50])
    # The last sample was recorded at `due_s`: what the agent said then lies beside it.
    assert abs(clock.at(due_s) - clock.end_s) < 0.001


@given(silence_s=st.floats(0.6, 3600.0))
def test_a_line_that_gave_nothing_for_a_while_was_silent_for_so_long(silence_s: float) -> None:
    clock = SessionClock(100.0)
    heard(clock, on_time(100))
    begins = heard(clock, on_time(100, from_s=102.0 + silence_s))
    assert abs(begins[0] - (2.0 + silence_s)) < 0.021
    assert abs(clock.at(104.0 + silence_s) - clock.end_s) < 0.021


def test_a_network_that_stood_still_gives_all_at_once_what_was_no_silence() -> None:
    clock = SessionClock(100.0)
    heard(clock, on_time(100))
    late = on_time(100, from_s=102.0)
    heard(clock, [max(at_s, 102.9) for at_s in late])
    clock.settle()
    assert abs(clock.end_s - 4.0) < 0.001


def test_a_file_sent_at_once_is_as_long_as_it_is() -> None:
    clock = SessionClock(100.0)
    clock.advance(120.0, 100.5)
    assert clock.settle() == 0.0
    assert clock.end_s == 120.0
    assert abs(clock.at(100.5) - 120.0) < 1e-6


@given(
    pieces=st.lists(
        st.tuples(st.sampled_from((LEFT, RIGHT)), st.integers(0, 900), st.integers(0, 200)),
        max_size=20,
    ),
    takes=st.lists(st.integers(0, 1000), max_size=20),
)
def test_what_is_taken_is_gapless_and_never_changes(
    pieces: list[tuple[int, int, int]], takes: list[int]
) -> None:
    sheet, taken = Sheet(), []
    for n, (channel, at, n_samples) in enumerate(pieces):
        begins = sheet.put(channel, at, np.full(n_samples, 7, np.int16))
        assert begins >= max(at, sheet.start)
        if n < len(takes):
            taken.append(sheet.take(takes[n]).copy())
    taken.append(sheet.take(sheet.end))
    whole = np.concatenate(taken)
    assert len(whole) == sheet.start == sheet.end
    n_sounding = sum(n_samples for _, _, n_samples in pieces)
    assert whole.sum() == 7 * n_sounding  # both are heard where two lie on one place


def test_two_voices_at_once_are_as_loud_as_a_sample_can_be() -> None:
    sheet = Sheet()
    for _ in range(2):
        sheet.put(RIGHT, 0, np.full(RATE_HZ, 30_000, np.int16))
    assert (sheet.take(RATE_HZ)[:, RIGHT] == 32767).all()
