"""Where the last syllable lies in the voice."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fakes import quiet
from voiceloop.listening.pitch import PitchTrack

HZ = 16_000


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


@pytest.mark.parametrize("base_hz", [90.0, 130.0, 220.0])
@pytest.mark.parametrize("semitones", [-5.0, 0.0, 4.0])
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
