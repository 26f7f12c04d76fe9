from __future__ import annotations

import numpy as np
import pytest

from clients.talk.level_meter import CELLS, LevelMeter


def block(dbfs: float) -> np.ndarray:
    return np.full(480, round(32768 * 10 ** (dbfs / 20)), np.int16)


@pytest.mark.parametrize(("dbfs", "n_lit"), [(-90, 0), (-60, 0), (-33, CELLS // 2), (-3, CELLS)])
def test_the_meter_goes_from_a_quiet_room_to_a_loud_voice(dbfs: float, n_lit: int) -> None:
    meter = LevelMeter()
    meter.feed(block(dbfs))
    assert meter.n_lit == n_lit


def test_a_syllable_stays_to_be_seen_and_falls_away() -> None:
    meter = LevelMeter()
    meter.feed(block(-6))
    lit = []
    for _ in range(60):
        meter.feed(block(-90))
        lit.append(meter.n_lit)
    assert lit[0] >= CELLS - 2 and lit == sorted(lit, reverse=True) and lit[-1] == 0


def test_a_closed_line_says_how_it_is_opened() -> None:
    meter = LevelMeter()
    assert "space to talk" not in meter.__rich__().plain
    meter.is_open = False
    assert meter.__rich__().plain.endswith("space to talk")
