"""Owns how the end of the caller's turn is read after staged words.

A model that also learned from written turns expects a full stop before the end, and how words go on
says more than any one token. So where the model folder has a head of its own for this
(`engine.recipes.train_end_of_turn` makes it), that one is asked; else the logits are, for every
token that ends the turn or the sentence.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear

from .load.loader import FolderCheckpoint
from .text.text import NO_TOKEN, Text
from .types import CheckpointError, WrongShape

HEAD_FILE = "end_of_turn.safetensors"
SENTENCE_ENDS = frozenset({".", "?", "!", "...", "…", "。", "？", "！"})


@dataclass(frozen=True, slots=True, eq=False)
class TwoLayers:
    """Two layers, fp32: inner_weight [n, hidden], inner_bias [n], outer_weight [signs, n],
    outer_bias [signs].
    """

    inner_weight: Tensor
    inner_bias: Tensor
    outer_weight: Tensor
    outer_bias: Tensor

    @classmethod
    def read(
        cls, stored: FolderCheckpoint, path: Path, n_signs: int, hidden_size: int, device: str
    ) -> Self:
        """path: of the file that is `stored`, named in errors. Raises: CheckpointError."""
        inner = stored.tensor("inner.weight")
        if inner.dim() != 2 or len(inner) == 0 or inner.shape[1] != hidden_size:
            raise WrongShape(
                f"{path}: expected inner.weight of shape [1 or more, {hidden_size}], as wide as "
                f"the model's states, found {list(inner.shape)}"
            )
        n = len(inner)
        shapes = {"inner.bias": (n,), "outer.weight": (n_signs, n), "outer.bias": (n_signs,)}
        tensors = [inner, *(stored.tensor(name, shape) for name, shape in shapes.items())]
        if not all(tensor.isfinite().all() for tensor in tensors):
            raise CheckpointError(f"{path}: expected finite numbers, found others")
        return cls(*(tensor.to(device, torch.float32) for tensor in tensors))

    def __call__(self, states: Tensor) -> Tensor:
        """Probabilities, fp32 [rows, signs], of the states [rows, hidden] after the final norm."""
        inner = gelu(linear(states.float(), self.inner_weight, self.inner_bias))
        return linear(inner, self.outer_weight, self.outer_bias).sigmoid()


def read_head(model_dir: Path | None, hidden_size: int, device: str) -> TwoLayers | None:
    """The head in a model's or an adapter's folder, None where there is none; its one sign is
    P(end of turn).

    Raises: CheckpointError.
    """
    if model_dir is None or not (model_dir / HEAD_FILE).is_file():
        return None
    stored = FolderCheckpoint(model_dir, HEAD_FILE)
    return TwoLayers.read(stored, model_dir / HEAD_FILE, 1, hidden_size, device)


def end_ids(text: Text) -> tuple[int, ...]:
    """Tokens that end the caller's turn, or a sentence: a mark alone, whatever space is with it."""
    pieces = text.tokenizer.decode_batch([[token] for token in range(text.vocab_size)])
    ids = {token for token, piece in enumerate(pieces) if piece.strip() in SENTENCE_ENDS}
    return tuple(sorted((ids | {text.end_of_turn_id}) - {NO_TOKEN}))


def probability(logits: Tensor, ids: tuple[int, ...]) -> Tensor:
    """P(end of turn) [rows] after rows of these logits [rows, vocab], where no head reads it."""
    return logits.softmax(-1)[:, list(ids)].sum(-1)
