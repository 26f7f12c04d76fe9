"""Where speech begins: the windows that make it, the sound before it, and what is kept of both."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fakes import quiet, tone
from voiceloop.listening.segment import (
    DEAF_WINDOWS,
    LIKELY,
    LONGEST_RISE_MS,
    MOST_IN_VAIN,
    ONSET_MS,
    QUIET_WINDOWS,
    Onset,
)

HZ = 16_000


def test_two_loud_windows_in_a_row_are_speech_and_one_alone_is_lost() -> None:
    onset = Onset()
    heard = [onset.observe(is_loud) for is_loud in (False, True, False, True, True, True)]
    assert heard == ["nothing", "loud", "lost", "loud", "speech", "loud"]


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


def levels(onset: Onset, sound: np.ndarray, likeness: float = 0.0) -> list[str]:
    """What loudness tells at each frame of 20 ms, the room for half a second before and after."""
    told = []
    room = quiet(500, HZ)
    for samples in np.split(whole := np.concatenate((room, sound, room)), len(whole) // 320):
        onset.observe_likeness(likeness if samples.any() else 0.0)
        onset.feed(samples)
        told.append(onset.observe_level())
    return [heard for heard in told if heard != "nothing"]


def test_a_sound_plainly_louder_than_the_room_rises_and_is_lost_once_it_is_over() -> None:
    told = levels(Onset(), tone(200, HZ))
    assert told[0] == "risen" and told[-1] == "lost"
    assert set(told) == {"risen", "lost"} and told.count("lost") == 1


def test_a_sound_in_which_the_detector_does_not_rule_a_voice_out_may_be_one() -> None:
    assert set(levels(Onset(), tone(200, HZ), LIKELY)) == {"likely", "lost"}
    assert set(levels(Onset(), tone(200, HZ), LIKELY / 2)) == {"risen", "lost"}


def test_a_click_and_a_sound_little_louder_than_the_room_do_not_rise() -> None:
    assert levels(Onset(), tone(40, HZ), 1.0) == []
    onset = Onset()
    onset.feed(tone(500, HZ, amplitude=100))
    onset.feed(tone(200, HZ, amplitude=300))
    assert onset.observe_level() == "nothing"


def test_where_sounds_rise_and_are_no_speech_loudness_tells_nothing_until_one_is() -> None:
    onset = Onset()
    for _ in range(MOST_IN_VAIN):
        assert "lost" in levels(onset, tone(200, HZ), LIKELY)
    assert levels(onset, tone(200, HZ), LIKELY) == []
    onset.feed(tone(100, HZ))
    onset.observe_level()
    assert [onset.observe(True) for _ in range(2)] == ["loud", "speech"]
    assert "likely" in levels(onset, tone(200, HZ), LIKELY)


def test_a_sound_that_turns_out_to_be_speech_was_not_in_vain() -> None:
    onset = Onset()
    for _ in range(3 * MOST_IN_VAIN):
        onset.feed(quiet(500, HZ))
        onset.feed(tone(100, HZ))
        assert onset.observe_level() == "risen"
        assert [onset.observe(True) for _ in range(2)] == ["loud", "speech"]


def test_a_loud_window_within_a_sound_that_has_risen_is_lost_at_once_and_the_sound_likely() -> None:
    onset = Onset()
    onset.feed(quiet(500, HZ))
    onset.feed(tone(100, HZ))
    assert onset.observe_level() == "risen"
    assert [onset.observe(is_loud) for is_loud in (True, False)] == ["loud", "lost"]
    onset.feed(quiet(60, HZ))
    assert onset.observe_level() == "likely"  # a closure, perhaps
    onset.feed(quiet(140, HZ))
    assert onset.observe_level() == "lost"


def beats(n: int) -> np.ndarray:
    """Noise that never falls silent for longer than a closure: 180 ms of sound, 80 of the room."""
    return np.concatenate([np.concatenate((tone(180, HZ), quiet(80, HZ))) for _ in range(n)])


def test_one_loud_window_in_noise_that_beats_is_lost_with_the_next_window() -> None:
    onset, told, loud_ms = Onset(), [], 500 + 160
    whole = np.concatenate((quiet(500, HZ), beats(30)))
    for n, samples in enumerate(np.split(whole[: len(whole) // 512 * 512], len(whole) // 512)):
        onset.feed(samples)
        end_ms = 32 * (n + 1)
        told.append((end_ms, onset.observe(end_ms - 32 < loud_ms <= end_ms)))
        onset.observe_likeness(LIKELY)
        onset.observe_level()
    [(held_ms, _), (gone_ms, heard)] = [one for one in told if one[1] != "nothing"]
    assert heard == "lost" and gone_ms - held_ms == 32


def test_noise_that_beats_may_be_a_voice_for_so_long_and_counts_in_vain_until_it_is_over() -> None:
    onset = Onset()
    told = levels(onset, beats(20), LIKELY)
    assert told.count("lost") == 1 and told[-1] == "lost"
    assert 20 * len(told) <= LONGEST_RISE_MS + 20
    assert [levels(onset, beats(20), LIKELY).count("lost") for _ in range(3)] == [1, 1, 0]
    assert not onset.heeds_likeness


def test_what_the_detector_says_of_a_sound_is_heeded_only_where_it_is_told_of() -> None:
    onset = Onset()
    onset.feed(quiet(500, HZ))
    assert not onset.heeds_likeness
    onset.feed(tone(100, HZ))
    assert onset.heeds_likeness
    onset.ignore_what_goes_on()
    assert not onset.heeds_likeness
