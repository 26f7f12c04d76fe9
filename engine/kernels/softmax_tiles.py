"""Owns the inner loop of paged attention: one tile of queries over a stretch of the KV pool.

Decode and prefill share it, so that a row sums the same tiles in the same order in both.
"""

import triton
import triton.language as tl

from .launch import OPERAND
from .operands import to_operand

BLOCK_TOKENS = tl.constexpr(16)
LOG2_E = 1.4426950408889634


@triton.jit
def load_queries(
    queries_ptr, start, count, first, kv_head,
    N_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The query rows of one piece: all heads that share the KV head, then the next position.

    Returns the queries [ROWS, DIM_PAD], each row's position (-1 for padding: sees nothing), and the
    index (row * N_HEADS + head, int64) of each row's head.
    """
    at = tl.arange(0, ROWS)
    offset = at // GROUP
    is_row = offset < count
    vector = (start + offset).to(tl.int64) * N_HEADS + kv_head * GROUP + at % GROUP
    d = tl.arange(0, DIM_PAD)
    inside = is_row[:, None] & (d < DIM)[None, :]
    query = queries_ptr + vector[:, None] * DIM + d[None, :]
    queries = tl.load(query, mask=inside, other=0.0).to(OPERAND)
    return queries, tl.where(is_row, first + offset, -1), vector


@triton.jit
def _load_scales(scales_ptr, vector, exists):
    """The scales of some vectors, fp32. A bf16 comes in the word it shares with its neighbour's:
    nothing below four bytes can be loaded ahead of its use, and every tile would wait."""
    if scales_ptr.dtype.element_ty == tl.bfloat16:
        words_ptr = scales_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
        words = tl.load(words_ptr + (vector >> 1), mask=exists, other=0)
        is_high = (vector & 1).to(tl.int32)
        scales = ((words >> (16 * is_high)) << 16).to(tl.float32, bitcast=True)
    else:
        scales = tl.load(scales_ptr + vector, mask=exists, other=0.0).to(tl.float32)
    return scales


@triton.jit
def walk_tiles(
    queries, positions, blocks_ptr, scales_ptr, table_ptr, kv_head, begin, end,
    N_KV: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr, WINDOW: tl.constexpr, IS_CODED: tl.constexpr, SCALE: tl.constexpr,
    SINCE: tl.constexpr,
):  # fmt: skip
    """Softmax-weighted sums over the tokens begin..end (begin a multiple of TILE).

    SCALE is that of the scores, times log2(e). Returns (sums [ROWS, DIM_PAD], largest score [ROWS]
    in log2, sum of weights relative to it).
    """
    d = tl.arange(0, DIM_PAD)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, DIM_PAD), tl.float32)
    for tile in range(begin, end, TILE):
        token = tile + tl.arange(0, TILE)
        # Slots past the end hold whatever was there before, NaN too: they are never loaded.
        exists = token < end
        block = tl.load(table_ptr + token // BLOCK_TOKENS, mask=exists, other=0)
        # In 64 bits: a pool of 128k tokens x 8 heads x 2 x 128 has more entries than 2^31 can say.
        vector = (block.to(tl.int64) * BLOCK_TOKENS + token % BLOCK_TOKENS) * (2 * N_KV) + kv_head
        key = blocks_ptr + (vector * DIM)[None, :] + d[:, None]
        keys = tl.load(key, mask=(d < DIM)[:, None] & exists[None, :], other=0.0)
        scores = tl.dot(queries, to_operand(keys)) * SCALE
        if IS_CODED:
            scores *= _load_scales(scales_ptr, vector, exists)[None, :]
        seen = token[None, :] <= positions[:, None]
        if WINDOW > 0:
            seen &= token[None, :] > positions[:, None] - WINDOW
        if SINCE > 0:
            seen &= token[None, :] >= SINCE
        scores = tl.where(seen, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        # A row that has seen nothing yet: -inf minus -inf would be NaN.
        offset = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp2(scores - offset[:, None])
        decay = tl.exp2(best - offset)
        total = total * decay + tl.sum(weights, 1)
        if IS_CODED:
            weights *= _load_scales(scales_ptr, vector + N_KV, exists)[None, :]
        value = blocks_ptr + ((vector + N_KV) * DIM)[:, None] + d[None, :]
        values = tl.load(value, mask=exists[:, None] & (d < DIM)[None, :], other=0.0)
        sums = tl.dot(weights.to(OPERAND), to_operand(values), sums * decay[:, None])
        best = new_best
    return sums, best, total
