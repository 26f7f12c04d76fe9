"""Owns the quantization of weights: from floats to integer codes and scales; how formats meet.

Round-to-nearest on load, some outputs at a time: floats of a whole weight are there but once.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from .packed import FinerWeight, Int4Weight, ScaledWeight, Stored, Weight, dense, parts_of

SLICE_NUMBERS = 1 << 24  # quantized at a time: 64 MB in fp32, and as much again for quotients
Coded = TypeVar("Coded", ScaledWeight, Int4Weight)


def quantize(
    weight: Stored,
    quant: str | None,
    group: int,
    int8_group: int | None = None,
    device: str | None = None,
) -> Weight:
    """A dense weight as `quant` says: int4 where `group` divides its inputs; others as they are.

    A finer weight is int8 where `quant` is int4.

    int8_group: inputs that share a scale of int8, where it divides them; else all of them do.
    device: where a weight that is quantized comes to lie; None for where it is.
    """
    if isinstance(weight, FinerWeight):
        weight, quant = weight.numbers, "int8" if quant == "int4" else quant
    if not isinstance(weight, Tensor):
        return weight
    match quant:
        case "int8":
            is_grouped = int8_group is not None and weight.shape[1] % int8_group == 0
            of_scale = int8_group if is_grouped else None
            return _by_slices(lambda some: quantize_int8(some, of_scale), weight, device)
        case "int4" if weight.shape[1] % group == 0:
            return _by_slices(lambda some: quantize_int4(some, group), weight, device)
    return weight


def _by_slices(rounded: Callable[[Tensor], Coded], weight: Tensor, device: str | None) -> Coded:
    """Outputs have scales of their own: some at a time give what all at once would."""
    n_out, n_in = weight.shape
    whole: Coded | None = None
    first = 0
    for some in weight.split(max(1, SLICE_NUMBERS // n_in)):
        part = rounded(some.to(device or weight.device))
        if whole is None and len(some) == n_out:
            return part
        if whole is None:
            whole = type(part)(*(one.new_empty(n_out, *one.shape[1:]) for one in parts_of(part)))
        for all_outputs, one in zip(parts_of(whole), parts_of(part), strict=True):
            all_outputs[first : first + len(some)] = one
        first += len(some)
    assert whole is not None
    return whole


def quantize_int8(weight: Tensor, group: int | None = None) -> ScaledWeight:
    """Symmetric, one scale per output channel, or per `group` inputs of one. weight: [out, in]."""
    n_out, n_in = weight.shape
    grouped = weight.float().view(n_out, -1, group or n_in)
    scale = grouped.abs().amax(-1).clamp_min_(1e-10).div_(127)
    # The scale is stored in bf16; rounding against the stored value costs no accuracy twice.
    scale = scale.bfloat16().float()
    codes = (grouped / scale[..., None]).round_().clamp_(-127, 127).to(torch.int8)
    return ScaledWeight(codes.view(n_out, n_in), scale if group else scale[:, 0])


def quantize_int4(weight: Tensor, group: int) -> Int4Weight:
    """Asymmetric, one scale and zero per `group` inputs of an output channel. weight: [out, in]."""
    n_out, n_in = weight.shape
    grouped = weight.float().view(n_out, n_in // group, group)
    low, high = grouped.amin(-1), grouped.amax(-1)
    scale = ((high - low) / 15).clamp_min_(1e-10).bfloat16().float()
    zero = (low + 8 * scale).bfloat16().float()
    codes = ((grouped - zero[..., None]) / scale[..., None]).round_().add_(8).clamp_(0, 15)
    return Int4Weight(codes.to(torch.int32).view(n_out, n_in), scale, zero)


def with_rows(weight: Stored, order: list[int] | None, scale: Tensor | None) -> Stored:
    """A weight [out, in] with its outputs in this order, then times `scale` [out]."""
    if order is not None:
        if isinstance(weight, Tensor):
            weight = weight[order]
        else:
            weight = type(weight)(*(part[order] for part in parts_of(weight)))
    if scale is None:
        return weight
    column = scale[:, None]
    match weight:
        case Int4Weight(codes, old, zero):
            return Int4Weight(codes, old * column, zero * column)
        case ScaledWeight(codes, old):
            return ScaledWeight(codes, old * (scale if old.dim() == 1 else column))
        case FinerWeight(numbers):
            return FinerWeight(numbers * column)
    return weight.to(torch.promote_types(weight.dtype, torch.float32)) * column


def join(weights: Sequence[Stored]) -> Stored:
    """Stack along the outputs; formats that differ meet in the finer one.

    int4 and int8 meet in int8, and either meets others as dense tensors; these have then more bits
    than four, and are not rounded to four again.
    """
    int4 = [weight for weight in weights if isinstance(weight, Int4Weight)]
    if len(int4) == len(weights) and len({weight.scale.shape[1] for weight in int4}) == 1:
        return Int4Weight(*map(torch.cat, zip(*map(parts_of, int4), strict=True)))
    scaled = [weight for weight in weights if isinstance(weight, ScaledWeight)]
    if len(scaled) == len(weights) and len({weight.codes.dtype for weight in scaled}) == 1:
        return ScaledWeight(*map(torch.cat, zip(*map(parts_of, scaled), strict=True)))
    whole = torch.cat([dense(weight) for weight in weights])
    is_int8 = [isinstance(w, ScaledWeight) and w.codes.dtype == torch.int8 for w in weights]
    if any(is_int8) and len(int4) + sum(is_int8) == len(weights):
        return quantize_int8(whole)
    is_finer = int4 or any(isinstance(weight, FinerWeight) for weight in weights)
    return FinerWeight(whole) if is_finer else whole
