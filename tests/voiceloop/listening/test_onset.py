"""Where speech begins: the windows that make it, the sound before it, and what is kept of both."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fakes import quiet, tone
from voiceloop.listening.onset import DEAF_WINDOWS, ONSET_MS, QUIET_WINDOWS, Onset

HZ = 16_000


def test_two_loud_windows_in_a_row_are_speech_and_one_alone_is_lost() -> None:
    onset = Onset()
    heard = [onset.observe(is_loud) for is_loud in (False, True, False, True, True, True)]
    assert heard == ["nothing", "loud", "lost", "loud", "speech", "loud"]


def test_loud_windows_that_are_forgotten_do_not_count_towards_speech() -> None:
    onset = Onset()
    assert not onset.forget()
    onset.observe(True)
    assert onset.forget() and not onset.forget()
    assert onset.observe(True) == "loud"


def test_a_sound_is_as_long_as_it_is_louder_than_the_room_before_it() -> None:
    onset = Onset()
    onset.feed(quiet(400, HZ))
    onset.feed(tone(160, HZ, amplitude=200))
    assert onset.lasting_ms() == pytest.approx(160, abs=10)
    assert onset.led_in_ms() == pytest.approx(160 - ONSET_MS, abs=10)
    assert onset.led_in_ms(500.0) == 0.0


def test_the_pre_roll_reaches_back_before_the_windows_that_told_and_is_taken_once() -> None:
    onset = Onset()
    onset.want_pre_roll(200.0)
    for n in range(100):
        onset.keep(np.full(160, n, np.int16))  # 10 ms each
    kept = np.concatenate(onset.take_pre_roll())
    assert len(kept) / 16 == pytest.approx(200 + ONSET_MS, abs=10)
    assert kept[-1] == 99
    assert onset.take_pre_roll() == ()


def test_the_sound_of_an_ended_turn_begins_no_other_until_it_has_been_quiet() -> None:
    onset = Onset()
    onset.ignore_what_goes_on()
    stop = [False] * (QUIET_WINDOWS - 1)
    assert {onset.observe(is_loud) for is_loud in [True] * 5 + stop + [True] * 5} == {"nothing"}
    assert [onset.observe(False) for _ in range(QUIET_WINDOWS)] == ["nothing"] * QUIET_WINDOWS
    assert [onset.observe(True) for _ in range(2)] == ["loud", "speech"]


def test_a_sound_that_never_stops_is_listened_to_again_at_last() -> None:
    onset = Onset()
    onset.ignore_what_goes_on()
    assert {onset.observe(True) for _ in range(DEAF_WINDOWS)} == {"nothing"}
    assert [onset.observe(True) for _ in range(2)] == ["loud", "speech"]
