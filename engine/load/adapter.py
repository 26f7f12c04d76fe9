"""Owns low-rank adapters (LoRA) in PEFT's format: read, checked, and merged into the weights.

Several on one base stay apart from its weights: see `engine.adapters`. Merged weights cost a step
nothing, and are quantized like any others; those of a file of four bits become int8, and what is
not adapted there stays as it lies. What PEFT knows beyond plain LoRA is refused by name.
Source: Hu et al., LoRA, arXiv:2106.09685; PEFT's LoraConfig.
"""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..types import CheckpointError, WrongShape
from .json_file import read_json
from .loader import Checkpoint, FolderCheckpoint
from .packed import FinerWeight, HoldsInt4, Int4Weight

log = logging.getLogger(__name__)

# In the configuration beside PEFT's own settings: `fingerprint` of the model that was adapted.
BASE_KEY = "base_fingerprint"
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
FINAL_NORM = "model.norm.weight"
MAX_NAME = 100  # of what a configuration calls its base, in an error
MAX_RANK = 1024  # beyond it an adapter is larger than what it adapts
# Settings under which the merged weight would be another than W + scale B A.
UNKNOWN = (
    "use_dora", "fan_in_fan_out", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern",
    "layer_replication",
)  # fmt: skip
_NAME = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<part>[AB])\.weight")


class LowRank:
    """The change of a folder of PEFT's: to each of its weights B A, times one scale."""

    def __init__(self, base: Checkpoint, folder: Path) -> None:
        """base: the model that it is for. Raises: CheckpointError."""
        settings = read_json(folder / CONFIG_FILE)
        self.rank, self.scale = scale_of(folder / CONFIG_FILE, settings)
        _check_base(folder / CONFIG_FILE, settings, base)
        self._stored = FolderCheckpoint(folder, WEIGHTS_FILE)
        self.source = folder
        self.names: dict[str, dict[str, str]] = {}  # weight -> part -> stored name
        for name in self._stored:
            match = _NAME.fullmatch(name)
            if match is None:
                raise CheckpointError(f"{folder}: expected lora_A and lora_B alone, found {name}")
            self.names.setdefault(f"{match['layer']}.weight", {})[match["part"]] = name
        for parts in self.names.values():
            if len(parts) != 2:
                raise self.refused("lora_A and lora_B of each weight", parts)

    def refused(self, wanted: str, parts: dict[str, str]) -> CheckpointError:
        found = " and ".join(parts.values())
        return CheckpointError(f"{self.source}: expected {wanted}, found {found}")

    def parts(self, name: str, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """A [rank, in] and B [out, rank] of a weight [out, in], in fp32.

        Raises: WrongShape, CheckpointError.
        """
        if len(shape) != 2:
            raise WrongShape(f"{self._stored.source}: expected {name} to be a matrix, found none")
        n_out, n_in = shape
        down = self._stored.tensor(self.names[name]["A"], (self.rank, n_in)).float()
        up = self._stored.tensor(self.names[name]["B"], (n_out, self.rank)).float()
        if not (down.isfinite().all() and up.isfinite().all()):
            raise CheckpointError(f"{self._stored.source}: expected finite numbers for {name}")
        return down, up


class AdaptedCheckpoint:
    """A checkpoint with an adapter merged: W + scale B A, in fp32, where it has B and A."""

    def __init__(self, base: Checkpoint, folder: Path) -> None:
        """Raises: CheckpointError."""
        self.source, self._base = base.source, base
        self._change = LowRank(base, folder)
        for weight, parts in self._change.names.items():
            if weight not in base:
                raise self._change.refused(f"changes of dense weights of {base.source}", parts)

    def __contains__(self, name: str) -> bool:
        return name in self._base

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """One tensor, merged. Raises: MissingTensor, WrongShape."""
        tensor = self._base.tensor(name, shape)
        if name not in self._change.names:
            return tensor
        down, up = self._change.parts(name, tuple(tensor.shape))
        return torch.addmm(tensor.float(), up, down, alpha=self._change.scale)

    def is_quantized(self, name: str) -> bool:
        """Raises: MissingTensor."""
        return isinstance(self._base, HoldsInt4) and self._base.is_quantized(name)

    def int4(self, name: str, shape: tuple[int, int]) -> Int4Weight | FinerWeight | None:
        """Read the base's codes, or merged numbers where the adapter changes a quantized matrix.

        Raises: MissingTensor, WrongShape.
        """
        if not isinstance(self._base, HoldsInt4) or not self._base.is_quantized(name):
            return None
        if name in self._change.names:
            return FinerWeight(self.tensor(name, shape))
        return self._base.int4(name, shape)


def fingerprint(norm: Tensor) -> str:
    """Tells trained models of one shape apart, whatever format their weights lie in.

    norm: the final norm's scale, which no format quantizes; in bf16, as models are published.
    """
    exact = norm.detach().to("cpu", torch.bfloat16).contiguous().view(torch.uint8)
    return hashlib.sha256(bytes(exact.tolist())).hexdigest()


def _check_base(path: Path, values: dict[str, Any], base: Checkpoint) -> None:
    """Raises: CheckpointError where the adapter says that it was trained on another model."""
    expected, found = values.get(BASE_KEY), ""
    if FINAL_NORM in base:
        found = fingerprint(base.tensor(FINAL_NORM))
    name = str(values.get("base_model_name_or_path"))[:MAX_NAME]
    if expected is None and found:  # PEFT tells a name alone, which a file need not bear
        log.warning(
            "%s names %s, and not the weights that it was trained on: expected them to be those "
            "of %s. With others of this shape it answers badly. To bind it to these, add "
            '"%s": "%s"', path, name, base.source, BASE_KEY, found,
        )  # fmt: skip
    elif expected not in (None, found):
        raise CheckpointError(
            f"{path}: expected {name}, which it was trained on, found another model in "
            f"{base.source} ({BASE_KEY} {str(expected)[:12]}, found {found[:12]})"
        )


def scale_of(path: Path, values: dict[str, Any], most: int = MAX_RANK) -> tuple[int, float]:
    """Rank, up to `most`, and scale. Raises: CheckpointError."""
    rank, alpha = values.get("r"), values.get("lora_alpha")
    if type(rank) is not int or not 0 < rank <= most:
        raise CheckpointError(f"{path}: expected r of 1 to {most}, found {rank!r}")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < 1e6:
        raise CheckpointError(f"{path}: expected a positive lora_alpha, found {alpha!r}")
    unknown = [key for key in UNKNOWN if values.get(key)]
    if values.get("peft_type") != "LORA" or values.get("bias", "none") != "none" or unknown:
        found = ", ".join(unknown) or f"{values.get('peft_type')}, bias {values.get('bias')}"
        raise CheckpointError(f"{path}: expected a plain LoRA without biases, found {found}")
    return rank, float(alpha / rank**0.5 if values.get("use_rslora") else alpha / rank)
