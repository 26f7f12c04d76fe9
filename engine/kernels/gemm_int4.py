"""Owns y = x W with 4-bit weights and 16-bit activations.

A step of few rows (decode and verify) takes as long as its weights take to stream, so the layout is
made for reading: see `PackedInt4`. Many rows (a prompt's) are bound by arithmetic: there the
weights are the left operand, and go from memory through registers to the tensor cores.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..load.packed import Int4Weight
from .launch import (
    IS_COMPILED,
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
from .operands import load_inputs

MAX_HALF = 64  # compiled for sm_90, 128 at 32 rows takes more registers than a thread has

# Four bytes ($4) to their low ($0, $1) and high ($2, $3) codes, less 8: the bits of a code below
# those of 128.0 (0x4300) are the number 128 + code, and 136 (0xc308 with its sign) is taken off
# exactly. Two codes an instruction, where a conversion takes one, on the unit with fewest lanes.
LESS_8 = """
    .reg .b32 pair0, pair1, one, less;
    mov.b32 one, 0x3f803f80;
    mov.b32 less, 0xc308c308;
    prmt.b32 pair0, $4, 0, 0x4140;
    prmt.b32 pair1, $4, 0, 0x4342;
    lop3.b32 $0, pair0, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 $1, pair1, 0x000f000f, 0x43004300, 0xea;
    shr.u32 pair0, pair0, 4;
    shr.u32 pair1, pair1, 4;
    lop3.b32 $2, pair0, 0x000f000f, 0x43004300, 0xea;
    lop3.b32 $3, pair1, 0x000f000f, 0x43004300, 0xea;
    fma.rn.bf16x2 $0, $0, one, less;
    fma.rn.bf16x2 $1, $1, one, less;
    fma.rn.bf16x2 $2, $2, one, less;
    fma.rn.bf16x2 $3, $3, one, less;
"""
# Four bytes ($4), and the word of scale and zero (bf16) of each one's low ($5 to $8) and high code
# ($9 to $12), to their weights as bf16: the code less 8 is exact, one fused operation rounds once.
# Where the four share an output their words are one register, and the compiler has the same
# permutation once. Scaling sums instead of weights would need the sum of the inputs too, and an
# exchange between threads for it.
UNPACK = tl.constexpr(
    "{"
    + LESS_8
    + """
    .reg .b32 scale, zero;
    prmt.b32 scale, $5, $6, 0x5410;
    prmt.b32 zero, $5, $6, 0x7632;
    fma.rn.bf16x2 $0, $0, scale, zero;
    prmt.b32 scale, $7, $8, 0x5410;
    prmt.b32 zero, $7, $8, 0x7632;
    fma.rn.bf16x2 $1, $1, scale, zero;
    prmt.b32 scale, $9, $10, 0x5410;
    prmt.b32 zero, $9, $10, 0x7632;
    fma.rn.bf16x2 $2, $2, scale, zero;
    prmt.b32 scale, $11, $12, 0x5410;
    prmt.b32 zero, $11, $12, 0x7632;
    fma.rn.bf16x2 $3, $3, scale, zero;
}
"""
)


@dataclass(frozen=True, slots=True)
class PackedInt4:
    """w = (code - 8) * scale + zero, two codes a byte, in the order the kernel reads them.

    codes: uint8 [n_pairs, n_out, half]. Byte (p, n, i) holds input 2 p half + i of output n in its
        low 4 bits and the input `half` further in its high 4: each half of a pair lies in one scale
        group, and the rows of a tile of outputs are contiguous. Inputs past n_in, in the last pair,
        have code 0 and no group.
    scales: int32 [n_groups, n_out], the bits of the scale (bf16) below those of the zero (bf16):
        one word is the least that a kernel can load ahead of its use.
    n_splits: partial sums over the inputs that a product leaves to its consumer.
    """

    codes: Tensor
    scales: Tensor
    n_in: int
    n_out: int
    half: int
    group: int
    n_splits: int

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes


def pack_int4(weight: Int4Weight) -> PackedInt4:
    """The canonical weight in the kernel's layout, on the same device. Done once, at load.

    Raises: ValueError where the group is not a multiple of 16.
    """
    n_out, n_in = weight.codes.shape
    group = n_in // weight.scale.shape[1]
    half = min(group & -group, MAX_HALF)
    if half < LEAST_ROWS:
        raise ValueError(f"expected int4 groups of a multiple of {LEAST_ROWS}, found {group}")
    n_pairs = -(-n_in // (2 * half))
    codes = torch.nn.functional.pad(weight.codes.to(torch.uint8), (0, n_pairs * 2 * half - n_in))
    low, high = codes.view(n_out, n_pairs, 2, half).unbind(2)
    scale_zero = torch.stack((weight.scale.bfloat16(), weight.zero.bfloat16()), -1)
    return PackedInt4(
        (low | (high << 4)).transpose(0, 1).contiguous(),
        scale_zero.view(torch.int32)[..., 0].T.contiguous(),
        n_in,
        n_out,
        half,
        group,
        choose_splits(n_out, n_pairs, weight.codes.device),
    )


def unpack_int4(weight: PackedInt4) -> Tensor:
    """The weights as fp32 [n_out, n_in]."""
    codes = torch.stack((weight.codes & 15, weight.codes >> 4), 1).flatten(0, 1).float() - 8
    codes = codes.transpose(0, 1).flatten(1)[:, : weight.n_in]
    scale, zero = weight.scales.T[..., None].contiguous().view(torch.bfloat16).float().unbind(-1)
    scale, zero = (part.repeat_interleave(weight.group, 1) for part in (scale, zero))
    return codes * scale + zero


@triton.jit
def _weights(bytes_tile, low_scales, high_scales):
    """The weights of each byte's low and high code as operands; scales broadcast to the tile."""
    if IS_COMPILED:
        low, high = tl.inline_asm_elementwise(
            UNPACK, "=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r", [bytes_tile, low_scales, high_scales],
            dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4,
        )  # fmt: skip
    else:
        low = ((bytes_tile & 15).to(OPERAND) - 8) * _scale(low_scales) + _zero(low_scales)
        high = ((bytes_tile >> 4).to(OPERAND) - 8) * _scale(high_scales) + _zero(high_scales)
    return low, high


@triton.jit
def _scale(scales):
    return (scales << 16).to(tl.float32, bitcast=True)


@triton.jit
def _zero(scales):
    return (scales & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _scales(
    scales_ptr, pair, output, N_IN: tl.constexpr, N_OUT: tl.constexpr, HALF: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """The scale words of both halves of a pair, for some outputs that there are."""
    at = (2 * pair * HALF // GROUP) * N_OUT + output
    low = tl.load(scales_ptr + at)
    if GROUP % (2 * HALF) == 0:
        high = low
    else:
        # The last pair's high half may lie past the inputs: it meets zeros, and any group will do.
        at = tl.minimum((2 * pair * HALF + HALF) // GROUP, N_IN // GROUP - 1) * N_OUT + output
        high = tl.load(scales_ptr + at)
    return low, high


@triton.jit(do_not_specialize=["n_rows"])
def _gemm_int4(
    x_ptr, codes_ptr, scales_ptr, bias_ptr, out_ptr, n_rows,
    N_IN: tl.constexpr, N_OUT: tl.constexpr, HALF: tl.constexpr, GROUP: tl.constexpr,
    PAIRS_PER_SPLIT: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """One tile of rows and outputs over one split of the inputs.

    Tiles of rows are the fastest to change: those that read the same weights run side by side.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    split = tl.program_id(2)
    k = tl.arange(0, HALF)
    is_row, is_output = row < n_rows, output < N_OUT
    sums = tl.zeros((ROWS, OUTPUTS), tl.float32)
    n_pairs: tl.constexpr = (N_IN + 2 * HALF - 1) // (2 * HALF)
    begin = split * PAIRS_PER_SPLIT
    for pair in range(begin, tl.minimum(begin + PAIRS_PER_SPLIT, n_pairs)):
        # 32 bits count the bytes of any matrix of up to 4 billion weights.
        tile = codes_ptr + (pair * N_OUT + output)[None, :] * HALF + k[:, None]
        low_scales, high_scales = _scales(
            scales_ptr, pair, tl.minimum(output, N_OUT - 1), N_IN, N_OUT, HALF, GROUP
        )
        codes = tl.load(tile, mask=is_output[None, :], other=0)
        low, high = _weights(codes, low_scales[None, :], high_scales[None, :])
        column = pair * (2 * HALF) + k
        x = x_ptr + row[:, None] * N_IN + column[None, :]
        inside = is_row[:, None] & (column < N_IN)[None, :]
        sums = tl.dot(tl.load(x, mask=inside, other=0.0).to(OPERAND), low, sums)
        inside = is_row[:, None] & (column + HALF < N_IN)[None, :]
        sums = tl.dot(tl.load(x + HALF, mask=inside, other=0.0).to(OPERAND), high, sums)
    if HAS_BIAS:
        if split == 0:
            sums += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
    target = out_ptr + (split * n_rows + row).to(tl.int64)[:, None] * N_OUT + output[None, :]
    inside = is_row[:, None] & is_output[None, :]
    tl.store(target, sums.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def _gemm_int4_wide(
    x_ptr, codes_ptr, scales_ptr, bias_ptr, out_ptr, n_rows,
    N_IN: tl.constexpr, N_OUT: tl.constexpr, N_PAIRS: tl.constexpr, HALF: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """One tile of outputs and rows over all inputs.

    As the left operand weights stay in the registers that unpacked them, and those of the next
    inputs are unpacked while the tensor cores still multiply. What lies past the last row or output
    is read from that one instead, and not stored: masks would take registers of the sums.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_stored = (row < n_rows)[None, :] & (output < N_OUT)[:, None]
    x_row, from_output = tl.minimum(row, n_rows - 1), tl.minimum(output, N_OUT - 1)
    k = tl.arange(0, HALF)
    x = x_ptr + x_row[None, :] * N_IN + k[:, None]
    sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for pair in range(N_PAIRS):
        tile = codes_ptr + (pair * N_OUT + from_output)[:, None] * HALF + k[None, :]
        low_scales, high_scales = _scales(scales_ptr, pair, from_output, N_IN, N_OUT, HALF, GROUP)
        low, high = _weights(tl.load(tile), low_scales[:, None], high_scales[:, None])
        column = pair * (2 * HALF)
        sums = tl.dot(low, load_inputs(x, column, k, N_IN, 2 * HALF), sums)
        sums = tl.dot(high, load_inputs(x, column + HALF, k, N_IN, 2 * HALF), sums)
    if HAS_BIAS:
        sums += tl.load(bias_ptr + from_output).to(tl.float32)[:, None]
    target = out_ptr + row.to(tl.int64)[None, :] * N_OUT + output[:, None]
    tl.store(target, sums.to(out_ptr.dtype.element_ty), mask=is_stored)


def gemm_int4(x: Tensor, weight: PackedInt4, bias: Tensor | None, out: Tensor) -> None:
    """out.sum(0) = x W^T + bias.

    x: bf16 [rows, n_in], contiguous. bias: [n_out] or None.
    out: [n_splits, rows, n_out], fp32 (any dtype where there is one), every entry written; above
    `STREAMED_ROWS` rows [1, rows, n_out].
    The order of summation depends on the weight's shape, and on whether rows are few: a row's
    result is the same whatever rows stand beside it.
    """
    rows, n_pairs = x.shape[0], weight.codes.shape[0]
    if rows > STREAMED_ROWS:
        stage = WideStage(row_bytes=2 * 2 * weight.half, output_bytes=weight.half)
        tile_rows = wide_rows(weight.n_out, rows, x.device, stage)
        n_stages = min(3, stage.fitting(tile_rows, x.device))
        _gemm_int4_wide[(triton.cdiv(rows, tile_rows), triton.cdiv(weight.n_out, WIDE_OUTPUTS))](
            x, weight.codes, weight.scales, x if bias is None else bias, out, rows,
            N_IN=weight.n_in, N_OUT=weight.n_out, N_PAIRS=n_pairs, HALF=weight.half,
            GROUP=weight.group, ROWS=tile_rows, OUTPUTS=WIDE_OUTPUTS, HAS_BIAS=bias is not None,
            num_warps=8, num_stages=n_stages, enable_fp_fusion=True,
        )  # fmt: skip
        return
    tile_rows = LEAST_ROWS if rows <= LEAST_ROWS else MAX_TILE_ROWS
    outputs = tile_outputs(weight.n_out, x.device)
    _gemm_int4[(triton.cdiv(rows, tile_rows), triton.cdiv(weight.n_out, outputs), weight.n_splits)](
        x, weight.codes, weight.scales, x if bias is None else bias, out, rows,
        N_IN=weight.n_in, N_OUT=weight.n_out, HALF=weight.half, GROUP=weight.group,
        PAIRS_PER_SPLIT=triton.cdiv(n_pairs, weight.n_splits),
        ROWS=tile_rows, OUTPUTS=outputs, HAS_BIAS=bias is not None,
        num_warps=4, num_stages=6, enable_fp_fusion=True,  # 4 KiB a stage: see `choose_splits`
        maxnreg=MAX_REGISTERS,
    )  # fmt: skip


def gemm_int4_reference(x: Tensor, weight: PackedInt4, bias: Tensor | None, out: Tensor) -> None:
    y = x.float() @ unpack_int4(weight).T
    out.zero_()
    out[0] = (y if bias is None else y + bias.float()).to(out.dtype)
