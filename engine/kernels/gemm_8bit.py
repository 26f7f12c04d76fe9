"""Owns y = x W with 8-bit weights (int8, or fp8 e4m3) and 16-bit activations.

Both formats are exact in bf16, carry one scale per output and take the same bytes, so the kernels
serve both. The weights are read as they are stored: few rows are bound by that, many by arithmetic,
where weights go through registers to the tensor cores (see `gemm_int4`).
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from .launch import (
    LEAST_ROWS,
    MAX_REGISTERS,
    MAX_TILE_ROWS,
    OPERAND,
    STREAMED_ROWS,
    WIDE_OUTPUTS,
    WideStage,
    choose_splits,
    tile_outputs,
    wide_rows,
)
from .operands import load_inputs, to_operand

STEP = 128  # inputs per tile: a line of the cache
WIDE_STEP = 64  # of many rows: three stages of 128 would not fit the shared memory
WIDE_STAGE = WideStage(row_bytes=2 * WIDE_STEP, output_bytes=WIDE_STEP)


@dataclass(frozen=True, slots=True)
class Packed8bit:
    """w = code * scale; codes int8 or float8_e4m3fn [n_out, n_in], scale [n_out].

    n_splits: partial sums over the inputs that a product leaves to its consumer.
    """

    codes: Tensor
    scale: Tensor
    n_splits: int

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes


def pack_8bit(codes: Tensor, scale: Tensor) -> Packed8bit:
    """codes: [n_out, n_in]; scale: [n_out]. Done once, at load."""
    n_out, n_in = codes.shape
    n_splits = choose_splits(n_out, triton.cdiv(n_in, STEP), codes.device)
    return Packed8bit(codes.contiguous(), scale.contiguous(), n_splits)


@triton.jit(do_not_specialize=["n_rows"])
def _gemm_8bit(
    x_ptr, codes_ptr, scale_ptr, bias_ptr, out_ptr, n_rows,
    N_IN: tl.constexpr, N_OUT: tl.constexpr, STEPS_PER_SPLIT: tl.constexpr, STEP: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """One tile of rows and outputs over one split of the inputs."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    split = tl.program_id(2)
    is_row, is_output = row < n_rows, output < N_OUT
    begin = split * (STEPS_PER_SPLIT * STEP)
    sums = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for base in range(begin, tl.minimum(begin + STEPS_PER_SPLIT * STEP, N_IN), STEP):
        column = base + tl.arange(0, STEP)
        is_column = column < N_IN
        # In 64 bits: 152k x 16k weights, the head of a large model, are more than 2^31.
        tile = codes_ptr + output.to(tl.int64)[None, :] * N_IN + column[:, None]
        codes = tl.load(tile, mask=is_output[None, :] & is_column[:, None], other=0.0)
        x = x_ptr + row[:, None] * N_IN + column[None, :]
        x = tl.load(x, mask=is_row[:, None] & is_column[None, :], other=0.0)
        sums = tl.dot(x.to(OPERAND), to_operand(codes), sums)
    sums *= tl.load(scale_ptr + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
    if HAS_BIAS:
        if split == 0:
            sums += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
    target = out_ptr + (split * n_rows + row).to(tl.int64)[:, None] * N_OUT + output[None, :]
    inside = is_row[:, None] & is_output[None, :]
    tl.store(target, sums.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def _gemm_8bit_wide(
    x_ptr, codes_ptr, scale_ptr, bias_ptr, out_ptr, n_rows,
    N_IN: tl.constexpr, N_OUT: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """One tile of outputs and rows over all inputs; see `_gemm_int4_wide`."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_stored = (row < n_rows)[None, :] & (output < N_OUT)[:, None]
    x_row, from_output = tl.minimum(row, n_rows - 1), tl.minimum(output, N_OUT - 1)
    k = tl.arange(0, STEP)
    x = x_ptr + x_row[None, :] * N_IN + k[:, None]
    # In 64 bits: 152k x 16k weights, the head of a large model, are more than 2^31.
    tile = codes_ptr + from_output.to(tl.int64)[:, None] * N_IN + k[None, :]
    sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for base in range(0, N_IN, STEP):
        if N_IN % STEP == 0:
            codes = tl.load(tile + base)
        else:
            codes = tl.load(tile + base, mask=(base + k < N_IN)[None, :], other=0.0)
        sums = tl.dot(to_operand(codes), load_inputs(x, base, k, N_IN, STEP), sums)
    sums *= tl.load(scale_ptr + from_output).to(tl.float32)[:, None]
    if HAS_BIAS:
        sums += tl.load(bias_ptr + from_output).to(tl.float32)[:, None]
    target = out_ptr + row.to(tl.int64)[None, :] * N_OUT + output[:, None]
    tl.store(target, sums.to(out_ptr.dtype.element_ty), mask=is_stored)


def gemm_8bit(x: Tensor, weight: Packed8bit, bias: Tensor | None, out: Tensor) -> None:
    """out.sum(0) = x W^T + bias.

    x: bf16 [rows, n_in], contiguous. bias: [n_out] or None.
    out: [n_splits, rows, n_out], fp32 (any dtype where there is one), every entry written; above
    `STREAMED_ROWS` rows [1, rows, n_out].
    The order of summation depends on the weight's shape, and on whether rows are few.
    """
    rows, (n_out, n_in) = x.shape[0], weight.codes.shape
    if rows > STREAMED_ROWS:
        tile_rows = wide_rows(n_out, rows, x.device, WIDE_STAGE)
        n_stages = min(4, WIDE_STAGE.fitting(tile_rows, x.device))
        _gemm_8bit_wide[(triton.cdiv(rows, tile_rows), triton.cdiv(n_out, WIDE_OUTPUTS))](
            x, weight.codes, weight.scale, x if bias is None else bias, out, rows,
            N_IN=n_in, N_OUT=n_out, STEP=WIDE_STEP, ROWS=tile_rows, OUTPUTS=WIDE_OUTPUTS,
            HAS_BIAS=bias is not None, num_warps=8, num_stages=n_stages, enable_fp_fusion=True,
        )  # fmt: skip
        return
    tile_rows = LEAST_ROWS if rows <= LEAST_ROWS else MAX_TILE_ROWS
    outputs = tile_outputs(n_out, x.device)
    _gemm_8bit[(triton.cdiv(rows, tile_rows), triton.cdiv(n_out, outputs), weight.n_splits)](
        x, weight.codes, weight.scale, x if bias is None else bias, out, rows,
        N_IN=n_in, N_OUT=n_out, STEP=STEP,
        STEPS_PER_SPLIT=triton.cdiv(triton.cdiv(n_in, STEP), weight.n_splits),
        ROWS=tile_rows, OUTPUTS=outputs, HAS_BIAS=bias is not None,
        num_warps=4, num_stages=4, enable_fp_fusion=True, maxnreg=MAX_REGISTERS,
    )  # fmt: skip


def gemm_8bit_reference(x: Tensor, weight: Packed8bit, bias: Tensor | None, out: Tensor) -> None:
    y = x.float() @ weight.codes.float().T * weight.scale.float()
    out.zero_()
    out[0] = (y if bias is None else y + bias.float()).to(out.dtype)
