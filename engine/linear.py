"""Owns matrix products, called as `y = linear(x)`: of torch, and what all devices' have in common.

x is [rows, in_features] in the compute dtype, y is [rows, out_features] in the same dtype.
`device` says what takes the place of `make_linear` where the library or kernels run.
"""

import ctypes
import mmap
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from .load.packed import Stored, dense

INT4_GROUP = 32  # inputs that share one int4 scale; 32 keeps small models within the quality gate
CODE_BYTES = {"int8": 1.0, "fp8": 1.0, "int4": 0.5}  # of a weight as kept, scales left out
HUGE_PAGE = 2 << 20  # bytes


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
    """A product whose weights are bytes [n], whole cache lines, all read for every row."""

    weight: Tensor


def make_linear(
    weight: Stored, bias: Tensor | None, *, dtype: torch.dtype, quant: str | None, device: str
) -> Linear:
    """The product for a weight [out, in] in torch, in whatever format it was stored: as wide
    numbers. quant: left to devices whose products read codes.
    """
    bias = None if bias is None else bias.to(device=device, dtype=dtype)
    return DenseLinear(dense(weight).to(device=device, dtype=dtype).contiguous(), bias)


def huge_pages(n_bytes: int) -> Tensor:
    """Memory of so many bytes, in huge pages where the system has them."""
    memory = mmap.mmap(-1, n_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):  # a kernel built without them: small pages then
        memory.madvise(mmap.MADV_HUGEPAGE)
    codes = torch.frombuffer(memory, dtype=torch.uint8)
    place = -codes.data_ptr() % HUGE_PAGE
    return codes[place : place + n_bytes]


def lay_together(products: Iterable[Linear]) -> None:
    """Move codes, in their order of use, into one mapping of huge pages.

    One row reads every weight once, and the page walks are a tenth of a 28M model's step.
    """
    streamed = [product for product in products if isinstance(product, Streamed)]
    if not streamed or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    sizes = [len(product.weight) for product in streamed]
    for product, place in zip(streamed, huge_pages(sum(sizes)).split(sizes), strict=True):
        product.weight = place.copy_(product.weight)
        with suppress(AttributeError):  # glibc keeps the old codes: all of them, held twice
            ctypes.CDLL(None).malloc_trim(0)
