"""Owns how the end of the caller's turn is read after staged words.

A model that also learned from written turns expects a full stop before the end, and how words go on
says more than any one token. So where the model folder has a head of its own for this
(`engine.recipes.train_end_of_turn` makes it), that one is asked; else the logits are, for every
token that ends the turn or the sentence.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import gelu, linear

from .text import NO_TOKEN, Text
from .types import CheckpointError, MissingTensor, WrongShape

HEAD_FILE = "end_of_turn.safetensors"
SENTENCE_ENDS = frozenset({".", "?", "!", "...", "…", "。", "？", "！"})


@dataclass(frozen=True, slots=True, eq=False)
class EndHead:
    """Two layers, fp32: inner.weight [n_inner, hidden], outer.weight [1, n_inner], biases."""

    tensors: dict[str, Tensor]

    def __call__(self, states: Tensor) -> Tensor:
        """P(end of turn), fp32 [rows], of the states [rows, hidden] after the final norm."""
        get = self.tensors.__getitem__
        inner = gelu(linear(states.float(), get("inner.weight"), get("inner.bias")))
        return linear(inner, get("outer.weight"), get("outer.bias"))[:, 0].sigmoid()


def read_head(model_dir: Path, hidden_size: int, device: str) -> EndHead | None:
    """The head in a model folder, None where there is none. Raises: CheckpointError."""
    path = model_dir / HEAD_FILE
    if not path.is_file():
        return None
    try:
        found = load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: expected safetensors, found {error}") from None
    n_inner = max([1, *found["inner.weight"].shape[:1]]) if "inner.weight" in found else 1
    shapes = {
        "inner.weight": (n_inner, hidden_size),
        "inner.bias": (n_inner,),
        "outer.weight": (1, n_inner),
        "outer.bias": (1,),
    }
    for name, shape in shapes.items():
        if name not in found:
            raise MissingTensor(f"{path}: expected a tensor {name}, found none")
        if tuple(found[name].shape) != shape:
            raise WrongShape(
                f"{path}: expected {name} of shape {list(shape)}, found {list(found[name].shape)}"
            )
    return EndHead({name: found[name].to(device, torch.float32) for name in shapes})


def end_ids(text: Text) -> tuple[int, ...]:
    """Tokens that end the caller's turn, or a sentence: a mark alone, whatever space is with it."""
    pieces = text.tokenizer.decode_batch([[token] for token in range(text.vocab_size)])
    ids = {token for token, piece in enumerate(pieces) if piece.strip() in SENTENCE_ENDS}
    return tuple(sorted((ids | {text.end_of_turn_id}) - {NO_TOKEN}))


def probability(
    states: Tensor, logits: Tensor, ids: tuple[int, ...], head: EndHead | None
) -> Tensor:
    """P(end of turn) [rows] after rows of these states [rows, hidden] and logits [rows, vocab]."""
    return logits.softmax(-1)[:, list(ids)].sum(-1) if head is None else head(states)
