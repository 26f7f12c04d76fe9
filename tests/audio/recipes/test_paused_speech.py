"""Real turns with their pauses: read from the shared data, and put into their own room."""

import numpy as np
import pytest

from audio.frames import rms_dbfs
from audio.recipes.paused_speech import (
    MS,
    PausedTurn,
    sounding,
    with_room,
)


def noise(ms, level, seed=0):
    return np.random.default_rng(seed).normal(0, level, int(ms * MS)).astype(np.int16)


def said(*pieces, pauses, start_ms, end_ms):
    samples = np.concatenate(pieces)
    return PausedTurn("clip", "order", "s", samples, start_ms, end_ms, pauses, None)


def test_the_room_goes_on_at_the_level_of_the_quiet_parts():
    clip = said(noise(500, 30), noise(600, 3000), noise(300, 30, 1), noise(600, 3000),
                pauses=((1100.0, 1400.0),), start_ms=500.0, end_ms=2000.0)  # fmt: skip
    whole = with_room(clip, 500.0, 1000.0)
    assert len(whole.samples) == int((500 + 1500 + 1000) * MS)
    assert (whole.start_ms, whole.end_ms, whole.pauses) == (500.0, 2000.0, ((1100.0, 1400.0),))
    behind = whole.samples[int(2100 * MS) :]
    assert rms_dbfs(behind) == pytest.approx(rms_dbfs(noise(500, 30)), abs=2.0)
    assert np.array_equal(whole.samples[800 * MS : 1900 * MS], clip.samples[800 * MS : 1900 * MS])


def test_every_turn_of_the_shared_data_holds_its_pauses_in_order(real_turns):
    assert {one.kind for one in real_turns} == {
        "number",
        "address",
        "name",
        "order",
        "call",
        "read",
    }
    assert len({one.name for one in real_turns}) == len(real_turns)
    for one in real_turns:
        edges = [one.start_ms, *(edge for pause in one.pauses for edge in pause), one.end_ms]
        assert edges == sorted(edges), one.name
        assert one.end_ms <= len(one.samples) / MS + 20, one.name
        assert all(end - start >= 100 for start, end in one.pauses), one.name


def test_the_rule_for_pauses_agrees_with_the_times_that_the_data_lists(real_turns):
    listed = [one for one in real_turns if one.kind in ("number", "address", "name")]
    late_ms = [abs(sounding(one.samples)[-1][1] - one.end_ms) for one in listed]
    assert np.median(late_ms) <= 20.0
