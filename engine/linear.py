"""Owns matrix products: one class per weight format, all called as `y = linear(x)`.

x is [rows, in_features] in the compute dtype, y is [rows, out_features] in the same dtype.
`make_linear` picks the class; kernels for a GPU slot in there.
"""

from typing import Protocol

import torch
from torch import Tensor

# Measured on 2 cores with AMX at 384x768: aten's int8 kernel takes 15 us for 1 row, 30 us for 4,
# 118 us for 16; the bf16 GEMM takes 43 us for any of them.
INT8_KERNEL_MAX_ROWS = 4
INT4_KERNEL_MAX_ROWS = 4
INT4_GROUP = 32  # inputs that share one int4 scale; 32 keeps small models within the quality gate


class Linear(Protocol):
    out_features: int

    def __call__(self, x: Tensor) -> Tensor: ...


class DenseLinear:
    """Weights as they are: [out, in] in the compute dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features = weight.shape[0]
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


class Int8Linear:
    """int8 weights with one scale per output channel.

    Few rows go through aten's packed kernel, which reads one byte a weight. More rows go through
    the bf16 GEMM on the same integers (exact in bf16), scaled afterwards: the same mathematics,
    so that a verify pass and a decode step agree up to the order of summation.
    """

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        """weight: int8 [out, in]; scale: [out] in the compute dtype."""
        self.out_features = weight.shape[0]
        self.weight, self.scale, self.bias = weight, scale, bias
        self.wide = weight.to(scale.dtype)
        self.packed = scale.dtype == torch.bfloat16  # any other dtype falls to a slow path

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed and x.shape[0] <= INT8_KERNEL_MAX_ROWS:
            y: Tensor = torch.ops.aten._weight_int8pack_mm.default(x, self.weight, self.scale)
        else:
            y = torch.nn.functional.linear(x, self.wide).mul_(self.scale)
        return y if self.bias is None else y.add_(self.bias)


class Int4Linear:
    """int4 weights with a scale and a zero per group of `INT4_GROUP` inputs."""

    def __init__(self, codes: Tensor, scale: Tensor, zero: Tensor, bias: Tensor | None) -> None:
        """codes: int32 [out, in] in 0..15; scale, zero: [out, in / group]; w = (q - 8) s + z."""
        self.out_features, n_in = codes.shape
        self.bias, self.group = bias, n_in // scale.shape[1]
        grouped = codes.view(self.out_features, -1, self.group).to(scale.dtype) - 8
        self.wide = (grouped * scale[..., None] + zero[..., None]).reshape(self.out_features, n_in)
        self.packed = None
        if scale.dtype == torch.bfloat16 and self.out_features % 32 == 0:
            self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
            self.scale_zero = torch.stack((scale, zero), -1).transpose(0, 1).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        if self.packed is not None and x.shape[0] <= INT4_KERNEL_MAX_ROWS:
            y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu.default(
                x, self.packed, self.group, self.scale_zero
            )
        else:
            y = torch.nn.functional.linear(x, self.wide)
        return y if self.bias is None else y.add_(self.bias)


def make_linear(
    weight: Tensor, bias: Tensor | None, *, dtype: torch.dtype, quant: str | None, device: str
) -> Linear:
    """The fastest exact-enough product for a dense float weight [out, in]."""
    from .quant import quantize_int4, quantize_int8  # here: quant also measures whole models

    bias = None if bias is None else bias.to(device=device, dtype=dtype)
    if quant == "int8":
        codes, scale = quantize_int8(weight)
        return Int8Linear(codes.to(device), scale.to(device=device, dtype=dtype), bias)
    if quant == "int4" and weight.shape[1] % INT4_GROUP == 0:
        codes, scale, zero = quantize_int4(weight, INT4_GROUP)
        scale, zero = scale.to(device=device, dtype=dtype), zero.to(device=device, dtype=dtype)
        return Int4Linear(codes.to(device), scale, zero, bias)
    return DenseLinear(weight.to(device=device, dtype=dtype).contiguous(), bias)
