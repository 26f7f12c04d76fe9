"""Owns the residual stream: add what a layer gave, and RMS-norm the sum, in one pass."""

import triton
import triton.language as tl
from torch import Tensor

from .launch import next_power_of_2


@triton.jit(do_not_specialize=["n_rows"])
def _add_norm(
    residual_ptr, delta_ptr, weight_ptr, out_ptr, wanted_ptr, n_rows,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, N_SPLITS: tl.constexpr, EPS: tl.constexpr,
    IS_LAST: tl.constexpr,
):  # fmt: skip
    target = tl.program_id(0).to(tl.int64)
    row = tl.load(wanted_ptr + target) if IS_LAST else target
    at = tl.arange(0, BLOCK)
    inside = at < SIZE
    x = tl.load(residual_ptr + row * SIZE + at, mask=inside, other=0.0)
    if N_SPLITS > 0:
        for split in tl.static_range(N_SPLITS):
            part = delta_ptr + (split * n_rows + row) * SIZE + at
            x += tl.load(part, mask=inside, other=0.0).to(tl.float32)
        if not IS_LAST:
            tl.store(residual_ptr + row * SIZE + at, x, mask=inside)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / SIZE + EPS) * weight
    tl.store(out_ptr + target * SIZE + at, y.to(out_ptr.dtype.element_ty), mask=inside)


def add_norm(
    residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float, out: Tensor,
    wanted: Tensor | None = None,
) -> None:  # fmt: skip
    """residual += delta.sum(0), then out = RMSNorm(residual) * weight.

    residual: fp32 [rows, size], changed in place. delta: [n_splits, rows, size] or None (nothing to
    add): the partial sums of a product are summed here, in order. weight: fp32 [size].
    out: [rows, size]. wanted: int64, rows: the last norm is of these alone, in this order, any of
    them more than once; the residual then stays as it is.
    """
    rows, size = residual.shape
    block = next_power_of_2(size)
    _add_norm[(len(out),)](
        residual, residual if delta is None else delta, weight, out,
        residual if wanted is None else wanted, rows,
        SIZE=size, BLOCK=block, N_SPLITS=0 if delta is None else delta.shape[0], EPS=eps,
        IS_LAST=wanted is not None, num_warps=min(max(block // 512, 1), 16), enable_fp_fusion=True,
    )  # fmt: skip


def add_norm_reference(
    residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float, out: Tensor,
    wanted: Tensor | None = None,
) -> None:  # fmt: skip
    if wanted is not None:
        residual = residual[wanted]
        delta = None if delta is None else delta[:, wanted]
    if delta is not None:
        residual += delta.float().sum(0)
    scale = (residual.square().mean(-1, keepdim=True) + eps).rsqrt()
    out.copy_(residual * scale * weight.float())
