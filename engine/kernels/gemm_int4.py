"""Owns y = x W with 4-bit weights and 16-bit activations, for the few rows of decode and verify.

A step at few rows takes as long as its weights take to stream, so the layout is made for reading:
see `PackedInt4`. Many rows (a prefill chunk, above `MAX_ROWS`) are better served by writing the
weights out once (`dequantize_int4`) and multiplying with cuBLAS.
"""

from dataclasses import dataclass

from torch import Tensor

from ..packed import Int4Weight

MAX_ROWS = 128  # from here on the product is bound by arithmetic, which cuBLAS does better
MAX_HALF = 128


@dataclass(frozen=True, slots=True)
class PackedInt4:
    """w = (code - 8) * scale + zero, two codes a byte, in the order the kernel reads them.

    codes: uint8 [n_in / (2 half), n_out, half]. Byte (p, n, i) holds input 2 p half + i of output n
        in its low 4 bits and the input `half` further in its high 4: each half of a pair lies in
        one scale group, so one scaling follows one dot, and a tile of outputs is contiguous.
    scale, zero: fp32 [n_groups, n_out].
    n_splits: partial sums over the inputs that a product leaves to its consumer.
    """

    codes: Tensor
    scale: Tensor
    zero: Tensor
    n_in: int
    n_out: int
    half: int
    group: int
    n_splits: int


def pack_int4(weight: Int4Weight, *, n_splits: int | None = None) -> PackedInt4:
    """The canonical weight in the kernel's layout, on the same device. Done once, at load.

    n_splits: None chooses by shape and device; 1 for a product whose consumer takes no partials.
    Raises: ValueError where the group is not a multiple of 16.
    """
    raise NotImplementedError


def unpack_int4(weight: PackedInt4) -> Tensor:
    """The weights as fp32 [n_out, n_in]."""
    raise NotImplementedError


def gemm_int4(x: Tensor, weight: PackedInt4, bias: Tensor | None, out: Tensor) -> None:
    """out.sum(0) = x W^T + bias.

    x: bf16 [rows, n_in], contiguous, rows <= MAX_ROWS. bias: [n_out] or None.
    out: [n_splits, rows, n_out], fp32 (any dtype where n_splits is 1); every entry is written.
    The order of summation depends on the weight's shape alone: a row's result is the same whatever
    rows stand beside it.
    """
    raise NotImplementedError


def gemm_int4_reference(x: Tensor, weight: PackedInt4, bias: Tensor | None, out: Tensor) -> None:
    y = x.float() @ unpack_int4(weight).T
    out.zero_()
    out[0] = (y if bias is None else y + bias.float()).to(out.dtype)


def dequantize_int4(weight: PackedInt4, out: Tensor) -> None:
    """Write W out as bf16 [n_out, n_in], for products of many rows."""
    raise NotImplementedError


def dequantize_int4_reference(weight: PackedInt4, out: Tensor) -> None:
    out.copy_(unpack_int4(weight))


def gemm_int4_bytes(rows: int, weight: PackedInt4) -> int:
    """Bytes one call must move: weights, scales, activations and results."""
    raise NotImplementedError
