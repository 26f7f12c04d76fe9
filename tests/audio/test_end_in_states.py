"""The heads on a decoder's states: what they read, what a call is told, what file is refused."""

import numpy as np
import pytest

from audio.asr.moonshine.onnx_network import OnnxNetwork
from audio.end_in_states import (
    LARGEST_ADDED,
    LAYER,
    N_TOKENS,
    STATES_WEIGHTS,
    VOICE_SHARE,
    EndInStates,
    joined,
)
from audio.end_of_voice import fold_of
from audio.errors import AudioError

save_file = pytest.importorskip("safetensors.numpy").save_file
RNG = np.random.default_rng(0)
HEADS = {"w": RNG.normal(0, 1, (5, 6)).astype(np.float32), "b": np.arange(5, dtype=np.float32)}


def heads(tmp_path, **changed):
    save_file(HEADS | changed, tmp_path / "heads.safetensors")
    return EndInStates(tmp_path / "heads.safetensors")


def test_a_call_is_told_the_mean_and_a_measurement_the_head_that_has_not_heard_the_speaker(
    tmp_path,
):
    states = RNG.normal(0, 0.3, 6).astype(np.float32)
    each = np.clip(HEADS["w"] @ states + HEADS["b"], -LARGEST_ADDED, LARGEST_ADDED)
    found = heads(tmp_path)
    assert found.log_odds(states) == pytest.approx(float(each.mean()))
    assert found.unheard_log_odds(states, "anna") == pytest.approx(each[fold_of("anna", 5)])
    assert found.log_odds(1000 * np.sign(HEADS["w"][0])) <= LARGEST_ADDED


def test_without_words_the_voice_counts_whole():
    assert (joined(2.0, None), joined(2.0, 1.0)) == (2.0, 2.0 * VOICE_SHARE + 1.0)


@pytest.mark.parametrize(
    "changed", [{"b": np.zeros(4, np.float32)}, {"w": HEADS["w"] * np.nan}, {"w": HEADS["b"]}]
)
def test_a_file_of_something_else_is_refused(tmp_path, changed):
    with pytest.raises(AudioError):
        heads(tmp_path, **changed)
    with pytest.raises(AudioError, match="expected heads on a decoder's states at"):
        EndInStates(tmp_path / "none.safetensors")


@pytest.mark.parametrize("n_tokens", [1, 2, 5])
def test_the_states_of_the_last_tokens_are_read_token_by_token(n_tokens):
    """Those behind them, of a guess that did not hold, are not."""
    key, value = RNG.normal(0, 1, (2, 1, 2, 7, 3)).astype(np.float32)
    states = {f"past_key_values.{LAYER}.decoder.{kind}": part
              for kind, part in (("key", key), ("value", value))}  # fmt: skip
    found = OnnxNetwork.last_states(None, states, n_tokens).reshape(N_TOKENS, 2, 6)
    for place, token in enumerate(range(n_tokens - N_TOKENS, n_tokens)):
        wanted = [part[0, :, token].ravel() if token >= 0 else np.zeros(6) for part in (key, value)]
        assert (found[place] == wanted).all()


def test_the_file_that_ships_fits_the_embedded_recognizer():
    shipped = EndInStates()
    assert STATES_WEIGHTS.stat().st_size < 100_000
    assert shipped.width == N_TOKENS * 2 * 288  # Moonshine tiny's decoder
    assert np.isfinite(shipped.log_odds(np.zeros(shipped.width, np.float32)))
