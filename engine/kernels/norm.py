"""Owns the residual stream: add what a layer gave, and RMS-norm the sum, in one pass.

`add_norm` adds a product's partial sums; `add_product` is that product itself: see `product`.
"""

import triton
import triton.language as tl
from torch import Tensor

from .launch import next_power_of_2, tile_outputs
from .product import (
    EPILOGUE_ROWS,
    Streamed,
    begin_early,
    collect,
    is_last,
    layout,
    leave,
    operands,
    product_reference,
    product_tile,
)


@triton.jit(do_not_specialize=["n_rows"])
def _add_norm(
    residual_ptr, delta_ptr, weight_ptr, out_ptr, wanted_ptr, squares_ptr, n_rows,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, N_SPLITS: tl.constexpr, EPS: tl.constexpr,
    IS_LAST: tl.constexpr, N_SQUARES: tl.constexpr, N_SQUARES_PAD: tl.constexpr,
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
    if N_SQUARES > 0:
        part = tl.arange(0, N_SQUARES_PAD)
        squares = tl.where(part == 0, tl.sum(x * x, 0), 0.0)
        tl.store(squares_ptr + row * N_SQUARES + part, squares, mask=part < N_SQUARES)
        y = x * weight
    else:
        y = x * tl.rsqrt(tl.sum(x * x, 0) / SIZE + EPS) * weight
    tl.store(out_ptr + target * SIZE + at, y.to(out_ptr.dtype.element_ty), mask=inside)


def add_norm(
    residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float, out: Tensor,
    wanted: Tensor | None = None, squares: Tensor | None = None,
) -> None:  # fmt: skip
    """residual += delta.sum(0), then out = RMSNorm(residual) * weight.

    residual: fp32 [rows, size], changed in place. delta: [n_splits, rows, size] or None (nothing to
    add): the partial sums of a product are summed here, in order. weight: fp32 [size].
    out: [rows, size]. wanted: int64, rows: the last norm is of these alone, in this order, any of
    them more than once; the residual then stays as it is.
    squares: fp32 [rows, parts], written: the rows are left for the product that reads them to scale
    (see `halves.Residual`), and this is the sum it needs for that, in the first part, and zeros.
    """
    rows, size = residual.shape
    block = next_power_of_2(size)
    n_squares = 0 if squares is None else squares.shape[1]
    _add_norm[(len(out),)](
        residual, residual if delta is None else delta, weight, out,
        residual if wanted is None else wanted, residual if squares is None else squares, rows,
        SIZE=size, BLOCK=block, N_SPLITS=0 if delta is None else delta.shape[0], EPS=eps,
        IS_LAST=wanted is not None, N_SQUARES=n_squares,
        N_SQUARES_PAD=next_power_of_2(max(n_squares, 1)),
        num_warps=min(max(block // 512, 1), 16), enable_fp_fusion=True,
    )  # fmt: skip


def add_norm_reference(
    residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float, out: Tensor,
    wanted: Tensor | None = None, squares: Tensor | None = None,
) -> None:  # fmt: skip
    if wanted is not None:
        residual = residual[wanted]
        delta = None if delta is None else delta[:, wanted]
    if delta is not None:
        residual += delta.float().sum(0)
    if squares is not None:
        squares.zero_()
        squares[:, 0] = residual.square().sum(-1)
        out.copy_(residual * weight.float())
        return
    scale = (residual.square().mean(-1, keepdim=True) + eps).rsqrt()
    out.copy_(residual * scale * weight.float())


@triton.jit(do_not_specialize=["n_rows"])
def _add_product(
    inputs_ptr, codes_ptr, scales_ptr, bias_ptr, residual_ptr, norm_ptr, h_ptr, squares_ptr,
    sums_ptr, tickets_ptr, n_rows,
    N_IN: tl.constexpr, N_OUT: tl.constexpr, STEP: tl.constexpr, STEPS_PER_SPLIT: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, N_SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """One tile of rows and outputs over one split; the last of a tile's splits finishes it."""
    begin_early()
    begin, tile, split = tl.program_id(0) * ROWS, tl.program_id(1), tl.program_id(2)
    row = begin + tl.arange(0, ROWS)
    output = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    sums = product_tile(
        inputs_ptr, codes_ptr, scales_ptr, row, output, split, n_rows,
        N_IN, N_OUT, STEP, STEPS_PER_SPLIT, GROUP, ROWS, OUTPUTS,
    )  # fmt: skip
    leave(sums_ptr, sums, row, output, split, n_rows, N_OUT)
    n_tiles = tl.num_programs(1)
    if is_last(tickets_ptr, tl.program_id(0) * n_tiles + tile, N_SPLITS):
        is_output = output < N_OUT
        norm = tl.load(norm_ptr + output, mask=is_output, other=0.0)
        for first in range(begin, tl.minimum(begin + ROWS, n_rows), EPILOGUE_ROWS):
            some = first + tl.arange(0, EPILOGUE_ROWS)
            inside = (some < n_rows)[:, None] & is_output[None, :]
            at = some[:, None] * N_OUT + output[None, :]
            x = tl.load(residual_ptr + at, mask=inside, other=0.0)
            x += collect(sums_ptr, some, output, inside, n_rows, N_OUT, N_SPLITS)
            if HAS_BIAS:
                x += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
            tl.store(residual_ptr + at, x, mask=inside)
            tl.store(h_ptr + at, (x * norm[None, :]).to(h_ptr.dtype.element_ty), mask=inside)
            tl.store(squares_ptr + some * n_tiles + tile, tl.sum(x * x, 1), mask=some < n_rows)


def add_product(
    inputs: Tensor, weight: Streamed, bias: Tensor | None, residual: Tensor, norm: Tensor,
    h: Tensor, squares: Tensor, sums: Tensor, tickets: Tensor,
) -> None:  # fmt: skip
    """residual += inputs W^T + bias, and h = residual * norm, whose rows the next product scales.

    inputs: [rows, n_in]. residual: fp32 [rows, n_out], changed. norm: fp32 [n_out], of the RMSNorm
    that follows. h: [rows, n_out], written. squares: fp32 [rows, tiles of outputs], written: what
    each tile adds to the sum of a row's squares. sums, tickets: workspace, see `product`.
    """
    n_rows, n_out = residual.shape
    sizes = layout(weight, n_rows, tile_outputs(n_out, residual.device))
    grid = triton.cdiv(n_rows, sizes["ROWS"]), squares.shape[1], weight.n_splits
    _add_product[grid](
        inputs, *operands(weight), inputs if bias is None else bias, residual, norm, h, squares,
        sums, tickets, n_rows, HAS_BIAS=bias is not None, **sizes,
    )  # fmt: skip


def add_product_reference(
    inputs: Tensor, weight: Streamed, bias: Tensor | None, residual: Tensor, norm: Tensor,
    h: Tensor, squares: Tensor, sums: Tensor, tickets: Tensor,
) -> None:  # fmt: skip
    residual += product_reference(inputs, weight)
    if bias is not None:
        residual += bias.float()
    h.copy_(residual * norm)
    squares.zero_()
    squares[:, 0] = residual.square().sum(1)
