"""Steady noise goes, speech stays, and each caller's estimate is its own."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import soundfile

from audio.errors import MissingExtra
from audio.frames import RECOGNIZER_HZ, Samples, rms_dbfs
from audio.noise_reduction import FRAME, Field, NoiseReduction, is_available

pytestmark = pytest.mark.skipif(not is_available(), reason="webrtc-noise-gain is not installed")

SPEECH = Path(__file__).resolve().parents[2] / "clients" / "call" / "slt" / "2_order.flac"
DELAY = 96  # samples: WebRTC's filter bank
FIELDS: tuple[Field, ...] = ("near_field", "far_field")


def hiss(seconds: float, dbfs: float = -40.0, seed: int = 0) -> Samples:
    rng = np.random.default_rng(seed)
    level = 32768 * 10 ** (dbfs / 20)
    return rng.normal(0.0, level, int(seconds * RECOGNIZER_HZ)).astype(np.int16)


@lru_cache(maxsize=1)
def speech() -> Samples:
    samples, rate_hz = soundfile.read(SPEECH, dtype="int16")
    assert rate_hz == RECOGNIZER_HZ
    return np.asarray(samples, np.int16)


def test_steady_noise_is_taken_down_and_more_of_it_in_the_far_field() -> None:
    noise = hiss(4.0)
    cut_db = {}
    for field in FIELDS:
        cleaned = NoiseReduction(field).push(noise)
        later = slice(2 * RECOGNIZER_HZ, None)  # the estimate has settled
        cut_db[field] = rms_dbfs(noise[later]) - rms_dbfs(cleaned[later])
    assert 9 <= cut_db["near_field"] <= 16
    assert cut_db["far_field"] >= cut_db["near_field"] + 3


@pytest.mark.parametrize("field", FIELDS)
def test_speech_keeps_its_level_in_noise_and_without(field: Field) -> None:
    clean = speech()
    for noise_dbfs in (-90.0, -45.0):
        noise = hiss(2.0 + len(clean) / RECOGNIZER_HZ, noise_dbfs)
        lead = 2 * RECOGNIZER_HZ  # of the room alone
        noisy = noise.copy()
        noisy[lead : lead + len(clean)] += clean
        cleaned = NoiseReduction(field).push(noisy)[lead + DELAY :][: len(clean)]
        assert abs(rms_dbfs(cleaned) - rms_dbfs(clean)) < 1.0


def test_any_chunks_come_to_the_same_and_less_than_a_frame_is_withheld() -> None:
    noisy = (speech() // 2 + hiss(len(speech()) / RECOGNIZER_HZ)[: len(speech())]).astype(np.int16)
    whole = NoiseReduction("near_field")
    expected = np.concatenate((whole.push(noisy), whole.flush()))
    rng = np.random.default_rng(1)
    chunked, at, found = NoiseReduction("near_field"), 0, []
    while at < len(noisy):
        n = int(rng.integers(1, 700))
        found.append(chunked.push(noisy[at : at + n]))
        at += n
        assert 0 <= min(at, len(noisy)) - sum(map(len, found)) < FRAME
    found.append(chunked.flush())
    assert np.array_equal(np.concatenate(found), expected)
    assert len(expected) == len(noisy)


def test_two_callers_do_not_hear_each_others_noise() -> None:
    quiet, loud = hiss(1.0, -60.0, 1), hiss(1.0, -20.0, 2)
    alone = NoiseReduction("near_field").push(quiet)
    one, other = NoiseReduction("near_field"), NoiseReduction("near_field")
    beside = []
    for at in range(0, len(quiet), FRAME):
        other.push(loud[at : at + FRAME])
        beside.append(one.push(quiet[at : at + FRAME]))
    assert np.array_equal(np.concatenate(beside), alone)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "webrtc_noise_gain", None)
    with pytest.raises(MissingExtra, match=r"pip install 'voiceloop\[noise\]'"):
        NoiseReduction("near_field")
