"""Owns how keys and values are stored: as computed, or quantized with a scale per token and head.

No scale spans two tokens (I4), so appending to a sequence and rolling it back never touch what was
stored before.
"""

from typing import Protocol

import torch
from torch import Tensor

SMALLEST = 1e-12  # keeps the scale of a zero vector from dividing by zero


class KvFormat(Protocol):
    """dtype and size of one stored vector; `is_scaled` where a scale goes with it."""

    code_dtype: torch.dtype
    code_size: int
    is_scaled: bool

    def encode(self, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
        """[..., head_dim] -> codes [..., code_size], scales [...]."""
        ...

    def decode(self, codes: Tensor, scales: Tensor | None) -> Tensor:
        """The inverse, in the compute dtype."""
        ...


class PlainKv:
    """As computed."""

    is_scaled = False

    def __init__(self, head_dim: int, dtype: torch.dtype) -> None:
        self.code_dtype, self.code_size = dtype, head_dim

    def encode(self, vectors: Tensor) -> tuple[Tensor, None]:
        return vectors, None

    def decode(self, codes: Tensor, scales: Tensor | None) -> Tensor:
        return codes


class Fp8Kv:
    """8-bit floats (e4m3), the largest entry of a vector at the format's largest number."""

    code_dtype, is_scaled = torch.float8_e4m3fn, True
    LARGEST = 448.0

    def __init__(self, head_dim: int, dtype: torch.dtype) -> None:
        self.code_size, self.dtype = head_dim, dtype

    def encode(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        scales = vectors.abs().amax(-1).clamp_min(SMALLEST) / self.LARGEST
        return (vectors / scales[..., None]).float().to(self.code_dtype), scales

    def decode(self, codes: Tensor, scales: Tensor | None) -> Tensor:
        assert scales is not None
        return codes.to(self.dtype) * scales[..., None]


class Int8Kv(Fp8Kv):
    """Symmetric 8-bit integers; decoded like the floats."""

    code_dtype = torch.int8

    def encode(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        scales = vectors.abs().amax(-1).clamp_min(SMALLEST) / 127
        codes = (vectors / scales[..., None]).round_().clamp_(-127, 127)
        return codes.to(torch.int8), scales


class Int4Kv:
    """Symmetric 4-bit integers, two a byte: entry i low, entry i + head_dim / 2 high."""

    code_dtype, is_scaled = torch.uint8, True

    def __init__(self, head_dim: int, dtype: torch.dtype) -> None:
        self.code_size, self.dtype = head_dim // 2, dtype

    def encode(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        scales = vectors.abs().amax(-1).clamp_min(SMALLEST) / 7
        codes = (vectors / scales[..., None]).round_().clamp_(-7, 7).add_(8).to(torch.uint8)
        low, high = codes.chunk(2, -1)
        return low | (high << 4), scales

    def decode(self, codes: Tensor, scales: Tensor | None) -> Tensor:
        assert scales is not None
        both = torch.cat((codes & 15, codes >> 4), -1)
        return (both.to(self.dtype) - 8) * scales[..., None]


KV_FORMATS: dict[str, type[PlainKv | Fp8Kv | Int8Kv | Int4Kv]] = {
    "plain": PlainKv,
    "fp8": Fp8Kv,
    "int8": Int8Kv,
    "int4": Int4Kv,
}
