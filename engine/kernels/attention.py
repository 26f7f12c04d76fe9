"""Owns paged attention: decode and verification (few rows, KV split), and prefill (many rows).

Both walk the same tiles of the same pool; they differ in who shares the work. `SPLIT_TOKENS` of KV
at absolute positions make one partial result, so that what a row sums does not depend on what else
is in the step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..kv_format import KV_FORMATS
from ..types import BLOCK_TOKENS
from .kv_write import kv_format_of

SPLIT_TOKENS = 256
MAX_DECODE_ROWS = 8  # of one sequence: a token and seven drafted ones


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows of a step belong to which sequence; all int32 on the device.

    starts: [n] first row of each sequence. counts: [n] its rows; 0 for padding.
    firsts: [n] position of its first row; the row at `firsts + i` sees positions 0..firsts + i.
    tables: [n, max_blocks] block ids; entries past those in use are never read.
    """

    starts: Tensor
    counts: Tensor
    firsts: Tensor
    tables: Tensor


@dataclass(frozen=True, slots=True)
class Partials:
    """Workspace of `decode_attention`: what each split of the KV gave each row and head.

    sums: fp32 [rows, n_heads, n_splits, head_dim]; weights: fp32 [rows, n_heads, n_splits, 2]
    (the largest score, in log2, and the sum of weights relative to it).
    """

    sums: Tensor
    weights: Tensor

    @classmethod
    def allocate(
        cls, rows: int, n_heads: int, head_dim: int, max_tokens: int, device: torch.device
    ) -> "Partials":
        """For up to `rows` rows and sequences of up to `max_tokens`; reused by every layer."""
        n_splits = -(-max_tokens // SPLIT_TOKENS)
        return cls(
            torch.empty(rows, n_heads, n_splits, head_dim, device=device),
            torch.empty(rows, n_heads, n_splits, 2, device=device),
        )


def decode_attention(
    queries: Tensor,
    blocks: Tensor,
    scales: Tensor,
    rows: Rows,
    max_rows: int,
    window: int,
    partials: Partials,
    out: Tensor,
) -> None:
    """Attention of a few rows per sequence over its KV; the rows' own KV is already in the pool.

    queries: [rows, n_heads, head_dim]. blocks, scales: one layer of the pool (see `kv_write`).
    max_rows: upper bound of `rows.counts`, <= MAX_DECODE_ROWS; the same for every step of a graph.
    window: how many last positions a row sees, 0: all.
    out: [rows, n_heads * head_dim]; rows of no sequence keep what they hold.
    """
    raise NotImplementedError


def prefill_attention(
    queries: Tensor,
    blocks: Tensor,
    scales: Tensor,
    rows: Rows,
    max_rows: int,
    window: int,
    out: Tensor,
) -> None:
    """The same for any number of rows per sequence; `max_rows` bounds `rows.counts`."""
    raise NotImplementedError


def attention_reference(
    queries: Tensor, blocks: Tensor, scales: Tensor, rows: Rows, window: int, out: Tensor
) -> None:
    n_heads, head_dim = queries.shape[1:]
    stored = KV_FORMATS[kv_format_of(blocks)](head_dim, torch.float32)
    parts = zip(
        rows.starts.tolist(), rows.counts.tolist(), rows.firsts.tolist(), rows.tables, strict=True
    )
    for start, count, first, table in parts:
        if not count:
            continue
        n_tokens = first + count
        used = table[: -(-n_tokens // BLOCK_TOKENS)].long()
        codes = blocks[used].flatten(0, 1)[:n_tokens]
        cache = stored.decode(codes, scales[used].flatten(0, 1)[:n_tokens].float()).float()
        keys, values = cache.repeat_interleave(n_heads // blocks.shape[3], 2).unbind(1)
        scores = torch.einsum("qhd,khd->hqk", queries[start : start + count].float(), keys)
        query = torch.arange(first, n_tokens, device=queries.device)[:, None]
        key = torch.arange(n_tokens, device=queries.device)[None]
        hidden = key > query
        if window:
            hidden |= key <= query - window
        weights = (scores * head_dim**-0.5).masked_fill_(hidden, -torch.inf).softmax(-1)
        result = torch.einsum("hqk,khd->qhd", weights, values)
        out[start : start + count] = result.flatten(1).to(out.dtype)


def decode_attention_reference(
    queries: Tensor,
    blocks: Tensor,
    scales: Tensor,
    rows: Rows,
    max_rows: int,
    window: int,
    partials: Partials,
    out: Tensor,
) -> None:
    attention_reference(queries, blocks, scales, rows, window, out)


def prefill_attention_reference(
    queries: Tensor,
    blocks: Tensor,
    scales: Tensor,
    rows: Rows,
    max_rows: int,
    window: int,
    out: Tensor,
) -> None:
    attention_reference(queries, blocks, scales, rows, window, out)


def attention_bytes(n_tokens: int, rows: int, queries: Tensor, blocks: Tensor) -> int:
    """Bytes one call must move for `n_tokens` of KV in all and `rows` query rows."""
    raise NotImplementedError
