"""Owns a small model's files as numpy reads them: its shape, its weights, the head of its ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from ..load.json_file import read_json
from ..types import CheckpointError

Floats = np.ndarray[Any, np.dtype[np.float32]]

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
HEAD_FILE = "end_of_turn.safetensors"
DTYPES: Mapping[str, str] = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}
erf = np.frompyfunc(math.erf, 1, 1)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a decoder of the Llama family with one rotation, as the embedded model is."""

    hidden: int
    inner: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab: int
    n_positions: int
    eps: float
    rope_theta: float
    eos_id: int

    @classmethod
    def read(cls, folder: Path) -> Shape:
        """Raises: CheckpointError."""
        values = read_json(folder / CONFIG_FILE)
        if values.get("model_type") != "llama" or values.get("rope_scaling") is not None:
            raise CheckpointError(
                f"{folder / CONFIG_FILE}: expected a plain llama, found another model"
            )
        try:
            return cls(
                hidden=int(values["hidden_size"]), inner=int(values["intermediate_size"]),
                n_layers=int(values["num_hidden_layers"]),
                n_heads=int(values["num_attention_heads"]),
                n_kv_heads=int(values["num_key_value_heads"]), head_dim=int(values["head_dim"]),
                vocab=int(values["vocab_size"]),
                n_positions=int(values["max_position_embeddings"]),
                eps=float(values["rms_norm_eps"]), rope_theta=float(values["rope_theta"]),
                eos_id=int(values["eos_token_id"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{folder / CONFIG_FILE}: expected the sizes of a llama, found {error}"
            ) from None

    def turns(self) -> tuple[Floats, Floats]:
        """cos and sin of every position's rotation, [n_positions, head_dim / 2]."""
        powers = np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim
        angles = np.outer(np.arange(self.n_positions), 1.0 / self.rope_theta**powers)
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


class Arrays:
    """A model's tensors by name, fp32."""

    def __init__(self, folder: Path, file: str | None = None) -> None:
        """file: the one that has them all; None: those of the index. Raises: CheckpointError."""
        if file is None:
            found = read_json(folder / INDEX_FILE).get("weight_map", {})
            names = {str(part) for part in found.values()}
        else:
            names = {file}
        self._folder, self._entries = folder, dict[str, dict[str, Any]]()
        for path in (folder / name for name in names):
            try:  # raw: numpy knows no bf16
                self._entries |= dict(deserialize(path.read_bytes()))
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path}: expected safetensors, found {error}") from None

    def __call__(self, name: str, *shape: int) -> Floats:
        """Raises: CheckpointError, where it is not there in this shape."""
        entry = self._entries.get(name, {})
        kind, found = str(entry.get("dtype")), entry.get("shape")
        if found != list(shape) or kind not in DTYPES:
            raise CheckpointError(
                f"{self._folder}: expected {name} of shape {list(shape)}, found {kind} {found}"
            )
        read = np.frombuffer(entry["data"], DTYPES[kind])
        if kind == "BF16":
            read = (read.astype(np.uint32) << 16).view(np.float32)
        return read.astype(np.float32).reshape(shape)


class EndHead:
    """Two layers over the state behind the words, as `engine.end_of_turn.TwoLayers`."""

    def __init__(self, folder: Path, hidden: int, inner: int = 512) -> None:
        """Raises: CheckpointError."""
        stored = Arrays(folder, HEAD_FILE)
        self._inner = stored("inner.weight", inner, hidden), stored("inner.bias", inner)
        self._outer = stored("outer.weight", 1, inner), stored("outer.bias", 1)

    def __call__(self, states: Floats) -> list[float]:
        """P(end of turn) of each of the states [rows, hidden]."""
        weight, bias = self._inner
        inner = states @ weight.T + bias
        inner *= 0.5 * (1.0 + erf(inner / math.sqrt(2.0)).astype(np.float32))
        weight, bias = self._outer
        outer = (inner @ weight.T + bias)[:, 0]
        return [float(1.0 / (1.0 + math.exp(-min(max(x, -60.0), 60.0)))) for x in outer]
