"""Owns the reading of an EAGLE-3 head's folder, as its authors publish them, and what must fit.

Known are the layout of the EAGLE repository and SpecForge (`midlayer.*`), and that of vLLM's
speculators (`layers.0.*`, the layer's sizes in `transformer_layer_config`). Both have `fc`, `norm`,
`lm_head` over a part of the vocabulary, and "d2t" beside it.
"""

import reprlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..drafting.eagle import N_STATES, EagleHead
from ..layer import Rope
from ..linear import MakeLinear
from ..model import Decoder
from ..types import CheckpointError, UnsupportedArchitecture
from .json_file import read_json
from .loader import Checkpoint, FolderCheckpoint, config_from

ARCHITECTURES = (
    "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel",
    "LlamaForCausalLM",
)  # fmt: skip
# The target's own tensors, and the inverse of "d2t".
UNREAD = {"t2d", "verifier_lm_head.weight", "verifier_norm.weight"}
VARIANTS = ("norm_before_fc", "fc_norm", "norm_output")  # norms that no tensor's name may tell of


def read_eagle(folder: Path, target: Decoder, quant: str | None, make: MakeLinear) -> EagleHead:
    """The head in a folder, for `target`; a tensor that nobody reads is a variant unknown here.

    Raises: CheckpointError, UnsupportedArchitecture.
    """
    files = FolderCheckpoint(folder)
    checkpoint = _Noted(files)
    head = make_eagle(
        checkpoint, read_json(folder / "config.json"), target, quant=quant, make_linear=make
    )
    unread = sorted(set(files) - checkpoint.names - UNREAD)
    if unread:
        raise UnsupportedArchitecture(
            f"{folder}: expected an EAGLE-3 head of one plain layer, found {', '.join(unread[:3])}"
        )
    return head


def make_eagle(
    checkpoint: Checkpoint, values: dict[str, Any], target: Decoder, *, quant: str | None,
    make_linear: MakeLinear,
) -> EagleHead:  # fmt: skip
    """values: of config.json. quant: as the target's; a head is kept in eight bits for any.

    Raises: CheckpointError, UnsupportedArchitecture.
    """
    path = checkpoint.source / "config.json"
    names = values.get("architectures") or ["none"]
    name = names[0] if isinstance(names, list) else names
    variant = next((key for key in VARIANTS if values.get(key)), None)
    if name not in ARCHITECTURES or variant is not None:
        raise UnsupportedArchitecture(
            f"{path}: expected an EAGLE-3 head, one of {', '.join(ARCHITECTURES)}, found {name}"
            + (f" with {variant}" if variant is not None else "")
        )
    nested = _object_at("transformer_layer_config", values, path)
    sizes = {**(nested or values), "architectures": ["LlamaForCausalLM"]}
    config = config_from(sizes, path, ())
    prefix = "midlayer." if "midlayer.hidden_norm.weight" in checkpoint else "layers.0."
    config = replace(config, qk_norm=f"{prefix}self_attn.q_norm.weight" in checkpoint)
    wanted = target.config
    for what, expected, found in (
        ("layers", 1, config.n_layers),
        ("hidden_size", wanted.hidden_size, values.get("target_hidden_size", config.hidden_size)),
        ("hidden_size", wanted.hidden_size, config.hidden_size),
        ("vocabulary", wanted.vocab_size, config.vocab_size),
        ("attention heads", wanted.n_heads, config.n_heads),
        ("key-value heads", wanted.n_kv_heads, config.n_kv_heads),
        ("head_dim", wanted.head_dim, config.head_dim),
        ("attention window", 0, max(config.windows)),
    ):
        if expected != found:
            raise CheckpointError(
                f"{path}: expected {what} {expected}, to fit the target, found {found}"
            )
    rope, n_positions = target.rope, target.rope.cos.shape[0]
    if config.rope != wanted.rope:
        rope = Rope(config.rope, config.head_dim, n_positions, target.dtype, target.device)
    return EagleHead(
        checkpoint, config, target.embedding, rope, index=wanted.n_layers, prefix=prefix,
        taps=_taps(values, wanted.n_layers, path),
        n_drafted=values.get("draft_vocab_size") or config.vocab_size,
        norm_before_residual=bool(values.get("norm_before_residual", bool(nested))),
        quant=quant, make_linear=make_linear,
    )  # fmt: skip


def _taps(values: dict[str, Any], n_layers: int, path: Path) -> tuple[int, ...]:
    """Return after how many of the target's layers states are taken.

    `eagle_config` names layers whose output they are, a speculator those whose input they are;
    without either it is the paper's choice: low, middle, high.
    """
    inner, key = _object_at("eagle_config", values, path), "eagle_aux_hidden_state_layer_ids"
    taps: Any = values.get(key) or [2, n_layers // 2, n_layers - 3]
    if inner.get(key):
        taps = inner[key]
        if isinstance(taps, list):
            taps = [i + 1 if isinstance(i, int) else i for i in taps]
    is_known = isinstance(taps, list) and all(
        isinstance(i, int) and 0 <= i <= n_layers for i in taps
    )
    if not is_known or len(taps) != N_STATES or len(set(taps)) != N_STATES:
        raise CheckpointError(
            f"{path}: expected {N_STATES} places between {n_layers} layers, found {taps}"
        )
    if inner.get("use_aux_hidden_state") is False:
        raise UnsupportedArchitecture(
            f"{path}: expected use_aux_hidden_state true in an EAGLE-3 head, found false"
        )
    return tuple(taps)


def _object_at(key: str, values: dict[str, Any], path: Path) -> dict[str, Any]:
    """Empty where there is none. Raises: CheckpointError."""
    found = values.get(key) or {}
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: expected an object at {key!r}, found {reprlib.repr(found)}")
    return found


class _Noted:
    """A checkpoint that remembers which tensors were asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint, self.source = checkpoint, checkpoint.source
        self.names = set[str]()

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        self.names.add(name)
        return self._checkpoint.tensor(name, shape)
