"""Owns how keys and values are stored: as computed, or quantized with a scale per token and head.

No scale spans two tokens (I4), so appending to a sequence and rolling it back never touch what was
stored before.
"""

import torch
from torch import Tensor

SMALLEST = 1e-12  # keeps the scale of a zero vector from dividing by zero


class PlainKv:
    """As computed. code_dtype, code_size: of one stored vector."""

    is_scaled = False  # whether a scale goes with it

    def __init__(self, head_dim: int, dtype: torch.dtype) -> None:
        self.code_dtype, self.code_size = dtype, head_dim

    def encode(self, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
        """[..., head_dim] -> codes [..., code_size], scales [...]."""
        return vectors, None

    def decode(self, codes: Tensor, scales: Tensor | None) -> Tensor:
        """The inverse, in the compute dtype."""
        return codes


class ScaledKv:
    """A code an entry and a scale a vector, its largest entry at the format's largest number."""

    is_scaled = True
    code_dtype: torch.dtype
    LARGEST: float

    def __init__(self, head_dim: int, dtype: torch.dtype) -> None:
        self.code_size, self.dtype = head_dim, dtype

    def encode(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        scales = vectors.abs().amax(-1).clamp_min(SMALLEST) / self.LARGEST
        return self._to_codes(vectors / scales[..., None]), scales

    def _to_codes(self, scaled: Tensor) -> Tensor:
        return scaled.round_().clamp_(-self.LARGEST, self.LARGEST).to(self.code_dtype)

    def decode(self, codes: Tensor, scales: Tensor | None) -> Tensor:
        assert scales is not None
        return codes.to(self.dtype) * scales[..., None]


class Fp8Kv(ScaledKv):
    """8-bit floats (e4m3)."""

    code_dtype, LARGEST = torch.float8_e4m3fn, 448.0

    def _to_codes(self, scaled: Tensor) -> Tensor:
        return scaled.float().to(self.code_dtype)


class Int8Kv(ScaledKv):
    """Symmetric 8-bit integers."""

    code_dtype, LARGEST = torch.int8, 127.0


class Int4Kv(ScaledKv):
    """Symmetric 4-bit integers, two a byte: entry i low, entry i + head_dim / 2 high."""

    code_dtype, LARGEST = torch.uint8, 7.0

    def __init__(self, head_dim: int, dtype: torch.dtype) -> None:
        super().__init__(head_dim, dtype)
        self.code_size = head_dim // 2

    def _to_codes(self, scaled: Tensor) -> Tensor:
        low, high = scaled.round_().clamp_(-7, 7).add_(8).to(torch.uint8).chunk(2, -1)
        return low | (high << 4)

    def decode(self, codes: Tensor, scales: Tensor | None) -> Tensor:
        return super().decode(torch.cat((codes & 15, codes >> 4), -1).to(self.dtype) - 8, scales)


KvFormat = PlainKv | ScaledKv
KV_FORMATS: dict[str, type[KvFormat]] = {
    "plain": PlainKv, "fp8": Fp8Kv, "int8": Int8Kv, "int4": Int4Kv,
}  # fmt: skip
