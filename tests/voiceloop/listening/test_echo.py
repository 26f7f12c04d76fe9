"""What the microphone hears of the agent is silence to everything else, and a caller never is."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from audio.frames import RECOGNIZER_HZ, Samples
from voiceloop.listening.echo import EchoGuard

MS = RECOGNIZER_HZ // 1000
SLICE = 20 * MS
Wave = NDArray[np.float64]


def voice(seed: int, seconds: float = 2.0) -> Wave:
    """Like speech to a correlation: noise with formants, in syllables of a random height."""
    rng = np.random.default_rng(seed)
    n = int(seconds * RECOGNIZER_HZ)
    times = np.arange(n) / RECOGNIZER_HZ
    formant = np.convolve(rng.standard_normal(n), np.hanning(24), "same")
    height = np.repeat(rng.uniform(0.2, 1.0, n // 2400 + 1), 2400)[:n]
    return np.asarray(1500.0 * formant * height * (1.2 + np.sin(2 * np.pi * 4 * times)) / 2.2)


def in_room(wave: Wave, seed: int) -> Wave:
    rng = np.random.default_rng(seed)
    tail = rng.standard_normal(200 * MS) * np.exp(-np.arange(200 * MS) / (30 * MS)) / 40
    tail[0] = 1.0
    return np.convolve(wave, tail)[: len(wave)]


def heard_of(
    guard: EchoGuard, agent: Wave, from_caller: Wave, delay_ms: float, echo_db: float
) -> NDArray[np.bool_]:
    """Which slices of a microphone reach the listener as they are; those that sound alone."""
    n = len(agent) + 500 * MS
    delayed = np.zeros(n)
    delayed[int(delay_ms * MS) :][: len(agent)] = in_room(agent, 7)[: n - int(delay_ms * MS)]
    mic = delayed * 10.0 ** (-echo_db / 20.0)
    mic[: len(from_caller)] += from_caller[:n]
    mic += np.random.default_rng(3).standard_normal(n) * 5.0
    samples = np.rint(mic).astype(np.int16)
    passed = []
    for start in range(0, n - SLICE, SLICE):
        if start < len(agent):
            guard.play(np.rint(agent[start : start + SLICE]).astype(np.int16), RECOGNIZER_HZ)
        piece: Samples = samples[start : start + SLICE]
        if np.sqrt(np.mean(np.square(piece.astype(float)))) > 15.0:
            passed.append(np.array_equal(guard.push(piece), piece))
        else:
            guard.push(piece)
    return np.array(passed)


def quieted(guard: EchoGuard) -> EchoGuard:
    """It knows the room."""
    rng = np.random.default_rng(9)
    for _ in range(50):
        guard.push(np.rint(rng.standard_normal(SLICE) * 5.0).astype(np.int16))
    return guard


@pytest.mark.parametrize("delay_ms", [4.0, 90.0, 250.0, 700.0])
@pytest.mark.parametrize("echo_db", [0.0, 20.0])
def test_an_echo_at_any_delay_and_loudness_becomes_the_room(
    delay_ms: float, echo_db: float
) -> None:
    guard = quieted(EchoGuard())
    first = heard_of(guard, voice(1), np.zeros(0), delay_ms, echo_db)
    second = heard_of(guard, voice(2), np.zeros(0), delay_ms + 10.0, echo_db)
    assert first.mean() < 0.25 and second.mean() < 0.12
    assert guard.delay_ms == pytest.approx(delay_ms + 10.0, abs=25.0)  # lead and resamplers


def test_a_caller_over_the_agent_is_heard_with_and_without_an_echo() -> None:
    for echo_db, least in ((90.0, 0.99), (20.0, 0.9)):
        guard = quieted(EchoGuard())
        heard_of(guard, voice(1), np.zeros(0), 90.0, echo_db)
        heard = heard_of(guard, voice(2), voice(5), 90.0, echo_db)
        assert heard[:95].mean() > least  # then the last of the echo, alone


def test_nothing_is_changed_where_the_agent_has_said_nothing() -> None:
    guard = quieted(EchoGuard())
    samples = np.rint(voice(4)).astype(np.int16)
    for start in range(0, len(samples), SLICE):
        piece = samples[start : start + SLICE]
        assert guard.push(piece) is piece


def test_what_is_sent_further_ahead_than_anybody_plays_is_bounded() -> None:
    guard = EchoGuard()
    for _ in range(40):
        guard.play(np.full(RECOGNIZER_HZ // 4, 500, np.int16), RECOGNIZER_HZ)
    assert guard.push(np.zeros(SLICE, np.int16)).shape == (SLICE,)


def test_nothing_is_known_beyond_what_was_sent_however_long_the_call() -> None:
    """What was played long ago would be taken for an echo of now."""
    guard, sound = EchoGuard(), np.full(SLICE, 500, np.int16)
    for number in range(500):  # 10 s: the memory has been moved to its beginning four times
        if number % 50 < 40:
            guard.play(sound, RECOGNIZER_HZ)
        guard.push(sound)
        assert not guard._played[guard._n_past + guard._n_ahead :].any()


def test_a_tone_of_both_is_no_reason_to_fail() -> None:
    """What many filters explain alike: a hum, a dial tone."""
    guard = quieted(EchoGuard())
    hum = 4000.0 * np.sin(2 * np.pi * 100 * np.arange(RECOGNIZER_HZ) / RECOGNIZER_HZ)
    heard_of(guard, hum, np.zeros(0), 50.0, 6.0)
    assert guard.delay_ms is None or 0.0 <= guard.delay_ms <= 800.0
