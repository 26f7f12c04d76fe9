"""Owns matrix products: one class per weight format, all called as `y = linear(x)`.

x is [rows, in_features] in the compute dtype, y is [rows, out_features] in the same dtype.
`make_linear` picks the class on a CPU; `device` says what takes its place elsewhere.
"""

import ctypes
import mmap
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from .load.packed import Int4Weight, ScaledWeight, Stored, dense, format_of
from .load.quant import quantize

# Measured at 384x640 on one core with AMX: aten's int8 kernel takes 13 us for 1 row, 17 for 2, 25
# for 4, 98 for 16; oneDNN on packed bf16 weights takes 18 us for 1 row and 20 for 16, while the
# weights are in the cache. It moves twice the bytes, so int8 keeps up to 4 rows.
INT8_KERNEL_MAX_ROWS = 4
INT4_KERNEL_MAX_ROWS = 2
INT4_KERNEL_GROUPS = (32, 64, 128, 256)
INT4_GROUP = 32  # inputs that share one int4 scale; 32 keeps small models within the quality gate
CODE_BYTES = {"int8": 1.0, "fp8": 1.0, "int4": 0.5}  # of a weight as kept, scales left out
HUGE_PAGE = 2 << 20  # bytes
CACHE_LINE = 64  # bytes; a load of a vector that straddles two takes two


class Linear(Protocol):
    out_features: int
    kept: str  # the format of its weights, as `format_of` says

    def __call__(self, x: Tensor) -> Tensor: ...


class MakeLinear(Protocol):
    """`make_linear`, or what another device has in its place."""

    def __call__(
        self,
        weight: Stored,
        bias: Tensor | None,
        *,
        dtype: torch.dtype,
        quant: str | None,
        device: str,
    ) -> Linear: ...


def _packs_bf16() -> bool:
    """Whether oneDNN has a bf16 GEMM for this CPU."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return False


def _held_dtype(dtype: torch.dtype) -> torch.dtype:
    """Choose the dtype that a CPU holds and multiplies dense weights of `dtype` in."""
    return torch.float32 if dtype == torch.bfloat16 and not _packs_bf16() else dtype


class DenseLinear:
    """Weights as they are: [out, in] in the compute dtype.

    bf16 weights on a CPU are packed once; oneDNN otherwise reorders them in every call, which
    doubles the time of a few rows. A CPU without a bf16 GEMM computes in fp32 instead.
    """

    kept = "dense"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features = weight.shape[0]
        self.weight = weight.to(_held_dtype(weight.dtype)) if weight.is_cpu else weight
        self.bias = None if bias is None else bias.to(self.weight.dtype)
        self.is_packed = self.weight.dtype == torch.bfloat16 and weight.is_cpu
        if self.is_packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, 16)

    def __call__(self, x: Tensor) -> Tensor:
        if self.is_packed:
            product: Tensor = torch.ops.mkldnn._linear_pointwise.default(
                x, self.weight, self.bias, "none", [], ""
            )
            return product
        return linear(x.to(self.weight.dtype), self.weight, self.bias).to(x.dtype)


class Streamed:
    """A product whose weights are one tensor of bytes, read as a whole for every row."""

    weight: Tensor
    has_kernel: bool  # whether rows are really multiplied with those bytes


class ScaledLinear(Streamed):
    """int8 or fp8 weights with one scale per output channel.

    Few rows of int8 go through aten's kernel, which reads one byte a weight, others through the
    bf16 GEMM on codes times scale. Rounding each of those products to bf16 brings a verify pass
    closer to a decode step than the exact codes would, scaled afterwards: a sum rounded twice errs
    more. A CPU without a bf16 GEMM multiplies in fp32, and the products are not rounded. That is 3
    bytes a weight held, 5 there.
    """

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        """weight: int8 or float8 [out, in]; scale: [out] in the compute dtype."""
        self.out_features = weight.shape[0]
        self.weight, self.scale, self.bias = weight, scale, bias
        self.kept = format_of(ScaledWeight(weight, scale))
        held = _held_dtype(scale.dtype)
        self.wide = DenseLinear(weight.to(held) * scale.to(held)[:, None], bias)
        # With activations of another dtype the int8 kernel falls to a slow path.
        self.has_kernel = weight.dtype == torch.int8 and scale.dtype == torch.bfloat16

    def __call__(self, x: Tensor) -> Tensor:
        if not self.has_kernel or x.shape[0] > INT8_KERNEL_MAX_ROWS:
            return self.wide(x)
        y: Tensor = torch.ops.aten._weight_int8pack_mm.default(x, self.weight, self.scale)
        return y if self.bias is None else y.add_(self.bias)


class Int4Linear:
    """int4 weights with a scale and a zero per group of `INT4_GROUP` inputs."""

    kept = "int4"

    def __init__(self, codes: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None) -> None:
        """codes: int32 [out, in] in 0..15; scale, zero: [out, in / group]; w = (q - 8) s + z."""
        self.out_features, n_in = codes.shape
        self.bias, self.group = bias, n_in // scale.shape[1]
        held = _held_dtype(scale.dtype)
        grouped = codes.view(self.out_features, -1, self.group).to(held) - 8
        dense = (grouped * scale[..., None] + zero[..., None]).reshape(self.out_features, n_in)
        self.wide = DenseLinear(dense, None)
        self.packed = None
        if (
            scale.dtype == torch.bfloat16
            and self.out_features % 32 == 0
            and self.group in INT4_KERNEL_GROUPS
        ):
            self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
            self.scale_zero = torch.stack((scale, zero), -1).transpose(0, 1).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed is not None and x.shape[0] <= INT4_KERNEL_MAX_ROWS:
            y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu.default(
                x, self.packed, self.group, self.scale_zero
            )
        else:
            y = self.wide(x)
        return y if self.bias is None else y.add_(self.bias)


def make_linear(
    weight: Stored, bias: Tensor | None, *, dtype: torch.dtype, quant: str | None, device: str
) -> Linear:
    """The product for a weight [out, in]; a dense one is quantized as `quant` says."""
    bias = None if bias is None else bias.to(device=device, dtype=dtype)
    match quantize(weight, quant, INT4_GROUP):
        case ScaledWeight(codes, scale):
            return ScaledLinear(codes.to(device), scale.to(device=device, dtype=dtype), bias)
        case Int4Weight(codes, scale, zero):
            scale = scale.to(device=device, dtype=dtype)
            zero = zero.to(device=device, dtype=dtype)
            return Int4Linear(codes.to(device), scale, zero, bias)
        case plain:
            return DenseLinear(plain.to(device=device, dtype=dtype).contiguous(), bias)


def make_dense(
    weight: Stored, bias: Tensor | None, *, dtype: torch.dtype, quant: str | None, device: str
) -> Linear:
    """The product for a weight [out, in] on any device, in whatever format it was stored."""
    bias = None if bias is None else bias.to(device=device, dtype=dtype)
    return DenseLinear(dense(weight).to(device=device, dtype=dtype).contiguous(), bias)


def lay_together(products: Iterable[Linear]) -> None:
    """Move codes, in their order of use, into one mapping of huge pages.

    One row reads every weight once, and the page walks are a tenth of a 28M model's step.
    """
    streamed = [p for p in products if isinstance(p, Streamed) and p.has_kernel]
    if not streamed or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    size = sum(product.weight.numel() + CACHE_LINE for product in streamed)
    memory = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel built without them: small pages then
        memory.madvise(mmap.MADV_HUGEPAGE)
    codes = torch.frombuffer(memory, dtype=torch.uint8)
    place = -codes.data_ptr() % HUGE_PAGE
    for product in streamed:
        old = product.weight
        product.weight = codes[place : place + old.numel()].view(old.dtype).view(old.shape)
        product.weight.copy_(old)
        place += -(-old.numel() // CACHE_LINE) * CACHE_LINE
        with suppress(AttributeError):  # glibc keeps the old codes: all of them, held twice
            ctypes.CDLL(None).malloc_trim(0)
