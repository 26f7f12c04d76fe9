"""Owns the way from the merged q, k, v product into attention: norm, rotate, quantize, store.

One pass in place of six: partial sums are added, queries and keys normed and rotated, and keys and
values coded into the KV pool in whatever format it has. `project` does the product as well.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kv_format import SMALLEST, Fp8Kv
from .launch import next_power_of_2, tile_outputs
from .operands import ROUNDER
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
    sizes,
)

FORMATS = {torch.float8_e4m3fn: "fp8", torch.int8: "int8", torch.uint8: "int4"}
LARGEST = {"plain": 1.0, "fp8": Fp8Kv.LARGEST, "int8": 127.0, "int4": 7.0}
FLOOR = tl.constexpr(SMALLEST)


def kv_format_of(blocks: Tensor) -> str:
    """The pool's format, told by the dtype of its codes (see `kv_format`)."""
    return FORMATS.get(blocks.dtype, "plain")


@triton.jit(do_not_specialize=["n_rows"])
def _kv_write(
    qkv_ptr, positions_ptr, slots_ptr, cos_ptr, sin_ptr, q_weight_ptr, k_weight_ptr, queries_ptr,
    blocks_ptr, scales_ptr, n_rows,
    N_HEADS: tl.constexpr, N_KV: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr,
    N_SPLITS: tl.constexpr, HAS_NORM: tl.constexpr, EPS: tl.constexpr, FORMAT: tl.constexpr,
    LARGEST: tl.constexpr,
):  # fmt: skip
    """One head of one row."""
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    head = tl.program_id(1)
    at = tl.arange(0, HALF_PAD)
    inside = (at < HALF)[None, :]
    low = tl.zeros((1, HALF_PAD), tl.float32)
    high = tl.zeros((1, HALF_PAD), tl.float32)
    for split in tl.static_range(N_SPLITS):
        vector = (split * n_rows + row) * (N_HEADS + 2 * N_KV) + head
        part = qkv_ptr + vector[:, None] * (2 * HALF) + at[None, :]
        low += tl.load(part, mask=inside, other=0.0).to(tl.float32)
        high += tl.load(part + HALF, mask=inside, other=0.0).to(tl.float32)
    _write_head(
        low, high, row, row >= 0, head, positions_ptr, slots_ptr, cos_ptr, sin_ptr, q_weight_ptr,
        k_weight_ptr, queries_ptr, blocks_ptr, scales_ptr,
        N_HEADS, N_KV, HALF, HALF_PAD, HAS_NORM, EPS, FORMAT, LARGEST,
    )  # fmt: skip


@triton.jit
def _write_head(
    low, high, row, is_row, head, positions_ptr, slots_ptr, cos_ptr, sin_ptr, q_weight_ptr,
    k_weight_ptr, queries_ptr, blocks_ptr, scales_ptr,
    N_HEADS: tl.constexpr, N_KV: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr,
    HAS_NORM: tl.constexpr, EPS: tl.constexpr, FORMAT: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """One head of some rows (int64), in two halves [rows, HALF_PAD], which RoPE and int4 pair."""
    size: tl.constexpr = 2 * HALF
    at = tl.arange(0, HALF_PAD)
    is_at = at < HALF
    inside = is_row[:, None] & is_at[None, :]
    if head < N_HEADS + N_KV:  # values are neither normed nor rotated
        if HAS_NORM:
            scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / size + EPS)[:, None]
            if head < N_HEADS:
                low *= scale * tl.load(q_weight_ptr + at, mask=is_at, other=0.0)[None, :]
                high *= scale * tl.load(q_weight_ptr + HALF + at, mask=is_at, other=0.0)[None, :]
            else:
                low *= scale * tl.load(k_weight_ptr + at, mask=is_at, other=0.0)[None, :]
                high *= scale * tl.load(k_weight_ptr + HALF + at, mask=is_at, other=0.0)[None, :]
        position = tl.load(positions_ptr + row, mask=is_row, other=0).to(tl.int64)
        angle = position[:, None] * size + at[None, :]
        cos_low = tl.load(cos_ptr + angle, mask=inside, other=0.0).to(tl.float32)
        cos_high = tl.load(cos_ptr + angle + HALF, mask=inside, other=0.0).to(tl.float32)
        sin_low = tl.load(sin_ptr + angle, mask=inside, other=0.0).to(tl.float32)
        sin_high = tl.load(sin_ptr + angle + HALF, mask=inside, other=0.0).to(tl.float32)
        turned = low * cos_low + high * sin_low
        high = high * cos_high + low * sin_high
        low = turned
    # Rounded as a product in the compute dtype is, before anything is measured for a scale.
    low_out = low.to(queries_ptr.dtype.element_ty)
    high_out = high.to(queries_ptr.dtype.element_ty)
    if head < N_HEADS:
        query = queries_ptr + (row * N_HEADS + head)[:, None] * size + at[None, :]
        tl.store(query, low_out, mask=inside)
        tl.store(query + HALF, high_out, mask=inside)
    else:
        slot = tl.load(slots_ptr + row, mask=is_row, other=-1).to(tl.int64)
        # k heads come before v heads, in the product as in the pool.
        vector = slot * (2 * N_KV) + head - N_HEADS
        _store_vectors(
            blocks_ptr, scales_ptr, vector, slot >= 0, low_out.to(tl.float32),
            high_out.to(tl.float32), HALF, HALF_PAD, FORMAT, LARGEST,
        )  # fmt: skip


@triton.jit
def _store_vectors(
    blocks_ptr, scales_ptr, vector, is_stored, low, high,
    HALF: tl.constexpr, HALF_PAD: tl.constexpr, FORMAT: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Code keys or values [rows]; `vector` (int64) counts heads over slots, keys and values."""
    coded = blocks_ptr.dtype.element_ty
    at = tl.arange(0, HALF_PAD)
    inside = is_stored[:, None] & (at < HALF)[None, :]
    if FORMAT != "plain":
        largest = tl.maximum(tl.max(tl.abs(low), 1), tl.max(tl.abs(high), 1))
        scale = (tl.maximum(largest, FLOOR) / LARGEST).to(scales_ptr.dtype.element_ty)
        tl.store(scales_ptr + vector, scale, mask=is_stored)
        # Coded against the scale as stored, so that its rounding costs nothing.
        low = low / scale.to(tl.float32)[:, None]
        high = high / scale.to(tl.float32)[:, None]
        if FORMAT != "fp8":
            low = tl.clamp((low + ROUNDER) - ROUNDER, -LARGEST, LARGEST)
            high = tl.clamp((high + ROUNDER) - ROUNDER, -LARGEST, LARGEST)
    if FORMAT == "int4":
        both = (low + 8.0).to(tl.int32) | ((high + 8.0).to(tl.int32) << 4)
        tl.store(blocks_ptr + vector[:, None] * HALF + at[None, :], both.to(coded), mask=inside)
    else:
        target = blocks_ptr + vector[:, None] * (2 * HALF) + at[None, :]
        tl.store(target, low.to(coded), mask=inside)
        tl.store(target + HALF, high.to(coded), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def _project(
    h_ptr, squares_ptr, codes_ptr, code_scales_ptr, bias_ptr, positions_ptr, slots_ptr, cos_ptr,
    sin_ptr, q_weight_ptr, k_weight_ptr, queries_ptr, blocks_ptr, scales_ptr, sums_ptr, tickets_ptr,
    n_rows,
    N_IN: tl.constexpr, N_OUT: tl.constexpr, STEP: tl.constexpr, STEPS_PER_SPLIT: tl.constexpr,
    N_SPLITS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr,
    N_SQUARES: tl.constexpr, N_SQUARES_PAD: tl.constexpr, HAS_BIAS: tl.constexpr,
    N_HEADS: tl.constexpr, N_KV: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr,
    HAS_NORM: tl.constexpr, EPS: tl.constexpr, FORMAT: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """One tile of rows and outputs over one split; the last of a head turns and stores it."""
    begin_early()
    first = tl.program_id(0) * ROWS
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    split = tl.program_id(2)
    row = first + tl.arange(0, ROWS)
    sums = product_tile(
        h_ptr, codes_ptr, code_scales_ptr, row, output, split, n_rows,
        N_IN, N_OUT, STEP, STEPS_PER_SPLIT, GROUP, ROWS, OUTPUTS,
    )  # fmt: skip
    leave(sums_ptr, sums, row, output, split, n_rows, N_OUT)
    size: tl.constexpr = 2 * HALF
    n_heads: tl.constexpr = N_HEADS + 2 * N_KV
    head = tl.program_id(1) * OUTPUTS // size
    ticket = tl.program_id(0) * n_heads + head
    if is_last(tickets_ptr, ticket, size // OUTPUTS * N_SPLITS):
        at = tl.arange(0, HALF_PAD)
        is_at = at < HALF
        entry = head * size + at
        for begin in range(first, tl.minimum(first + ROWS, n_rows), EPILOGUE_ROWS):
            some = (begin + tl.arange(0, EPILOGUE_ROWS)).to(tl.int64)
            is_row = some < n_rows
            inside = is_row[:, None] & is_at[None, :]
            low = collect(sums_ptr, some, entry, inside, n_rows, N_OUT, N_SPLITS)
            high = collect(sums_ptr, some, entry + HALF, inside, n_rows, N_OUT, N_SPLITS)
            scale = row_scale(squares_ptr, some, is_row, N_SQUARES, N_SQUARES_PAD, N_IN, EPS)
            low *= scale[:, None]
            high *= scale[:, None]
            if HAS_BIAS:
                bias = bias_ptr + entry
                low += tl.load(bias, mask=is_at, other=0.0).to(tl.float32)[None, :]
                high += tl.load(bias + HALF, mask=is_at, other=0.0).to(tl.float32)[None, :]
            _write_head(
                low, high, some, is_row, head, positions_ptr, slots_ptr, cos_ptr, sin_ptr,
                q_weight_ptr, k_weight_ptr, queries_ptr, blocks_ptr, scales_ptr,
                N_HEADS, N_KV, HALF, HALF_PAD, HAS_NORM, EPS, FORMAT, LARGEST,
            )  # fmt: skip


def kv_write(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    queries: Tensor,
    blocks: Tensor,
    scales: Tensor,
) -> None:
    """Split qkv into queries (to `queries`) and keys and values (into the pool).

    qkv: [n_splits, rows, (n_heads + 2 n_kv_heads) * head_dim]: q heads, then k, then v.
    positions: int32 [rows], into cos and sin. slots: int32 [rows], block * 16 + offset; a row whose
    slot is negative is padding: it stores nothing.
    cos, sin: [n_positions, head_dim] (or [n_positions, 1, head_dim]) as `model.Rope` makes them:
    sin negated in its first half.
    q_weight, k_weight: fp32 [head_dim] of the QK-norm, both or neither; eps is theirs.
    queries: [rows, n_heads, head_dim], written.
    blocks, scales: one layer of the pool, [n_blocks, 16, 2, n_kv_heads, code_size] and
    [n_blocks, 16, 2, n_kv_heads] (empty for the plain format).
    """
    rows, n_heads, _ = queries.shape
    has_norm = q_weight is not None
    _kv_write[(rows, n_heads + 2 * blocks.shape[3])](
        qkv, positions, slots, cos, sin,
        q_weight if has_norm else cos, k_weight if has_norm else cos,
        queries, blocks, scales if scales.numel() else blocks, rows,
        N_SPLITS=qkv.shape[0], HAS_NORM=has_norm, EPS=eps, **_heads(queries, blocks),
        num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip


def _heads(queries: Tensor, blocks: Tensor) -> dict[str, Any]:
    """What kernels are told of heads and of how the pool stores them."""
    (_, n_heads, head_dim), kv_format = queries.shape, kv_format_of(blocks)
    half = head_dim // 2
    return {
        "N_HEADS": n_heads, "N_KV": blocks.shape[3], "HALF": half,
        "HALF_PAD": next_power_of_2(half), "FORMAT": kv_format, "LARGEST": LARGEST[kv_format],
    }  # fmt: skip


def kv_write_reference(
    qkv: Tensor,
    positions: Tensor,
    slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    queries: Tensor,
    blocks: Tensor,
    scales: Tensor,
) -> None:
    rows, n_heads, head_dim = queries.shape
    n_kv = blocks.shape[3]
    q, k, v = qkv.float().sum(0).view(rows, -1, head_dim).split([n_heads, n_kv, n_kv], 1)
    if q_weight is not None and k_weight is not None:
        q, k = _norm(q, q_weight, eps), _norm(k, k_weight, eps)
    cos_rows = cos.view(-1, 1, head_dim)[positions.long()].float()
    sin_rows = sin.view(-1, 1, head_dim)[positions.long()].float()
    queries.copy_(q * cos_rows + q.roll(head_dim // 2, -1) * sin_rows)
    k = k * cos_rows + k.roll(head_dim // 2, -1) * sin_rows
    vectors = torch.stack((k, v), 1).to(queries.dtype).float()[slots >= 0]
    at = slots[slots >= 0].long()
    kv_format = kv_format_of(blocks)
    if kv_format == "plain":
        blocks.flatten(0, 1)[at] = vectors.to(blocks.dtype)
        return
    code_scales = vectors.abs().amax(-1).clamp_min(SMALLEST) / LARGEST[kv_format]
    scales.flatten(0, 1)[at] = code_scales.to(scales.dtype)
    codes = vectors / code_scales.to(scales.dtype).float()[..., None]
    if kv_format != "fp8":
        codes = codes.round().clamp(-LARGEST[kv_format], LARGEST[kv_format])
    if kv_format == "int4":
        low, high = (codes + 8).to(torch.uint8).chunk(2, -1)
        codes = low | (high << 4)
    blocks.flatten(0, 1)[at] = codes.to(blocks.dtype)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float()


def project(
    h: Tensor, squares: Tensor, weight: Streamed, bias: Tensor | None, positions: Tensor,
    slots: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor | None, k_weight: Tensor | None,
    eps: float, queries: Tensor, blocks: Tensor, scales: Tensor, sums: Tensor, tickets: Tensor,
) -> None:  # fmt: skip
    """The q, k, v product of a norm's rows, then as `kv_write`, in one launch.

    h: [rows, n_in], up to `STREAMED_ROWS` of them, times the norm's weight and not yet scaled;
    squares: fp32 [rows, parts], sums of squares of the residual: see `halves.Residual`. eps: of all
    norms. bias: [n_out] or None.
    sums: fp32 [n_splits, rows, n_out], workspace. tickets: int32, zeros before and after; one a
    head for each tile of rows.
    """
    rows, n_out, head_dim = len(h), sizes(weight)[0], queries.shape[2]
    has_norm, n_squares = q_weight is not None, squares.shape[1]
    # Tiles that no head shares with another; of powers of 2, as all tiles are.
    outputs = min(tile_outputs(n_out, h.device), head_dim & -head_dim)
    how = layout(weight, rows, outputs)
    _project[(triton.cdiv(rows, how["ROWS"]), n_out // outputs, weight.n_splits)](
        h, squares, *operands(weight), h if bias is None else bias, positions, slots, cos, sin,
        q_weight if has_norm else cos, k_weight if has_norm else cos,
        queries, blocks, scales if scales.numel() else blocks, sums, tickets, rows,
        N_SQUARES=n_squares, N_SQUARES_PAD=next_power_of_2(n_squares), HAS_BIAS=bias is not None,
        HAS_NORM=has_norm, EPS=eps, **_heads(queries, blocks), **how,
    )  # fmt: skip


def project_reference(
    h: Tensor, squares: Tensor, weight: Streamed, bias: Tensor | None, positions: Tensor,
    slots: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor | None, k_weight: Tensor | None,
    eps: float, queries: Tensor, blocks: Tensor, scales: Tensor, sums: Tensor, tickets: Tensor,
) -> None:  # fmt: skip
    scale = (squares.sum(1, keepdim=True) / h.shape[1] + eps).rsqrt()
    qkv = product_reference(h, weight) * scale
    kv_write_reference(
        (qkv if bias is None else qkv + bias.float())[None], positions, slots, cos, sin, q_weight,
        k_weight, eps, queries, blocks, scales,
    )  # fmt: skip
