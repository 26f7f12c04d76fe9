"""Owns the way from the merged q, k, v product into attention: norm, rotate, quantize, store.

One pass in place of six: partial sums are added, queries and keys normed and rotated, and keys and
values coded into the KV pool in whatever format it has.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kv_format import SMALLEST, Fp8Kv
from .launch import next_power_of_2
from .operands import ROUNDER

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
    """One head of one row, in two halves, which RoPE pairs."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    size: tl.constexpr = 2 * HALF
    at = tl.arange(0, HALF_PAD)
    inside = at < HALF
    low = tl.zeros((HALF_PAD,), tl.float32)
    high = tl.zeros((HALF_PAD,), tl.float32)
    for split in tl.static_range(N_SPLITS):
        vector = (split * n_rows + row) * (N_HEADS + 2 * N_KV) + head
        part = qkv_ptr + vector * size + at
        low += tl.load(part, mask=inside, other=0.0).to(tl.float32)
        high += tl.load(part + HALF, mask=inside, other=0.0).to(tl.float32)
    if head < N_HEADS + N_KV:  # values are neither normed nor rotated
        if HAS_NORM:
            scale = tl.rsqrt((tl.sum(low * low, 0) + tl.sum(high * high, 0)) / size + EPS)
            if head < N_HEADS:
                low *= scale * tl.load(q_weight_ptr + at, mask=inside, other=0.0)
                high *= scale * tl.load(q_weight_ptr + HALF + at, mask=inside, other=0.0)
            else:
                low *= scale * tl.load(k_weight_ptr + at, mask=inside, other=0.0)
                high *= scale * tl.load(k_weight_ptr + HALF + at, mask=inside, other=0.0)
        angle = tl.load(positions_ptr + row).to(tl.int64) * size + at
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
        query = queries_ptr + (row * N_HEADS + head) * size + at
        tl.store(query, low_out, mask=inside)
        tl.store(query + HALF, high_out, mask=inside)
    else:
        slot = tl.load(slots_ptr + row).to(tl.int64)
        if slot >= 0:
            # k heads come before v heads, in the product as in the pool.
            _store_vector(
                blocks_ptr, scales_ptr, slot * (2 * N_KV) + head - N_HEADS, low_out.to(tl.float32),
                high_out.to(tl.float32), HALF, HALF_PAD, FORMAT, LARGEST,
            )  # fmt: skip


@triton.jit
def _store_vector(
    blocks_ptr, scales_ptr, vector, low, high,
    HALF: tl.constexpr, HALF_PAD: tl.constexpr, FORMAT: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Code a key or value; `vector` (int64) counts heads over slots, keys and values."""
    coded = blocks_ptr.dtype.element_ty
    at = tl.arange(0, HALF_PAD)
    inside = at < HALF
    if FORMAT != "plain":
        largest = tl.maximum(tl.max(tl.abs(low), 0), tl.max(tl.abs(high), 0))
        scale = (tl.maximum(largest, FLOOR) / LARGEST).to(scales_ptr.dtype.element_ty)
        tl.store(scales_ptr + vector, scale)
        # Coded against the scale as stored, so that its rounding costs nothing.
        low = low / scale.to(tl.float32)
        high = high / scale.to(tl.float32)
        if FORMAT != "fp8":
            low = tl.clamp((low + ROUNDER) - ROUNDER, -LARGEST, LARGEST)
            high = tl.clamp((high + ROUNDER) - ROUNDER, -LARGEST, LARGEST)
    if FORMAT == "int4":
        both = (low + 8.0).to(tl.int32) | ((high + 8.0).to(tl.int32) << 4)
        tl.store(blocks_ptr + vector * HALF + at, both.to(coded), mask=inside)
    else:
        target = blocks_ptr + vector * (2 * HALF) + at
        tl.store(target, low.to(coded), mask=inside)
        tl.store(target + HALF, high.to(coded), mask=inside)


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
    (rows, n_heads, head_dim), n_kv, kv_format = (
        queries.shape,
        blocks.shape[3],
        kv_format_of(blocks),
    )
    half, has_norm = head_dim // 2, q_weight is not None
    _kv_write[(rows, n_heads + 2 * n_kv)](
        qkv, positions, slots, cos, sin,
        q_weight if has_norm else cos, k_weight if has_norm else cos,
        queries, blocks, scales if scales.numel() else blocks, rows,
        N_HEADS=n_heads, N_KV=n_kv, HALF=half, HALF_PAD=next_power_of_2(half),
        N_SPLITS=qkv.shape[0], HAS_NORM=has_norm, EPS=eps, FORMAT=kv_format,
        LARGEST=LARGEST[kv_format], num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip


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
