"""Windows for the end-of-turn head: what lies behind the last sound tells nothing of the label."""

import random
from dataclasses import replace

import numpy as np
import pytest

from audio.recipes.offset_windows import (
    MS,
    levelled,
    offsets_of,
    silence_of,
    varied,
)
from audio.recipes.paused_speech import PausedTurn
from audio.recipes.train_end_of_voice import auc


def turn(name="a", gap_ms=400.0, room=40.0):
    """600 ms of sound, a pause, 800 ms of sound, and room behind it."""
    rng = np.random.default_rng(3)
    pieces_ms = (200.0, 600.0, gap_ms, 800.0, 500.0)
    levels = (room, 4000.0, room, 4000.0, room)
    sound = np.concatenate([
        rng.normal(0, level, int(ms * MS)) for ms, level in zip(pieces_ms, levels, strict=True)
    ])  # fmt: skip
    pause = (800.0, 800.0 + gap_ms)
    return PausedTurn(
        name, "order", "s", sound.astype(np.int16), 200.0, 1600.0 + gap_ms, (pause,), None
    )


def test_a_turn_gives_its_pauses_and_its_end():
    found = offsets_of(turn())
    assert [(o.at_ms, o.is_over) for o in found] == [(800.0, False), (2000.0, True)]
    assert found[0].lasts_ms == 400.0
    assert len(offsets_of(turn(gap_ms=90.0))) == 1  # the closure of a consonant


def test_nothing_of_what_follows_a_pause_is_heard_before_it():
    said = levelled(turn())
    hold = offsets_of(said)[0]
    at = int((hold.at_ms + hold.lasts_ms) * MS)
    changed = said.samples.copy()
    changed[at : int(said.end_ms * MS)] = 12_000
    other = replace(hold, turn=replace(said, samples=changed))
    for seed in range(8):
        assert np.array_equal(
            varied(hold, [], random.Random(seed)).samples,
            varied(other, [], random.Random(seed)).samples,
        )


def _levels(samples):
    """Ten numbers of a silence: its level and how it is spread over the band, and how it falls."""
    sound = samples.astype(np.float64)
    bands = np.array_split(np.abs(np.fft.rfft(sound * np.hanning(len(sound)))) ** 2, 8)
    power = np.log([band.mean() + 1.0 for band in bands])
    halves = [np.log(half.var() + 1.0) for half in np.array_split(sound, 2)]
    return np.concatenate([power, halves])


def _probe_auc(features, is_over, groups):
    """Of logistic regression, each group judged by one that was fitted on the others."""
    rows = np.column_stack([np.ones(len(features)), features])
    rows[:, 1:] = (rows[:, 1:] - rows[:, 1:].mean(axis=0)) / (rows[:, 1:].std(axis=0) + 1e-9)
    scores = np.zeros(len(rows))
    for group in range(5):
        train = groups != group
        weights = np.zeros(rows.shape[1])
        over, share = is_over[train], is_over[train].mean()
        balance = np.where(over, 0.5 / share, 0.5 / (1 - share))
        for _ in range(15):
            p = 1 / (1 + np.exp(-rows[train] @ weights))
            slope = rows[train].T @ (balance * (over - p)) - weights
            curve = (rows[train].T * (balance * p * (1 - p))) @ rows[train] + np.eye(len(weights))
            weights += np.linalg.solve(curve, slope)
        scores[~train] = rows[~train] @ weights
    return auc(scores, is_over)


@pytest.mark.parametrize("kind", ["number", "order"])
def test_a_probe_that_hears_only_the_silence_learns_nothing(kind, real_turns):
    turns = [one for one in real_turns if one.kind == kind and one.pauses]
    features, is_over, groups = [], [], []
    for number, one in enumerate(turns):
        for offset in offsets_of(levelled(one)):
            chance = random.Random(f"probe {one.name} {offset.at_ms}")
            window = varied(offset, [], chance)
            silence = silence_of(window)
            features.append(_levels(silence[: 20 * MS] if len(silence) > 20 * MS else silence))
            is_over.append(offset.is_over)
            groups.append(number % 5)
    found = _probe_auc(np.array(features), np.array(is_over), np.array(groups))
    assert 0.4 < found < 0.6
