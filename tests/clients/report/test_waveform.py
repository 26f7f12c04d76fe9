"""Waveform truth on audio whose onset, end and pauses are known because they were put there."""

from __future__ import annotations

import numpy as np
import pytest

from clients.recording import Samples
from clients.report import waveform

RATE_HZ = 16_000


def silence(ms: float) -> Samples:
    return np.zeros(int(RATE_HZ * ms / 1000), dtype=np.int16)


def voice(ms: float, amplitude: float = 8000.0) -> Samples:
    n = int(RATE_HZ * ms / 1000)
    return (amplitude * np.sin(2 * np.pi * 200 * np.arange(n) / RATE_HZ)).astype(np.int16)


def ms_of(position: int | None) -> float:
    assert position is not None
    return 1000.0 * position / RATE_HZ


def test_speech_start_and_end_are_found_to_the_frame() -> None:
    samples = np.concatenate([silence(130), voice(500), silence(300)])
    assert ms_of(waveform.speech_start(samples, RATE_HZ)) == 130
    assert ms_of(waveform.speech_end(samples, RATE_HZ)) == 630


def test_a_tail_within_35_db_of_the_peak_is_still_speech() -> None:
    samples = np.concatenate([voice(300), voice(100, 8000 * 10 ** (-30 / 20)), silence(200)])
    assert ms_of(waveform.speech_end(samples, RATE_HZ)) == 400


def test_a_tail_below_35_db_of_the_peak_is_not_speech() -> None:
    samples = np.concatenate([voice(300), voice(100, 8000 * 10 ** (-40 / 20)), silence(200)])
    assert ms_of(waveform.speech_end(samples, RATE_HZ)) == 300


def test_the_level_is_relative_so_a_quiet_caller_has_the_same_end() -> None:
    samples = np.concatenate([silence(100), voice(300, 200.0), silence(100)])
    assert ms_of(waveform.speech_end(samples, RATE_HZ)) == 400


def test_digital_silence_and_no_audio_hold_no_speech() -> None:
    for samples in (silence(500), silence(0)):
        assert waveform.speech_start(samples, RATE_HZ) is None
        assert waveform.speech_end(samples, RATE_HZ) is None
        assert waveform.pauses(samples, RATE_HZ, 100) == []


def test_a_last_frame_that_is_not_whole_ends_with_the_samples() -> None:
    samples = voice(105)
    assert waveform.speech_end(samples, RATE_HZ) == len(samples)


def test_audible_is_above_minus_45_dbfs() -> None:
    assert waveform.audible_amplitude() == pytest.approx(184.3, abs=0.1)
    samples = np.array([0, 184, -184, 185, 0, -185, 3], dtype=np.int16)
    assert waveform.first_audible(samples) == 3
    assert waveform.first_audible(samples, after=4) == 5
    assert waveform.last_audible(samples) == 5
    assert waveform.first_audible(samples[:3]) is None


def test_the_loudest_negative_sample_is_audible() -> None:
    assert waveform.first_audible(np.array([-32768], dtype=np.int16)) == 0


def test_room_noise_has_its_level_and_is_the_same_for_the_same_seed() -> None:
    noise = waveform.room_noise(24_000, 24_000, seed=3, level_dbfs=-60.0)
    level = 20 * np.log10(np.sqrt(np.mean(np.square(noise / 32768.0))))
    assert level == pytest.approx(-60.0, abs=0.3)
    assert np.array_equal(noise, waveform.room_noise(24_000, 24_000, seed=3, level_dbfs=-60.0))
    assert not np.array_equal(noise, waveform.room_noise(24_000, 24_000, seed=4, level_dbfs=-60.0))
