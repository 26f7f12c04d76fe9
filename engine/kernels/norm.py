"""Owns the residual stream: add what a layer gave, and RMS-norm the sum, in one pass."""

from torch import Tensor


def add_norm(
    residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float, out: Tensor
) -> None:
    """residual += delta.sum(0), then out = RMSNorm(residual) * weight.

    residual: fp32 [rows, size], changed in place. delta: [n_splits, rows, size] or None (nothing to
    add): the partial sums of a product are summed here, in order. weight: fp32 [size].
    out: [rows, size].
    """
    raise NotImplementedError


def add_norm_reference(
    residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float, out: Tensor
) -> None:
    if delta is not None:
        residual += delta.float().sum(0)
    scale = (residual.square().mean(-1, keepdim=True) + eps).rsqrt()
    out.copy_(residual * scale * weight.float())


def add_norm_bytes(residual: Tensor, delta: Tensor | None, out: Tensor) -> int:
    raise NotImplementedError
