"""Owns y = x W with 8-bit weights (int8, or fp8 e4m3) and 16-bit activations, for few rows.

Both formats are exact in bf16, carry one scale per output and take the same bytes, so one kernel
serves both. The weights are read as they are stored. Many rows go through `dequantize_8bit` and
cuBLAS.
"""

from dataclasses import dataclass

from torch import Tensor

MAX_ROWS = 128


@dataclass(frozen=True, slots=True)
class Packed8bit:
    """w = code * scale; codes int8 or float8_e4m3fn [n_out, n_in], scale fp32 [n_out]."""

    codes: Tensor
    scale: Tensor
    n_splits: int


def pack_8bit(codes: Tensor, scale: Tensor, *, n_splits: int | None = None) -> Packed8bit:
    """n_splits: None chooses by shape and device; 1 where the consumer takes no partial sums."""
    raise NotImplementedError


def gemm_8bit(x: Tensor, weight: Packed8bit, bias: Tensor | None, out: Tensor) -> None:
    """out.sum(0) = x W^T + bias.

    x: bf16 [rows, n_in], contiguous, rows <= MAX_ROWS. bias: [n_out] or None.
    out: [n_splits, rows, n_out], fp32 (any dtype where n_splits is 1); every entry is written.
    """
    raise NotImplementedError


def gemm_8bit_reference(x: Tensor, weight: Packed8bit, bias: Tensor | None, out: Tensor) -> None:
    y = x.float() @ weight.codes.float().T * weight.scale
    out.zero_()
    out[0] = (y if bias is None else y + bias.float()).to(out.dtype)


def dequantize_8bit(weight: Packed8bit, out: Tensor) -> None:
    """Write W out as bf16 [n_out, n_in], for products of many rows."""
    raise NotImplementedError


def dequantize_8bit_reference(weight: Packed8bit, out: Tensor) -> None:
    out.copy_(weight.codes.float() * weight.scale[:, None])


def gemm_8bit_bytes(rows: int, weight: Packed8bit) -> int:
    raise NotImplementedError
