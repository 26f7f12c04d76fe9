"""Sounds over the agent as training hears them: neither level nor room's noise tells the kind."""

import random
from itertools import groupby

import numpy as np
import pytest

from audio.frames import RECOGNIZER_HZ
from audio.recipes.overlapping_sounds import (
    LEAD_MS,
    Spoken,
    as_bystander,
    as_caller,
    as_echo,
    overlaps,
)
from audio.recipes.paused_speech import MS
from audio.recipes.train_end_of_voice import Heard, auc
from audio.recipes.train_for_agent import balanced

NOISE = np.random.default_rng(9).normal(0, 800, 3 * RECOGNIZER_HZ).astype(np.int16)


def spoken(n=60):
    """Bursts that rise and fall as syllables do, by people and by made voices."""
    rng = np.random.default_rng(3)
    times = np.arange(RECOGNIZER_HZ) / RECOGNIZER_HZ
    for index in range(n):
        wave = 4000 * rng.standard_normal(len(times)) * np.abs(np.sin(12 * times))
        is_person = index % 2 == 0
        yield Spoken(f"{index}", f"s{index % 7}", is_person, not is_person and index % 4 == 1, wave)


@pytest.fixture(scope="module")
def every():
    return list(overlaps(list(spoken(240)), [("n", NOISE), ("m", NOISE[::-1])]))


def level(samples):
    return float(np.sqrt(np.mean(np.square(samples.astype(float)))))


def test_neither_level_nor_the_room_before_a_sound_tells_whether_it_is_a_callers(every):
    sounds = [s for s in every if s.kind in ("interruption", "bystander", "echo")]
    is_caller = np.array([sound.kind == "interruption" for sound in sounds])
    n_lead = int(LEAD_MS * MS)
    before = np.array([level(sound.samples[:n_lead]) for sound in sounds])
    loud = np.array([np.percentile(np.abs(sound.samples[n_lead:]), 90.0) for sound in sounds])
    assert abs(auc(before, is_caller) - 0.5) < 0.06
    assert abs(auc(loud, is_caller) - 0.5) < 0.12


def test_a_bystander_rings_on_after_the_sound_more_than_a_caller():
    wave = next(spoken()).wave
    ringing = {
        through: np.mean([
            level(through(wave, random.Random(seed))[len(wave) :]) or 0.0 for seed in range(12)
        ])
        for through in (as_bystander, as_echo)
    }  # fmt: skip
    near = [as_caller(wave, random.Random(seed)) for seed in range(12)]
    ringing[as_caller] = np.mean([level(w[len(wave) :]) if len(w) > len(wave) else 0 for w in near])
    assert ringing[as_bystander] > 2 * ringing[as_caller]


def test_callers_have_half_the_weight_and_people_weigh_alike_in_both_halves(every):
    kinds = [f"{s.kind}, {'people' if s.is_person else 'made'}" for s in every]
    empty = np.zeros(len(kinds))
    heard = Heard(empty, empty, empty, [], kinds)
    weights = balanced(heard, np.ones(len(kinds), bool))
    pairs = sorted(zip(kinds, weights, strict=True))
    sums = {kind: sum(w for _, w in of_it) for kind, of_it in groupby(pairs, lambda one: one[0])}
    callers = sums["interruption, people"] + sums["interruption, made"]
    assert abs(callers / sum(sums.values()) - 0.5) < 1e-3
    people = sum(value for kind, value in sums.items() if kind.endswith("people"))
    assert abs(people / sum(sums.values()) - 0.5) < 1e-3
    assert abs(sums["interruption, people"] / callers - 0.5) < 1e-3
