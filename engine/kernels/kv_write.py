"""Owns the way from the merged q, k, v product into attention: norm, rotate, quantize, store.

One pass in place of six: partial sums are added, queries and keys normed and rotated, and keys and
values coded into the KV pool in bf16 or int8.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kv_format import LARGEST, SMALLEST
from .launch import next_power_of_2
from .operands import ROUNDER

FLOOR = tl.constexpr(SMALLEST)


def is_coded(blocks: Tensor) -> bool:
    """Whether a pool's keys and values are int8 codes with scales (see `kv_format.Int8Kv`)."""
    return blocks.dtype == torch.int8


@triton.jit(do_not_specialize=["n_rows"])
def _kv_write(
    qkv_ptr, positions_ptr, slots_ptr, cos_ptr, sin_ptr, q_weight_ptr, k_weight_ptr, queries_ptr,
    blocks_ptr, scales_ptr, n_rows,
    N_HEADS: tl.constexpr, N_KV: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr,
    N_SPLITS: tl.constexpr, HAS_NORM: tl.constexpr, EPS: tl.constexpr, IS_CODED: tl.constexpr,
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
            vector = slot * (2 * N_KV) + head - N_HEADS
            low, high = low_out.to(tl.float32), high_out.to(tl.float32)
            if IS_CODED:
                largest = tl.maximum(tl.max(tl.abs(low), 0), tl.max(tl.abs(high), 0))
                scale = (tl.maximum(largest, FLOOR) / LARGEST).to(scales_ptr.dtype.element_ty)
                tl.store(scales_ptr + vector, scale)
                # Coded against the scale as stored, so that its rounding costs nothing.
                low = (low / scale.to(tl.float32) + ROUNDER) - ROUNDER
                high = (high / scale.to(tl.float32) + ROUNDER) - ROUNDER
                low = tl.clamp(low, -LARGEST, LARGEST)
                high = tl.clamp(high, -LARGEST, LARGEST)
            target = blocks_ptr + vector * size + at
            tl.store(target, low.to(blocks_ptr.dtype.element_ty), mask=inside)
            tl.store(target + HALF, high.to(blocks_ptr.dtype.element_ty), mask=inside)


def kv_write(
    qkv: Tensor, positions: Tensor, slots: Tensor, cos: Tensor, sin: Tensor,
    q_weight: Tensor | None, k_weight: Tensor | None, eps: float,
    queries: Tensor, blocks: Tensor, scales: Tensor,
) -> None:  # fmt: skip
    """Split qkv into queries (to `queries`) and keys and values (into the pool).

    qkv: [n_splits, rows, (n_heads + 2 n_kv_heads) * head_dim]: q heads, then k, then v.
    positions: int32 [rows], into cos and sin. slots: int32 [rows], block * 16 + offset; a row whose
    slot is negative is padding: it stores nothing.
    cos, sin: [n_positions, head_dim] (or [n_positions, 1, head_dim]) as `model.Rope` makes them:
    sin negated in its first half.
    q_weight, k_weight: fp32 [head_dim] of the QK-norm, both or neither; eps is theirs.
    queries: [rows, n_heads, head_dim], written.
    blocks, scales: one layer of the pool, [n_blocks, 16, 2, n_kv_heads, head_dim] and
    [n_blocks, 16, 2, n_kv_heads] (empty for the plain format).
    """
    (rows, n_heads, head_dim), n_kv = queries.shape, blocks.shape[3]
    half, has_norm = head_dim // 2, q_weight is not None
    _kv_write[(rows, n_heads + 2 * n_kv)](
        qkv, positions, slots, cos, sin,
        q_weight if has_norm else cos, k_weight if has_norm else cos,
        queries, blocks, scales if scales.numel() else blocks, rows,
        N_HEADS=n_heads, N_KV=n_kv, HALF=half, HALF_PAD=next_power_of_2(half),
        N_SPLITS=qkv.shape[0], HAS_NORM=has_norm, EPS=eps, IS_CODED=is_coded(blocks),
        LARGEST=LARGEST, num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip


def kv_write_reference(
    qkv: Tensor, positions: Tensor, slots: Tensor, cos: Tensor, sin: Tensor,
    q_weight: Tensor | None, k_weight: Tensor | None, eps: float,
    queries: Tensor, blocks: Tensor, scales: Tensor,
) -> None:  # fmt: skip
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
    if is_coded(blocks):
        code_scales = (vectors.abs().amax(-1).clamp_min(SMALLEST) / LARGEST).to(scales.dtype)
        scales.flatten(0, 1)[at] = code_scales
        vectors = (vectors / code_scales.float()[..., None]).round().clamp(-LARGEST, LARGEST)
    blocks.flatten(0, 1)[at] = vectors.to(blocks.dtype)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float()
