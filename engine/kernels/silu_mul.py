"""Owns the gate of the MLP: silu(gate) * up.

`silu_mul` takes the merged product's partial sums; `gate_product` is that product itself: see
`product`.
"""

import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import silu

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
    row_scale,
)

BLOCK = 1024


@triton.jit(do_not_specialize=["n_rows"])
def _silu_mul(
    gate_up_ptr, out_ptr, n_rows, SIZE: tl.constexpr, BLOCK: tl.constexpr, N_SPLITS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    gate = tl.zeros((BLOCK,), tl.float32)
    up = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(N_SPLITS):
        part = gate_up_ptr + (split * n_rows + row) * 2 * SIZE + at
        gate += tl.load(part, mask=inside, other=0.0).to(tl.float32)
        up += tl.load(part + SIZE, mask=inside, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * SIZE + at, y.to(out_ptr.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor, out: Tensor) -> None:
    """out = silu(gate) * up. gate_up: [n_splits, rows, 2 size], gates first; out: [rows, size]."""
    rows, size = out.shape
    _silu_mul[(rows, triton.cdiv(size, BLOCK))](
        gate_up, out, rows, SIZE=size, BLOCK=BLOCK, N_SPLITS=gate_up.shape[0],
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip


def silu_mul_reference(gate_up: Tensor, out: Tensor) -> None:
    gate, up = gate_up.float().sum(0).chunk(2, -1)
    out.copy_(silu(gate) * up)


@triton.jit(do_not_specialize=["n_rows"])
def _gate_product(
    h_ptr, codes_ptr, scales_ptr, bias_ptr, squares_ptr, out_ptr, sums_ptr, tickets_ptr, n_rows,
    N_IN: tl.constexpr, N_OUT: tl.constexpr, STEP: tl.constexpr, STEPS_PER_SPLIT: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, N_SPLITS: tl.constexpr,
    N_SQUARES: tl.constexpr, N_SQUARES_PAD: tl.constexpr, EPS: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """One tile of gates, or of what they let through, over one split.

    The last of both tiles' splits finishes them.
    """
    begin_early()
    size: tl.constexpr = N_OUT // 2
    begin, tile, is_up = tl.program_id(0) * ROWS, tl.program_id(1) // 2, tl.program_id(1) % 2
    row = begin + tl.arange(0, ROWS)
    at = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    output = is_up * size + at
    if size % OUTPUTS > 0:  # a gate's last tile must not reach into the others
        output = tl.where(at < size, output, N_OUT)
    split = tl.program_id(2)
    sums = product_tile(
        h_ptr, codes_ptr, scales_ptr, row, output, split, n_rows,
        N_IN, N_OUT, STEP, STEPS_PER_SPLIT, GROUP, ROWS, OUTPUTS,
    )  # fmt: skip
    leave(sums_ptr, sums, row, output, split, n_rows, N_OUT)
    ticket = tl.program_id(0) * (tl.num_programs(1) // 2) + tile
    if is_last(tickets_ptr, ticket, 2 * N_SPLITS):
        for first in range(begin, tl.minimum(begin + ROWS, n_rows), EPILOGUE_ROWS):
            some = first + tl.arange(0, EPILOGUE_ROWS)
            is_row = some < n_rows
            inside = is_row[:, None] & (at < size)[None, :]
            scale = row_scale(squares_ptr, some, is_row, N_SQUARES, N_SQUARES_PAD, N_IN, EPS)
            gate = collect(sums_ptr, some, at, inside, n_rows, N_OUT, N_SPLITS)
            up = collect(sums_ptr, some, size + at, inside, n_rows, N_OUT, N_SPLITS)
            gate, up = gate * scale[:, None], up * scale[:, None]
            if HAS_BIAS:
                bias_at, is_at = bias_ptr + at, at < size
                gate += tl.load(bias_at, mask=is_at, other=0.0).to(tl.float32)[None, :]
                up += tl.load(bias_at + size, mask=is_at, other=0.0).to(tl.float32)[None, :]
            y = gate / (1.0 + tl.exp(-gate)) * up
            target = out_ptr + some[:, None] * size + at[None, :]
            tl.store(target, y.to(out_ptr.dtype.element_ty), mask=inside)


def gate_product(
    h: Tensor, weight: Streamed, bias: Tensor | None, squares: Tensor, eps: float, out: Tensor,
    sums: Tensor, tickets: Tensor,
) -> None:  # fmt: skip
    """out = silu(gate) * up, where gate and up are scale * (h W^T) + bias, gates first.

    h, squares: as `add_product` left them; a row's scale is that of its RMSNorm, of `eps`.
    out: [rows, n_out / 2], written. sums, tickets: workspace, see `product`.
    """
    (n_rows, size), n_squares = out.shape, squares.shape[1]
    sizes = layout(weight, n_rows, tile_outputs(2 * size, out.device))
    tiles = 2 * triton.cdiv(size, sizes["OUTPUTS"])
    _gate_product[(triton.cdiv(n_rows, sizes["ROWS"]), tiles, weight.n_splits)](
        h, *operands(weight), h if bias is None else bias, squares, out, sums, tickets, n_rows,
        N_SQUARES=n_squares, N_SQUARES_PAD=next_power_of_2(n_squares), EPS=eps,
        HAS_BIAS=bias is not None, **sizes,
    )  # fmt: skip


def gate_product_reference(
    h: Tensor, weight: Streamed, bias: Tensor | None, squares: Tensor, eps: float, out: Tensor,
    sums: Tensor, tickets: Tensor,
) -> None:  # fmt: skip
    scale = (squares.sum(1, keepdim=True) / h.shape[1] + eps).rsqrt()
    gate_up = scale * product_reference(h, weight)
    silu_mul_reference((gate_up if bias is None else gate_up + bias.float())[None], out)
