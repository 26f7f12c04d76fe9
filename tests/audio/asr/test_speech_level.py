"""How loud a stream was lately: what is kept of it, and what counts as silence and as a fall."""

from __future__ import annotations

import numpy as np
import pytest

from audio.asr.speech_level import FRAME, N_FRAMES, SpeechLevel, _percentile
from tests.tables import each_row

CHANCE = np.random.default_rng(3)


def frames(level: float, n: int) -> np.ndarray:
    return CHANCE.normal(0.0, level, n * FRAME).astype(np.int16)


@each_row("share", [10, 90])
@each_row("n", [1, 2, 10, 199, 200])
def test_its_percentile_is_numpys(n: int, share: float) -> None:
    values = CHANCE.normal(-40.0, 15.0, n)
    assert _percentile(values, share) == pytest.approx(np.percentile(values, share))


def test_a_stream_of_minutes_is_judged_by_its_last_half_minute() -> None:
    level = SpeechLevel()
    for _ in range(5):
        level.feed(frames(8000.0, N_FRAMES))
    level.feed(frames(3.0, 40))
    begun = 5 * N_FRAMES * FRAME
    assert level.is_quiet_since(begun) and not level.is_quiet_since(begun - FRAME)
    assert level.has_fallen_since(begun - 10 * FRAME) and not level.has_fallen_since(begun)
    level.feed(frames(3.0, N_FRAMES))  # now nothing loud is left to compare with
    assert level.is_silent_since(0)


def test_more_than_it_keeps_may_come_at_once() -> None:
    level = SpeechLevel()
    level.feed(frames(8000.0, 3 * N_FRAMES))
    level.feed(frames(3.0, 5))
    assert level.has_fallen_since(3 * N_FRAMES * FRAME - 20 * FRAME)
    assert not level.is_quiet_since(0)
