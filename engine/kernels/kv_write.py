"""Owns the way from the merged q, k, v product into attention: norm, rotate, quantize, store.

One pass in place of six: partial sums are added, queries and keys normed and rotated, and keys and
values coded into the KV pool in whatever format it has.
"""

import torch
from torch import Tensor

from ..kv_format import KV_FORMATS

FORMATS = {"float8_e4m3fn": "fp8", "int8": "int8", "uint8": "int4"}


def kv_format_of(blocks: Tensor) -> str:
    """The pool's format, told by the dtype of its codes (see `kv_format`)."""
    return FORMATS.get(str(blocks.dtype).removeprefix("torch."), "plain")


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
    raise NotImplementedError


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
    heads = qkv.float().sum(0).view(rows, -1, head_dim)
    q, k, v = heads.split([n_heads, blocks.shape[3], blocks.shape[3]], 1)
    if q_weight is not None and k_weight is not None:
        q, k = _norm(q, q_weight, eps), _norm(k, k_weight, eps)
    at = positions.long()
    cos_rows = cos.view(-1, 1, head_dim)[at].float()
    sin_rows = sin.view(-1, 1, head_dim)[at].float()
    queries.copy_(q * cos_rows + q.roll(head_dim // 2, -1) * sin_rows)
    keys = k * cos_rows + k.roll(head_dim // 2, -1) * sin_rows
    # Rounded as a product in the compute dtype would be, then coded against the stored scale.
    vectors = torch.stack((keys, v), 1).to(queries.dtype)
    kept = slots >= 0
    stored = KV_FORMATS[kv_format_of(blocks)](head_dim, queries.dtype)
    codes, code_scales = stored.encode(vectors[kept])
    at = slots[kept].long()
    blocks.flatten(0, 1)[at] = codes.to(blocks.dtype)
    if code_scales is not None:
        scales.flatten(0, 1)[at] = code_scales.to(scales.dtype)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float()


def kv_write_bytes(qkv: Tensor, queries: Tensor, blocks: Tensor) -> int:
    raise NotImplementedError
