"""Human clips: from where a barge-in counts."""

from __future__ import annotations

import numpy as np
import pytest

from audio.frames import RECOGNIZER_HZ
from benchmarks.calls.human_turns import _onset_ms

MS = RECOGNIZER_HZ // 1000


def clip(*parts: tuple[int, float]) -> np.ndarray:
    """Square waves of (ms, dBFS) each."""
    return np.concatenate(
        [np.full(ms * MS, 32768.0 * 10.0 ** (dbfs / 20.0)).astype(np.int16) for ms, dbfs in parts]
    )


@pytest.mark.parametrize(
    ("parts", "word_ms", "onset_ms"),
    [
        (((400, -80.0), (400, -20.0)), 400.0, 400.0),
        (((400, -80.0), (400, -20.0)), 350.0, 400.0),  # aligned into the silence
        (((400, -80.0), (400, -20.0)), 450.0, 400.0),  # aligned late
        (((400, -50.0), (400, -20.0)), 400.0, 400.0),  # a floor within 35 dB of the peak
        (((360, -50.0), (40, -48.0), (400, -20.0)), 360.0, 360.0),  # a soft first sound over it
    ],
)
def test_a_barge_in_counts_from_the_first_sound_of_the_first_word(
    parts: tuple[tuple[int, float], ...], word_ms: float, onset_ms: float
) -> None:
    assert _onset_ms(clip(*parts), word_ms) == pytest.approx(onset_ms, abs=10.0)
