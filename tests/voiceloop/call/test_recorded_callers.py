"""Recorded people whose voice, device or telephone changes in mid-call are not locked out.

With the shared recordings (VOICELOOP_DATA); without them these are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from scipy.signal import butter, resample_poly, sosfilt

from audio.frames import RECOGNIZER_HZ
from audio.recipes.offset_windows import over_u_law
from benchmarks.backchannels import Ear, frames_of
from benchmarks.harness.data_folder import data_folder
from voiceloop.agent import BargeIn
from voiceloop.call.barge_in import (
    FAR_LOG_ODDS,
    LEAST_TURN_MS,
    SOFT_LOG_ODDS,
    BargeInJudge,
    CallerLevel,
)
from voiceloop.listening.prosody import LoudnessTrack
from voiceloop.listening.recipes.heard_turn import Listening

SPEECH = data_folder() / "speech"
LISTED = SPEECH / "orders.jsonl"
pytestmark = pytest.mark.skipif(not LISTED.is_file(), reason="needs the shared recordings")
Wave = NDArray[np.float64]
N_CALLERS, N_TURNS = 8, 6
LATER_MS = 60_000.0  # than any second try
SECOND_DB = -12.0  # of the next speaker, or the next device


@cache
def speakers() -> list[list[Wave]]:
    """Of the people who order, the first who have said enough: their turns."""
    found: dict[str, list[Wave]] = {}
    for row in map(json.loads, LISTED.read_text(encoding="utf-8").splitlines()):
        start, end = row["start_of_speech_ms"] * 16, row["end_of_speech_ms"] * 16
        said = found.setdefault(row["speaker"], [])
        if end - start >= LEAST_TURN_MS * 16 and len(said) < N_TURNS:
            samples = soundfile.read(SPEECH / row["file"], dtype="int16")[0]
            said.append(samples[start:end].astype(np.float64))
        if sum(len(turns) == N_TURNS for turns in found.values()) == N_CALLERS:
            break
    return [turns for turns in found.values() if len(turns) == N_TURNS]


def level_db(wave: Wave) -> float | None:
    loudness = LoudnessTrack()
    loudness.feed(np.clip(wave, -32768, 32767).astype(np.int16))
    return loudness.loud_level_db()


def at(wave: Wave, gain_db: float) -> Wave:
    """As loud as everybody's loudest part, then so much softer."""
    return wave * 8000.0 / max(float(np.abs(wave).max()), 1.0) * 10.0 ** (gain_db / 20.0)


def known(turns: Sequence[Wave]) -> CallerLevel:
    level = CallerLevel()
    for turn in turns:
        level.take(level_db(turn), LEAST_TURN_MS, 0.0)
    return level


def kept_out(
    level: CallerLevel, turns: Sequence[Wave], most: float = SOFT_LOG_ODDS
) -> Iterator[bool]:
    """Whether each is so much softer that what it sounds like may keep it out; FAR: that its
    level alone keeps it out.
    """
    return (level.log_odds(level_db(turn), LATER_MS) <= most for turn in turns)


def hoarse(wave: Wave) -> Wave:
    """A cold: lower by a twelfth, without the nose's and the highest parts, a little softer."""
    lower = resample_poly(wave, 13, 12)
    return np.asarray(sosfilt(butter(2, 2500.0, fs=RECOGNIZER_HZ, output="sos"), lower)) * 0.8


def test_a_caller_with_a_cold_is_the_same_caller() -> None:
    out = [
        is_out
        for turns in speakers()
        for is_out in kept_out(known([at(t, 0.0) for t in turns[:2]]),
                               [hoarse(at(t, 0.0)) for t in turns[2:]], FAR_LOG_ODDS)
    ]  # fmt: skip
    assert sum(out) <= 0.05 * len(out)  # and these are heard at the second try


@pytest.mark.parametrize("change", ["another person", "another device"])
def test_who_takes_the_telephone_over_is_adopted_within_two_turns(change: str) -> None:
    """Twelve dB softer than the caller before, beyond a telephone's line where it is a device."""
    people = speakers()
    n_out = n = 0
    for first, other in zip(people, people[1:], strict=False):
        level = known([at(turn, 0.0) for turn in first[:4]])
        said = other if change == "another person" else first
        later = [at(turn, SECOND_DB) for turn in said]
        if change == "another device":
            later = [over_u_law(turn.astype(np.int16)).astype(np.float64) for turn in later]
        assert all(kept_out(level, later[:1]))
        level.keep_out(0.0, in_silence=False)
        assert level.log_odds(level_db(later[1]), 500.0) == 0.0  # the second try is heard
        assert level.take(level_db(later[1]), LEAST_TURN_MS, 500.0)  # and is the caller's
        out = list(kept_out(level, later[2:]))
        n_out, n = n_out + sum(out), n + len(out)
    assert n_out <= 0.1 * n


def music(seed: int, seconds: float = 8.0) -> NDArray[np.int16]:
    """On hold: chords of four voices, a melody and a beat, as loud as a caller."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * RECOGNIZER_HZ)) / RECOGNIZER_HZ
    wave = np.zeros(len(t))
    for bar in range(int(seconds / 0.5)):
        here = (t >= 0.5 * bar) & (t < 0.5 * (bar + 1))
        root = 220.0 * 2 ** (rng.choice([0, 5, 7, 9]) / 12)
        for step in (0, 4, 7, 12 + rng.choice([0, 2, 4])):
            hz = root * 2 ** (step / 12)
            wave[here] += sum(np.sin(2 * np.pi * k * hz * t[here]) / k for k in (1, 2, 3))
        beat = (t >= 0.5 * bar) & (t < 0.5 * bar + 0.05)
        wave[beat] += 3.0 * rng.standard_normal(int(beat.sum()))
    return (wave * 1800.0 / np.sqrt(np.mean(wave**2))).astype(np.int16)


@pytest.mark.parametrize("seed", range(3))
def test_music_on_hold_does_not_stop_the_agent(seed: int) -> None:
    ear, judge, probabilities = Ear(), BargeInJudge(BargeIn()), list[float]()
    for frame, now_ms in frames_of(music(seed)):
        ear.hear(frame)
        if ear.listening.onset_ms is None or ear.probability is None:
            continue
        probabilities += [] if ear.listening.paused else [ear.probability]
        speech_ms = ear.listening.last_sound_ms - ear.listening.onset_ms
        silence_ms = now_ms - ear.listening.last_sound_ms if ear.listening.paused else 0.0
        voice = float(np.mean(probabilities or [1.0]))
        verdict = judge.judge(speech_ms, silence_ms, reply_ends_soon=False, voice=voice)
        assert verdict != "stop"
        if verdict == "resume":
            ear.listening, probabilities = Listening(ear.onset), []
