"""The head that tells a caller from a listener, a noise, an echo and a bystander."""

import numpy as np
import pytest

from audio.errors import AudioError
from audio.for_agent import FOR_AGENT_WEIGHTS, ForAgent

pytest.importorskip("safetensors.numpy")


def test_the_file_that_ships_is_small_and_fits_the_embedded_recognizer():
    shipped = ForAgent()
    assert FOR_AGENT_WEIGHTS.stat().st_size < 1_000_000
    assert (shipped.n_folds, shipped.width) == (5, 288)  # Moonshine tiny's encoder
    assert np.isfinite(shipped.log_odds(np.zeros((20, 288), np.float32)))


def test_a_file_that_is_not_there_is_named_by_its_purpose(tmp_path):
    with pytest.raises(AudioError, match="expected the head that judges sounds over the agent at"):
        ForAgent(tmp_path / "none.safetensors")
