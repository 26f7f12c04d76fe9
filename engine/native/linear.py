"""Owns products laid out for the C library.

Whatever is handed over is checked here, once: types, shapes, sizes. Each product keeps the tensors
alive that its struct points into.
"""

import ctypes
from ctypes import byref

import torch
from torch import Tensor

from ..linear import Streamed
from ..load.packed import Int4Weight, ScaledWeight, format_of
from ..types import IntegrityError
from .layout import (
    BY_OUTPUT,
    GROUP,
    GROUPED4,
    GROUPED8,
    MOST_INPUTS,
    SYMMETRIC4,
    ProductLayout,
    padded,
)


def as_float(tensor: Tensor, size: int) -> Tensor:
    """fp32 on the CPU, with zeros up to the padded size."""
    found = torch.zeros(padded(size))
    found[:size] = tensor.detach().float().reshape(size)
    return found


class NativeLinear(Streamed):
    """y = W x + bias by the library: int8 by groups of inputs or by outputs, int4 by groups.

    int4 without zeros (Q4_0, symmetric GPTQ) takes 18 bytes of each 32 inputs where others take 20.
    """

    def __init__(
        self, library: ctypes.CDLL, weight: ScaledWeight | Int4Weight, bias: Tensor | None,
        dtype: torch.dtype,
    ) -> None:  # fmt: skip
        """weight: one that `is_native` holds for. dtype: of what a call returns."""
        n_out, n_in = weight.codes.shape
        layout = ProductLayout(n_in=n_in, n_out=n_out, group=GROUP)
        scale = as_float(weight.scale, n_out) if weight.scale.dim() == 1 else None
        if scale is None:
            layout.format = GROUPED8
            if isinstance(weight, Int4Weight):
                layout.format = GROUPED4 if weight.zero.any() else SYMMETRIC4
            layout.group = n_in // weight.scale.shape[1]
        padded_bias = None if bias is None else as_float(bias, n_out)
        self._take(library, layout, format_of(weight), scale, padded_bias)
        self.dtype = dtype
        self.weight = self._pack(weight)

    def _take(
        self, library: ctypes.CDLL, layout: ProductLayout, kept: str, scale: Tensor | None,
        bias: Tensor | None,
    ) -> None:  # fmt: skip
        self.library, self.layout, self.kept = library, layout, kept
        self.out_features, self.n_in = layout.n_out, layout.n_in
        self._scale, self._bias = scale, bias
        layout.scale = None if scale is None else scale.data_ptr()
        layout.bias = None if bias is None else bias.data_ptr()

    @classmethod
    def restored(
        cls, library: ctypes.CDLL, facts: dict[str, int], kept: str, weight: Tensor | None,
        scale: Tensor | None, bias: Tensor | None,
    ) -> "NativeLinear":  # fmt: skip
        """One as it was packed before, from `facts` and `parts`. Raises: ValueError where they do
        not fit each other, TypeError.
        """
        self = cls.__new__(cls)
        layout = ProductLayout(**facts)
        self._take(library, layout, kept, scale, bias)
        self.dtype = torch.bfloat16
        is_by_output = layout.format == BY_OUTPUT
        sizes = [len(part) for part in (scale, bias) if part is not None]
        n_bytes = library.native_packed_bytes(byref(layout))
        if (
            weight is None or weight.dtype != torch.uint8 or weight.numel() != n_bytes
            or any(size != padded(layout.n_out) for size in sizes)
            or is_by_output != (scale is not None) or layout.group % GROUP
        ):  # fmt: skip
            raise ValueError(f"expected {n_bytes} bytes of a product, found others")
        self.weight = weight
        return self

    def facts(self) -> dict[str, int]:
        """Return what `restored` makes the product's struct of."""
        return {name: getattr(self.layout, name) for name in ("n_in", "n_out", "group", "format")}

    def parts(self) -> dict[str, Tensor]:
        """The tensors of it: weight, and where it has them scale and bias."""
        found = {"weight": self.weight, "scale": self._scale, "bias": self._bias}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def _pack(self, weight: ScaledWeight | Int4Weight) -> Tensor:
        """Codes, and the scales and zeros of groups, in the order in which they are read."""
        layout = byref(self.layout)
        packed = torch.zeros(self.library.native_packed_bytes(layout), dtype=torch.uint8)
        codes = weight.codes.to("cpu", torch.int8).contiguous()
        scale = weight.scale.to("cpu", torch.bfloat16).contiguous()
        zero = scale
        if isinstance(weight, Int4Weight):
            zero = weight.zero.to("cpu", torch.bfloat16).contiguous()
        of_weight = codes.data_ptr(), scale.data_ptr(), zero.data_ptr()
        self.library.native_pack(layout, *of_weight, packed.data_ptr())
        return packed

    def product(self) -> ProductLayout:
        """Return the library's struct; valid while this object lives and its weights stay."""
        self.layout.weights = self.weight.data_ptr()
        return self.layout

    def __call__(self, x: Tensor) -> Tensor:
        """x: [rows, n_in] -> [rows, out_features] in `dtype`."""
        if x.dim() != 2 or x.shape[1] != self.n_in:
            raise IntegrityError(f"expected [rows, {self.n_in}], found {list(x.shape)}")
        x = x.float().contiguous()
        y = torch.empty(len(x), padded(self.out_features))
        space = torch.empty(self.library.native_rows_bytes(self.n_in), dtype=torch.uint8)
        self.library.native_multiply(
            byref(self.product()), x.data_ptr(), len(x), y.data_ptr(), space.data_ptr()
        )
        return y[:, : self.out_features].to(self.dtype)


def is_native(weight: object) -> bool:
    """Whether the library multiplies by a weight of this format."""
    match weight:
        case ScaledWeight(codes, scale) if codes.dtype != torch.int8:
            return False
        case ScaledWeight(codes, scale) if scale.dim() == 1:
            return codes.shape[1] <= MOST_INPUTS
        case ScaledWeight(codes, scale) | Int4Weight(codes, scale, _):
            n_in, n_groups = codes.shape[1], scale.shape[1]
            return n_in % n_groups == 0 and n_in // n_groups % GROUP == 0 and n_in <= MOST_INPUTS
    return False
