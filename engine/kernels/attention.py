"""Owns paged attention: decode and verification (few rows, KV split), and prefill (many rows).

Both walk the same tiles of the same pool; they differ in who shares the work. `SPLIT_TOKENS` of KV
at absolute positions make one partial result, so that what a row sums does not depend on what else
is in the step.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kv_format import KV_FORMATS
from ..types import BLOCK_TOKENS
from .kv_write import is_coded
from .launch import LEAST_ROWS, OPERAND, n_processors, next_power_of_2
from .operands import to_operand

_BLOCK_TOKENS = tl.constexpr(BLOCK_TOKENS)
LOG2_E = 1.4426950408889634
SPLIT_TOKENS = 128  # at 8 KV heads and 4k tokens 256 programs per sequence: two per processor
MAX_SPLIT_TILE = 64  # query rows (of all heads of a group) of a piece
# By registers three fit side by side; of codes, which are converted, two: those take two turns.
PROGRAMS_PER_PROCESSOR = 3
MERGED_SPLITS = 32
PREFILL_ROWS = 128  # query rows (of all heads of a group) in one tile: two warp groups of 64


@dataclass(frozen=True, slots=True)
class Pieces:
    """The rows of a step in pieces, each of one sequence's neighbouring rows; int32 on the device.

    starts: [n] first row of each piece. counts: [n] its rows; 0 for padding.
    firsts: [n] position of its first row; the row at `firsts + i` sees positions 0..firsts + i.
    owners: [n] its sequence's line of `tables`.
    tables: [sequences, max_blocks] block ids; entries past those in use are never read.
    """

    starts: Tensor
    counts: Tensor
    firsts: Tensor
    owners: Tensor
    tables: Tensor


@dataclass(frozen=True, slots=True)
class Partials:
    """Workspace of `paged_attention`: what each split of the KV gave each row and head.

    sums: fp32 [rows, n_heads, n_splits, head_dim]; weights: fp32 [rows, n_heads, n_splits, 2]
    (the largest score, in log2, and the sum of weights relative to it).
    """

    sums: Tensor
    weights: Tensor

    @classmethod
    def allocate(
        cls, rows: int, n_heads: int, head_dim: int, max_tokens: int, device: torch.device
    ) -> "Partials":
        """Allocate for up to `rows` rows and sequences of up to `max_tokens`; reused by every
        layer.

        Of 128 rows, 32 heads of 128 and 16,384 tokens: 0.27 GB, which the pool's budget leaves out.
        """
        n_splits = -(-max_tokens // SPLIT_TOKENS)
        return cls(
            torch.empty(rows, n_heads, n_splits, head_dim, device=device),
            torch.empty(rows, n_heads, n_splits, 2, device=device),
        )


def is_split(max_rows: int, n_heads: int, n_kv: int) -> bool:
    """Whether the KV that pieces of so few rows see is split between programs.

    The few tiles of a short prompt would leave most processors idle; but a row pays for each split
    with a partial sum, and a tile of more than `MAX_SPLIT_TILE` rows runs out of registers.
    """
    return max_rows == 1 or max_rows * n_heads // n_kv <= MAX_SPLIT_TILE


def split_piece_rows(n_heads: int, n_kv: int) -> int:
    """Rows of a piece whose heads fill the smallest tile: one decoded row takes no less time."""
    return max(1, LEAST_ROWS * n_kv // n_heads)


def prefill_piece_rows(n_heads: int, n_kv: int) -> int:
    """Rows of a piece whose heads fill the tile of a prompt."""
    return PREFILL_ROWS * n_kv // n_heads


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
        block = tl.load(table_ptr + token // _BLOCK_TOKENS, mask=exists, other=0)
        # In 64 bits: a pool of 128k tokens x 8 heads x 2 x 128 has more entries than 2^31 can say.
        vector = (block.to(tl.int64) * _BLOCK_TOKENS + token % _BLOCK_TOKENS) * (2 * N_KV) + kv_head
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


@triton.jit
def _decode(
    queries_ptr, blocks_ptr, scales_ptr, starts_ptr, counts_ptr, firsts_ptr, owners_ptr,
    tables_ptr, sums_ptr, weights_ptr,
    N_HEADS: tl.constexpr, N_KV: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr, N_SPLITS: tl.constexpr,
    MAX_BLOCKS: tl.constexpr, WINDOW: tl.constexpr, IS_CODED: tl.constexpr, SCALE: tl.constexpr,
    SINCE: tl.constexpr,
):  # fmt: skip
    """One piece, one KV head, every n-th split of the KV."""
    piece, kv_head = tl.program_id(0), tl.program_id(1)
    count = tl.load(counts_ptr + piece)
    if count > 0:
        start, first = tl.load(starts_ptr + piece), tl.load(firsts_ptr + piece)
        group: tl.constexpr = N_HEADS // N_KV
        queries, positions, vector = load_queries(
            queries_ptr, start, count, first, kv_head, N_HEADS, group, DIM, DIM_PAD, ROWS
        )
        end = first + count
        first_split = (tl.maximum(first + 1 - WINDOW, 0) // SPLIT) if WINDOW > 0 else 0
        d = tl.arange(0, DIM_PAD)
        inside = (positions >= 0)[:, None] & (d < DIM)[None, :]
        table_ptr = tables_ptr + tl.load(owners_ptr + piece) * MAX_BLOCKS
        # The grid knows no lengths: as many programs as fill the GPU share whatever splits exist.
        n_splits = (end + SPLIT - 1) // SPLIT
        for split in range(first_split + tl.program_id(2), n_splits, tl.num_programs(2)):
            sums, best, total = walk_tiles(
                queries, positions, blocks_ptr, scales_ptr, table_ptr, kv_head, split * SPLIT,
                tl.minimum(split * SPLIT + SPLIT, end),
                N_KV, DIM, DIM_PAD, ROWS, TILE, WINDOW, IS_CODED, SCALE, SINCE,
            )  # fmt: skip
            part = vector * N_SPLITS + split
            tl.store(sums_ptr + part[:, None] * DIM + d[None, :], sums, mask=inside)
            tl.store(weights_ptr + part * 2, best, mask=positions >= 0)
            tl.store(weights_ptr + part * 2 + 1, total, mask=positions >= 0)


@triton.jit
def _merge(
    sums_ptr, weights_ptr, starts_ptr, counts_ptr, firsts_ptr, out_ptr,
    N_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, MAX_ROWS: tl.constexpr,
    SPLIT: tl.constexpr, N_SPLITS: tl.constexpr, MERGED: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Add up the splits of one head of one row, MERGED at a time."""
    piece, offset = tl.program_id(0) // MAX_ROWS, tl.program_id(0) % MAX_ROWS
    count = tl.load(counts_ptr + piece)
    if offset < count:
        first = tl.load(firsts_ptr + piece)
        row = (tl.load(starts_ptr + piece) + offset).to(tl.int64)
        vector = row * N_HEADS + tl.program_id(1)
        first_split = (tl.maximum(first + 1 - WINDOW, 0) // SPLIT) if WINDOW > 0 else 0
        n_splits = (first + count + SPLIT - 1) // SPLIT
        d = tl.arange(0, DIM_PAD)
        best = tl.full((), float("-inf"), tl.float32)
        total = tl.full((), 0.0, tl.float32)
        sums = tl.zeros((DIM_PAD,), tl.float32)
        # From a multiple of MERGED: the order of the sum must not depend on the rows beside it.
        for base in range(first_split // MERGED * MERGED, n_splits, MERGED):
            split = base + tl.arange(0, MERGED)
            exists = (split >= first_split) & (split < n_splits)
            part = vector * N_SPLITS + split
            bests = tl.load(weights_ptr + part * 2, mask=exists, other=float("-inf"))
            totals = tl.load(weights_ptr + part * 2 + 1, mask=exists, other=0.0)
            new_best = tl.maximum(best, tl.max(bests, 0))
            shift = tl.where(new_best == float("-inf"), 0.0, new_best)
            shares = tl.exp2(bests - shift)
            decay = tl.exp2(best - shift)
            tile = tl.load(
                sums_ptr + part[:, None] * DIM + d[None, :],
                mask=exists[:, None] & (d < DIM)[None, :], other=0.0,
            )  # fmt: skip
            sums = sums * decay + tl.sum(tile * shares[:, None], 0)
            total = total * decay + tl.sum(totals * shares, 0)
            best = new_best
        y = (sums / total).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + vector * DIM + d, y, mask=d < DIM)


@triton.jit
def _prefill(
    queries_ptr, blocks_ptr, scales_ptr, starts_ptr, counts_ptr, firsts_ptr, owners_ptr,
    tables_ptr, out_ptr,
    N_HEADS: tl.constexpr, N_KV: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, MAX_BLOCKS: tl.constexpr, WINDOW: tl.constexpr,
    IS_CODED: tl.constexpr, SCALE: tl.constexpr, SINCE: tl.constexpr,
):  # fmt: skip
    """One piece and KV head, over all the KV that its rows see."""
    piece, kv_head = tl.program_id(0), tl.program_id(1)
    count = tl.load(counts_ptr + piece)
    if count > 0:
        group: tl.constexpr = N_HEADS // N_KV
        start, first = tl.load(starts_ptr + piece), tl.load(firsts_ptr + piece)
        queries, positions, vector = load_queries(
            queries_ptr, start, count, first, kv_head, N_HEADS, group, DIM, DIM_PAD, ROWS
        )
        begin = (tl.maximum(first + 1 - WINDOW, 0) // TILE * TILE) if WINDOW > 0 else 0
        sums, _, total = walk_tiles(
            queries, positions, blocks_ptr, scales_ptr,
            tables_ptr + tl.load(owners_ptr + piece) * MAX_BLOCKS, kv_head, begin, first + count,
            N_KV, DIM, DIM_PAD, ROWS, TILE, WINDOW, IS_CODED, SCALE, SINCE,
        )  # fmt: skip
        is_row = positions >= 0
        total = tl.where(is_row, total, 1.0)[:, None]
        d = tl.arange(0, DIM_PAD)
        inside = is_row[:, None] & (d < DIM)[None, :]
        target = out_ptr + vector[:, None] * DIM + d[None, :]
        tl.store(target, (sums / total).to(out_ptr.dtype.element_ty), mask=inside)


def paged_attention(
    queries: Tensor, blocks: Tensor, scales: Tensor, pieces: Pieces, max_rows: int, window: int,
    partials: Partials, out: Tensor, since: int = 0,
) -> None:  # fmt: skip
    """Attention of a step's rows over their sequences' KV; their own is in the pool already.

    queries: [rows, n_heads, head_dim]. blocks, scales: one layer of the pool (see `kv_write`).
    max_rows: most rows of a piece, the same for every step of a graph; at most
        `prefill_piece_rows`.
    window: how many last positions a row sees, 0: all.
    partials: of at least as many rows as the step has, where `is_split` says it is used.
    out: [rows, n_heads * head_dim]; rows of no piece keep what they hold.
    since: the first position that anybody sees; each row sees one at least.
    """
    (_, n_heads, dim), n_kv = queries.shape, blocks.shape[3]
    n_pieces, max_blocks = len(pieces.starts), pieces.tables.shape[1]
    group, has_codes = n_heads // n_kv, is_coded(blocks)
    # The plain format has no scales; a kernel's pointer must still point somewhere.
    inputs = (
        queries, blocks, scales if scales.numel() else blocks, pieces.starts, pieces.counts,
        pieces.firsts, pieces.owners, pieces.tables,
    )  # fmt: skip
    layout: dict[str, Any] = {
        "N_HEADS": n_heads,
        "N_KV": n_kv,
        "DIM": dim,
        "DIM_PAD": max(LEAST_ROWS, next_power_of_2(dim)),
        "MAX_BLOCKS": max_blocks,
        "WINDOW": window,
        "IS_CODED": has_codes,
        "SCALE": LOG2_E * dim**-0.5,
        "SINCE": since,
    }
    if not is_split(max_rows, n_heads, n_kv):
        _prefill[(n_pieces, n_kv)](
            *inputs, out, ROWS=PREFILL_ROWS, TILE=64, **layout,
            # Of codes a third stage takes no memory, and of 2 Triton 3.6 makes a spill.
            num_warps=8, num_stages=3 if has_codes else 2, enable_fp_fusion=True,
        )  # fmt: skip
        return
    n_splits = partials.sums.shape[2]
    n_side_by_side = PROGRAMS_PER_PROCESSOR + has_codes
    wanted = n_side_by_side * n_processors(queries.device) // (n_pieces * n_kv)
    n_programs = max(1, min(n_splits, wanted))
    n_rows = max(LEAST_ROWS, next_power_of_2(group * max_rows))
    # Half of the stages are the block table's. Two tiles ahead take registers: for codes that are
    # converted, more than a thread has, but at the fewest rows.
    has_room = n_rows <= (LEAST_ROWS if has_codes else 32)
    _decode[(n_pieces, n_kv, n_programs)](
        *inputs, partials.sums, partials.weights,
        ROWS=n_rows, TILE=64, SPLIT=SPLIT_TOKENS, N_SPLITS=n_splits, **layout,
        num_warps=4, num_stages=5 if has_room else 3, enable_fp_fusion=True,
    )  # fmt: skip
    _merge[(n_pieces * max_rows, n_heads)](
        partials.sums, partials.weights, pieces.starts, pieces.counts, pieces.firsts, out,
        N_HEADS=n_heads, DIM=dim, DIM_PAD=next_power_of_2(dim), MAX_ROWS=max_rows,
        SPLIT=SPLIT_TOKENS, N_SPLITS=n_splits, MERGED=MERGED_SPLITS, WINDOW=window,
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip


def paged_attention_reference(
    queries: Tensor, blocks: Tensor, scales: Tensor, pieces: Pieces, max_rows: int, window: int,
    partials: Partials, out: Tensor, since: int = 0,
) -> None:  # fmt: skip
    n_heads, head_dim = queries.shape[1:]
    stored = KV_FORMATS["int8" if is_coded(blocks) else "plain"](torch.float32)
    fields = (pieces.starts, pieces.counts, pieces.firsts, pieces.owners)
    for start, count, first, owner in torch.stack(fields, 1).tolist():
        if not count:
            continue
        n_tokens = first + count
        used = pieces.tables[owner, : -(-n_tokens // BLOCK_TOKENS)].long()
        codes = blocks[used].flatten(0, 1)[:n_tokens]
        # In doubles: how long a piece is then changes no bit of what is rounded from them.
        cache = stored.decode(codes, scales[used].flatten(0, 1)[:n_tokens].float()).double()
        keys, values = cache.repeat_interleave(n_heads // blocks.shape[3], 2).unbind(1)
        scores = torch.einsum("qhd,khd->hqk", queries[start : start + count].double(), keys)
        query = torch.arange(first, n_tokens, device=queries.device)[:, None]
        key = torch.arange(n_tokens, device=queries.device)[None]
        hidden = (key > query) | (key < since)
        if window:
            hidden |= key <= query - window
        weights = (scores * head_dim**-0.5).masked_fill_(hidden, -torch.inf).softmax(-1)
        result = torch.einsum("hqk,khd->qhd", weights, values)
        out[start : start + count] = result.flatten(1).to(out.dtype)
