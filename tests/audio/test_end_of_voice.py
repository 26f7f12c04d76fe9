"""The end-of-turn head: several heads of one form on an encoder's rows, and the file of them."""

import numpy as np
import pytest

from audio.end_of_voice import LARGEST_LOG_ODDS, N_ROWS, WEIGHTS, EndOfVoice, fold_of
from audio.errors import AudioError

save_file = pytest.importorskip("safetensors.numpy").save_file
WIDTH, HIDDEN, LOOKS, MIXED, FOLDS = 6, 4, 2, 3, 5


def tensors(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {
        "place": (N_ROWS, HIDDEN), "project": (WIDTH, HIDDEN), "project_bias": (HIDDEN,),
        "query": (HIDDEN, LOOKS), "mix": (LOOKS * HIDDEN, MIXED), "mix_bias": (MIXED,),
        "out": (MIXED,), "out_bias": (),
    }  # fmt: skip
    found = {name: rng.normal(0, 1, (FOLDS, *shape)) for name, shape in shapes.items()}
    found |= {"mean": rng.normal(0, 1, WIDTH), "scale": rng.uniform(0.5, 2, WIDTH)}
    return {name: np.asarray(tensor, np.float32) for name, tensor in found.items()}


@pytest.fixture
def head(tmp_path):
    path = tmp_path / "head.safetensors"
    save_file(tensors(), path)
    return EndOfVoice(path)


def rows(n, seed=1):
    return np.random.default_rng(seed).normal(0, 1, (n, WIDTH)).astype(np.float32)


def test_a_call_is_told_the_mean_and_a_measurement_the_head_that_has_not_heard_the_speaker(head):
    folds = head.of_folds(rows(40))
    assert len(set(folds.tolist())) == FOLDS
    assert head.log_odds(rows(40)) == pytest.approx(float(folds.mean()))
    for speaker in ("anna", "ben", "carla"):
        assert head.unheard_log_odds(rows(40), speaker) == folds[fold_of(speaker, FOLDS)]


def test_only_the_last_rows_count(head):
    long = rows(3 * N_ROWS)
    assert head.log_odds(long) == head.log_odds(long[-N_ROWS:])
    assert head.log_odds(long) != head.log_odds(long[: -N_ROWS // 2])


def test_what_it_says_is_bounded(tmp_path):
    loud = tensors()
    loud["out_bias"] += 1000.0
    save_file(loud, tmp_path / "loud.safetensors")
    assert EndOfVoice(tmp_path / "loud.safetensors").log_odds(rows(30)) == LARGEST_LOG_ODDS


def test_the_head_that_serves_is_the_head_that_was_trained(head):
    torch = pytest.importorskip("torch")
    from audio.recipes.train_end_of_voice import forward

    shared = tensors()
    for n in (N_ROWS, 21):
        window = np.zeros((1, N_ROWS, WIDTH), np.float32)
        window[0, N_ROWS - n :] = (rows(n) - shared["mean"]) * shared["scale"]
        for fold, served in enumerate(head.of_folds(rows(n))):
            one = {
                name: torch.from_numpy(np.asarray(tensor[fold]))
                for name, tensor in shared.items()
                if name not in ("mean", "scale")
            }
            found = forward(one, torch.from_numpy(window), torch.tensor([n]), dropout=0.0)
            wanted = np.clip(float(found[0]), -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)
            assert served == pytest.approx(wanted, abs=1e-4)


def test_a_file_of_something_else_is_refused_with_what_is_missing(tmp_path):
    save_file({"mean": np.zeros(3, np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(AudioError, match="expected scale, place"):
        EndOfVoice(tmp_path / "other.safetensors")
    with pytest.raises(AudioError, match="expected the end-of-turn head at"):
        EndOfVoice(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("scale", lambda scale: scale[1:], r"expected scale \[6\]"),
        ("project", lambda project: project[:, :-1], r"expected project \[5, 6, 4\]"),
        ("query", lambda query: query[0, 0, 0], r"expected query \[5, 4, 0\] in .*, found \[\]"),
        ("mix", lambda mix: mix[:, :-1], r"expected mix \[5, 8, 3\]"),
        ("out", lambda out: out[:-1], "expected place"),
        ("out_bias", lambda bias: bias * np.nan, "out_bias holds numbers that are not finite"),
    ],
)
def test_heads_that_do_not_fit_each_other_are_refused_when_they_are_read(
    tmp_path, name, change, told
):
    changed = tensors()
    changed[name] = np.array(change(changed[name]))
    save_file(changed, tmp_path / "changed.safetensors")
    with pytest.raises(AudioError, match=told):
        EndOfVoice(tmp_path / "changed.safetensors")


def test_the_file_that_ships_is_small_and_fits_the_embedded_recognizer():
    shipped = EndOfVoice()
    assert WEIGHTS.stat().st_size < 1_000_000
    assert (shipped.n_folds, shipped.width) == (5, 288)  # Moonshine tiny's encoder
    assert np.isfinite(shipped.log_odds(np.zeros((20, 288), np.float32)))
