"""Owns how keys and values are stored: as computed, or quantized with a scale per token and head.

No scale spans two tokens (I4), so appending to a sequence and rolling it back never touch what was
stored before.
"""

import torch
from torch import Tensor

SMALLEST = 1e-12  # keeps the scale of a zero vector from dividing by zero
LARGEST = 127.0  # code of a vector's largest entry


class PlainKv:
    """Keys and values as they are computed."""

    is_scaled = False  # whether a scale goes with a vector

    def __init__(self, dtype: torch.dtype) -> None:
        self.code_dtype = dtype  # of what is stored

    def encode(self, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
        """[..., head_dim] -> codes [..., head_dim], scales [...]."""
        return vectors, None

    def decode(self, codes: Tensor, scales: Tensor | None) -> Tensor:
        """The inverse, in the compute dtype."""
        return codes


class Int8Kv:
    """Symmetric 8-bit integers, and a scale a vector: its largest entry is coded as `LARGEST`."""

    is_scaled = True
    code_dtype = torch.int8

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def encode(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        scales = vectors.abs().amax(-1).clamp_min(SMALLEST) / LARGEST
        codes = (vectors / scales[..., None]).round_().clamp_(-LARGEST, LARGEST)
        return codes.to(self.code_dtype), scales

    def decode(self, codes: Tensor, scales: Tensor | None) -> Tensor:
        assert scales is not None
        return codes.to(self.dtype) * scales[..., None]


KvFormat = PlainKv | Int8Kv
KV_FORMATS: dict[str, type[KvFormat]] = {"plain": PlainKv, "int8": Int8Kv}
