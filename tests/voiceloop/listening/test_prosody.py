"""How loud and how high the last syllable is."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fakes import quiet, tone
from tests.tables import each_row
from voiceloop.listening.prosody import LoudnessTrack, PitchTrack

HZ = 16_000


def track(*pieces: np.ndarray) -> LoudnessTrack:
    found = LoudnessTrack()
    joined = np.concatenate(pieces)
    for start in range(0, len(joined), 333):  # chunks that cut frames anywhere
        found.feed(joined[start : start + 333])
    return found


def test_a_held_voice_is_level_and_a_dying_one_below() -> None:
    voice, room = tone(800, HZ), quiet(60, HZ)
    fading = (tone(200, HZ) * np.linspace(1.0, 0.1, HZ // 5)).astype(np.int16)
    held = track(voice, room).tail_level_db()
    fallen = track(voice, fading, room).tail_level_db()
    assert held == pytest.approx(0.0, abs=0.5)
    assert fallen is not None and fallen < -8


def test_too_little_speech_says_nothing() -> None:
    assert track(tone(100, HZ)).tail_level_db() is None


def test_digital_silence_is_no_error() -> None:
    assert track(np.zeros(HZ, np.int16)).tail_level_db() == pytest.approx(0.0)


def test_a_reset_forgets() -> None:
    found = track(tone(800, HZ))
    found.reset()
    assert found.tail_level_db() is None


def test_the_last_sound_is_found_to_ten_milliseconds() -> None:
    assert track(tone(800, HZ), quiet(150, HZ)).quiet_ms() == pytest.approx(150, abs=10)
    assert track(tone(800, HZ)).quiet_ms() == 0.0


def test_noise_as_loud_as_the_voice_hides_its_end() -> None:
    noise = np.random.default_rng(1).normal(0, 3000, HZ // 2).astype(np.int16)
    assert track(tone(800, HZ), noise).quiet_ms() == 0.0


def test_noise_that_sets_in_behind_digital_silence_is_no_sound_and_a_soft_voice_is() -> None:
    nothing = np.zeros(HZ // 2, np.int16)
    noise = np.random.default_rng(1).normal(0, 8, HZ // 5).astype(np.int16)  # -72 dBFS
    assert track(nothing, noise).n_risen(20) == 0
    assert track(nothing, noise).sound_ms() == 0.0
    soft = tone(200, HZ, amplitude=100)  # -53 dBFS
    assert track(nothing, soft).n_risen(20) == 20
    assert track(nothing, soft).sound_ms() == pytest.approx(200, abs=10)


@pytest.mark.parametrize(("closure_ms", "sound_ms"), [(0, 300), (60, 360), (150, 200)])
def test_a_sound_reaches_back_over_closures_and_not_over_pauses(
    closure_ms: int, sound_ms: int
) -> None:
    consonant, vowel = tone(100, HZ, amplitude=150), tone(200, HZ)
    found = track(quiet(200, HZ), consonant, quiet(closure_ms, HZ, seed=1), vowel).sound_ms()
    assert found == pytest.approx(sound_ms, abs=10)


def test_a_sound_without_a_beginning_has_no_length() -> None:
    noise = np.random.default_rng(1).normal(0, 300, HZ // 3).astype(np.int16)
    assert track(noise, tone(60, HZ, amplitude=400)).sound_ms() == 0.0
    assert track(quiet(50, HZ), tone(300, HZ)).sound_ms() == 0.0  # too little room to tell
    assert track(quiet(200, HZ), tone(100, HZ), quiet(200, HZ)).sound_ms() == 0.0  # it is over
    assert track(tone(100, HZ)).sound_ms() == 0.0
    assert LoudnessTrack().sound_ms() == 0.0


def voice(*pitches_hz: float, ms: float = 300.0) -> np.ndarray:
    """A buzz as the glottis makes it: each pitch for so long, all overtones, weaker upwards."""
    instantaneous = np.repeat(pitches_hz, int(ms * HZ / 1000))
    phase = 2 * np.pi * np.cumsum(instantaneous) / HZ
    buzz = sum(np.sin(k * phase) / k for k in range(1, 9))
    return (4000 * buzz).astype(np.int16)


def tail(*pieces: np.ndarray) -> float | None:
    track = PitchTrack()
    joined = np.concatenate(pieces)
    for start in range(0, len(joined), 333):  # chunks that cut frames anywhere
        track.feed(joined[start : start + 333])
    return track.tail_semitones()


@each_row("base_hz", [90.0, 130.0, 220.0])
@each_row("semitones", [-5.0, 0.0, 4.0])
def test_the_tail_is_told_in_semitones_of_the_turn(base_hz: float, semitones: float) -> None:
    last_hz = base_hz * 2 ** (semitones / 12)
    found = tail(voice(base_hz, base_hz, base_hz, last_hz), quiet(80, HZ))
    assert found == pytest.approx(semitones, abs=0.3)


def test_hiss_has_no_pitch() -> None:
    rng = np.random.default_rng(1)
    assert tail(rng.normal(0, 3000, HZ).astype(np.int16)) is None


def test_too_little_voice_says_nothing() -> None:
    assert tail(voice(130.0, ms=60.0)) is None
    assert tail(voice(130.0), quiet(600, HZ)) is None


def test_silence_is_no_error_and_a_reset_forgets() -> None:
    assert tail(np.zeros(HZ, np.int16)) is None
    track = PitchTrack()
    track.feed(voice(130.0))
    track.reset()
    assert track.tail_semitones() is None
