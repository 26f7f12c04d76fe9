"""Whether a voice that has fallen silent has finished: a small head on a speech encoder's rows.

Reads the last seconds of what a recognizer's encoder made of the sound anyway, and returns the
log-odds that the speaker has finished, from how it was said alone. The weights are several heads of
one form, each trained without a part of the speakers (`audio.recipes.train_end_of_voice`); a call
is told their mean, and a measurement on the recordings they were trained on asks the one that has
not heard the speaker.

Source: attention pooling over a frozen encoder, as in Smart Turn (Daily, 2025) and JAL-Turn (2026).
"""

import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from .errors import AudioError

WEIGHTS = Path(__file__).parent / "embedded" / "end_of_voice" / "end_of_voice.safetensors"
N_ROWS = 48  # the window's last 1.15 s: 24 ms each, the silence that its decoder adds included
# Even odds before the recipe's calibration and a bound after it: one witness among several.
LARGEST_LOG_ODDS = 6.0
NAMES = (
    "mean", "scale", "place", "project", "project_bias", "query", "mix", "mix_bias", "out",
    "out_bias",
)  # fmt: skip

Rows = NDArray[np.float32]


class EndOfVoice:
    """The heads of one file, for the encoder whose width they have.

    Raises: AudioError where the file is none of these heads.
    """

    purpose = "the end-of-turn head"

    def __init__(self, path: Path = WEIGHTS) -> None:
        try:
            found = load_file(path)
        except (OSError, SafetensorError) as error:
            raise AudioError(f"expected {self.purpose} at {path}, found: {error}") from error
        missing = [name for name in NAMES if name not in found]
        if missing:
            raise AudioError(f"expected {', '.join(missing)} in {path}, found none")
        self._weights = {name: found[name].astype(np.float32) for name in NAMES}
        for name, shape in _shapes(self._weights).items():
            if self._weights[name].shape != shape:
                found_shape = list(self._weights[name].shape)
                raise AudioError(f"expected {name} {list(shape)} in {path}, found {found_shape}")
            if not np.isfinite(self._weights[name]).all():
                raise AudioError(f"{path}: {name} holds numbers that are not finite")
        self.n_folds = len(self._weights["out"])
        self.width = len(self._weights["mean"])

    def log_odds(self, rows: Rows) -> float:
        """Return the log odds that the voice has finished, from an encoder's rows [n, width] up to
        now: the mean.
        """
        return float(np.mean(self.of_folds(rows)))

    def unheard_log_odds(self, rows: Rows, speaker: str) -> float:
        """The same by the head that was trained without this speaker of the training set."""
        return float(self.of_folds(rows)[fold_of(speaker, self.n_folds)])

    def of_folds(self, rows: Rows) -> NDArray[np.float32]:
        """The log-odds of each head [n_folds]."""
        w = self._weights
        rows = rows[-N_ROWS:]
        known = (rows - w["mean"]) * w["scale"]  # [n, width]
        place = w["place"][:, N_ROWS - len(rows) :]
        hidden = np.tanh(known @ w["project"] + w["project_bias"][:, None] + place)  # [f, n, h]
        looks = hidden @ w["query"]  # [f, n, k]
        looks = np.exp(looks - looks.max(axis=1, keepdims=True))
        looks /= looks.sum(axis=1, keepdims=True)
        pooled = np.einsum("fnk,fnh->fkh", looks, hidden).reshape(self.n_folds, -1)
        mixed = np.tanh(np.einsum("fi,fio->fo", pooled, w["mix"]) + w["mix_bias"])
        log_odds = np.einsum("fo,fo->f", mixed, w["out"]) + w["out_bias"]
        bounded: NDArray[np.float32] = np.clip(log_odds, -LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)
        return bounded


def _shapes(weights: Mapping[str, Rows]) -> dict[str, tuple[int, ...]]:
    """The shapes of heads of this size: by how long the first axes are that tell of it."""
    width = weights["mean"].size
    n_folds, n_hidden, n_mixed = (
        weights[name].shape[axis] if weights[name].ndim > axis else 0
        for name, axis in (("out", 0), ("project_bias", 1), ("out", 1))
    )
    n_looks = weights["query"].shape[-1] if weights["query"].ndim else 0
    return {
        "mean": (width,), "scale": (width,), "place": (n_folds, N_ROWS, n_hidden),
        "project": (n_folds, width, n_hidden), "project_bias": (n_folds, n_hidden),
        "query": (n_folds, n_hidden, n_looks), "mix": (n_folds, n_looks * n_hidden, n_mixed),
        "mix_bias": (n_folds, n_mixed), "out": (n_folds, n_mixed), "out_bias": (n_folds,),
    }  # fmt: skip


def fold_of(speaker: str, n_folds: int) -> int:
    """The head that was trained without this speaker."""
    return zlib.crc32(f"fold {speaker}".encode()) % n_folds
