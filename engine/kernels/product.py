"""Owns a product of few rows inside a larger kernel: a tile, and how tiles of one result end.

Programs multiply a tile over one split of the inputs each, and leave a partial sum. The last of
those that share a result, whichever it is, adds the partial sums in the order of the splits and
does what follows with them: so one launch takes the place of two, and the bits are the same
whoever was last. Nobody waits for anybody.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import cuda

from .gemm_8bit import STEP, Packed8bit, gemm_8bit_reference, tile_8bit
from .gemm_int4 import MAX_REGISTERS, PackedInt4, gemm_int4_reference, tile_int4
from .launch import IS_COMPILED, LEAST_ROWS, MAX_TILE_ROWS, STREAMED_ROWS

Streamed = Packed8bit | PackedInt4
MAX_ROW_TILES = STREAMED_ROWS // MAX_TILE_ROWS
# Rows that the last program finishes at once, whatever the tile has: 32 would take registers that
# the product's loop needs, a reply alone has one, and the order of a sum follows the shape.
EPILOGUE_ROWS = tl.constexpr(8)


@triton.jit
def begin_early():
    """Wait for the kernel before this one, which its launch did not; let the next one start too.

    With `launch_pdl` (programmatic dependent launch) the programs of a kernel start while the one
    before it still runs, and get no further than here: all of that one's stores come before.
    """
    if IS_COMPILED:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()


@triton.jit
def product_tile(
    x_ptr, codes_ptr, scales_ptr, row, output, split, n_rows,
    N_IN: tl.constexpr, N_OUT: tl.constexpr, STEP: tl.constexpr, STEPS_PER_SPLIT: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Sums [ROWS, OUTPUTS] of one split of the inputs, in whatever format the weights are; no bias.

    GROUP: inputs that share an int4 scale, 0 where each output has one.
    """
    if GROUP > 0:
        sums = tile_int4(
            x_ptr, codes_ptr, scales_ptr, row, output, split, n_rows, N_IN, N_OUT, STEP // 2,
            GROUP, STEPS_PER_SPLIT, ROWS, OUTPUTS,
        )  # fmt: skip
    else:
        sums = tile_8bit(
            x_ptr, codes_ptr, scales_ptr, row, output, split, n_rows, N_IN, N_OUT, STEP,
            STEPS_PER_SPLIT, ROWS, OUTPUTS,
        )  # fmt: skip
    return sums


@triton.jit
def leave(sums_ptr, sums, row, output, split, n_rows, N_OUT: tl.constexpr):
    """Store a partial sum, in fp32 [splits, rows, N_OUT]."""
    target = sums_ptr + (split * n_rows + row).to(tl.int64)[:, None] * N_OUT + output[None, :]
    tl.store(target, sums, mask=(row < n_rows)[:, None] & (output < N_OUT)[None, :])


@triton.jit
def is_last(tickets_ptr, ticket, n):
    """Whether the n - 1 others that share a ticket have left what they made; it is 0 again then.

    Their stores come before their arrival, and it before what the last one reads.
    """
    tl.debug_barrier()
    n_before = tl.atomic_add(tickets_ptr + ticket, 1, sem="acq_rel", scope="gpu")
    is_last_one = n_before == n - 1
    if is_last_one:
        tl.store(tickets_ptr + ticket, 0)
    return is_last_one


@triton.jit
def collect(
    sums_ptr, row, output, inside, n_rows, N_OUT: tl.constexpr, N_SPLITS: tl.constexpr
):  # fmt: skip
    """The partial sums of some rows and outputs, added from the first split on: fp32."""
    at = sums_ptr + row.to(tl.int64)[:, None] * N_OUT + output[None, :]
    # Past the first level of the cache: other processors wrote them.
    total = tl.load(at, mask=inside, other=0.0, cache_modifier=".cg")
    for _ in tl.static_range(1, N_SPLITS):
        at += n_rows.to(tl.int64) * N_OUT
        total += tl.load(at, mask=inside, other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def row_scale(
    squares_ptr, row, is_row, N_SQUARES: tl.constexpr, N_SQUARES_PAD: tl.constexpr,
    SIZE: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """What RMSNorm multiplies each row by, from sums of squares of its parts [rows, N_SQUARES]."""
    part = tl.arange(0, N_SQUARES_PAD)
    inside = is_row[:, None] & (part < N_SQUARES)[None, :]
    at = squares_ptr + row[:, None] * N_SQUARES + part[None, :]
    squares = tl.load(at, mask=inside, other=0.0)
    return tl.rsqrt(tl.sum(squares, 1) / SIZE + EPS)


def operands(weight: Streamed) -> tuple[Tensor, Tensor]:
    """Its codes and scales, as `product_tile` reads them."""
    return (weight.codes, weight.scales if isinstance(weight, PackedInt4) else weight.scale)


def sizes(weight: Streamed) -> tuple[int, int]:
    """Outputs and inputs."""
    if isinstance(weight, PackedInt4):
        return weight.n_out, weight.n_in
    n_out, n_in = weight.codes.shape
    return n_out, n_in


def layout(weight: Streamed, n_rows: int, outputs: int) -> dict[str, Any]:
    """How a kernel around `product_tile` is launched, for up to `STREAMED_ROWS` rows.

    outputs: of a tile. Its grid has tiles of rows first: those read the same weights side by side.
    """
    n_out, n_in = sizes(weight)
    step, group, n_stages = STEP, 0, 4
    if isinstance(weight, PackedInt4):
        step, group, n_stages = 2 * weight.half, weight.group, 6
    return {
        "N_IN": n_in, "N_OUT": n_out, "STEP": step, "GROUP": group, "OUTPUTS": outputs,
        "STEPS_PER_SPLIT": triton.cdiv(triton.cdiv(n_in, step), weight.n_splits),
        "N_SPLITS": weight.n_splits,
        "ROWS": LEAST_ROWS if n_rows <= LEAST_ROWS else MAX_TILE_ROWS,
        "num_warps": 4, "num_stages": n_stages, "enable_fp_fusion": True, "launch_pdl": True,
        # Left to itself ptxas stops short of these registers, and spills: see `gemm_int4`.
        "maxnreg": MAX_REGISTERS,
    }  # fmt: skip


def product_reference(x: Tensor, weight: Streamed) -> Tensor:
    """x W^T: fp32 [rows, outputs]."""
    out = torch.empty(1, len(x), sizes(weight)[0], device=x.device)
    if isinstance(weight, PackedInt4):
        gemm_int4_reference(x, weight, None, out)
    else:
        gemm_8bit_reference(x, weight, None, out)
    return out[0]
