"""Owns attention over the paged KV: which tokens of which blocks each row of a step sees.

A `Plan` is built once a step and used by every layer. `attend` is the torch reference; a GPU
kernel of the same signature takes its place when the pool lies on a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .kv_cache import KvPool
from .types import BLOCK_TOKENS, n_blocks_for

# Measured on a CPU with 1,000 tokens of KV, 6 heads on 2: 5 rows take 102 us grouped, 162 not;
# from 16 rows on there is nothing to gain. On another CPU, without AMX, one row takes 117 and 763.
GROUPED_ROWS = 8
# A padded batch reads at least this share of real tokens; below it, one call each is cheaper.
LEAST_FILLED = 0.5

Part = tuple[int, int, Sequence[int]]  # of a sequence: first position, number of rows, block table


@dataclass(slots=True)
class Span:
    """The rows of one sequence in a step: positions first..first + n_rows of its tokens."""

    row: int
    n_rows: int
    first: int
    blocks: "Tensor | slice"
    masks: dict[int, Tensor | None]  # by attention window; rows repeated where they are grouped

    @property
    def n_tokens(self) -> int:
        return self.first + self.n_rows


@dataclass(slots=True)
class Batch:
    """Decoding sequences of like length, one row each, that attend in one call.

    rows: [n]; blocks: [n, blocks], padded; masks: [n, 1, 1, tokens] by attention window.
    """

    rows: Tensor
    blocks: Tensor
    masks: dict[int, Tensor]


@dataclass(slots=True)
class Plan:
    """The places where a step's rows read and write. slots: KV slot of every row."""

    spans: list[Span]
    slots: "Tensor | slice"
    batch: Batch | None = None


def plan_step(
    parts: Sequence[Part], *, windows: set[int], group: int, dtype: torch.dtype, device: str
) -> Plan:
    """Decide how the rows of a step attend.

    group: query heads that share a KV head. dtype: that of the queries.
    """
    spans: list[Span] = []
    slots: list[int] = []
    row = 0
    batched = _batched(parts)
    for index, (first, n_rows, table) in enumerate(parts):
        if index not in batched:
            n_blocks = n_blocks_for(first + n_rows)
            repeats = group if n_rows <= GROUPED_ROWS else 1
            masks = {
                window: _mask(first, n_rows, window, repeats, dtype, device) for window in windows
            }
            blocks = compact(table[:n_blocks], device)
            spans.append(Span(row, n_rows, first, blocks, masks))
        slots.extend(
            table[p // BLOCK_TOKENS] * BLOCK_TOKENS + p % BLOCK_TOKENS
            for p in range(first, first + n_rows)
        )
        row += n_rows
    batch = _plan_batch(parts, batched, windows, dtype, device) if batched else None
    return Plan(spans, compact(slots, device), batch)


def _batched(parts: Sequence[Part]) -> set[int]:
    """Return which sequences attend together: those of one row, if padding them costs little."""
    single = [i for i, (_, n_rows, _) in enumerate(parts) if n_rows == 1]
    lengths = [parts[i][0] + 1 for i in single]
    if len(single) < 2 or sum(lengths) < LEAST_FILLED * len(lengths) * max(lengths):
        return set()
    return set(single)


def _plan_batch(
    parts: Sequence[Part], batched: set[int], windows: set[int], dtype: torch.dtype, device: str
) -> Batch:
    chosen = [parts[i] for i in sorted(batched)]
    n_blocks = max(n_blocks_for(first + 1) for first, _, _ in chosen)
    tables = [[*table[:n_blocks], *[table[0]] * (n_blocks - len(table))] for _, _, table in chosen]
    rows, row = [], 0
    for i, (_, n_rows, _) in enumerate(parts):
        if i in batched:
            rows.append(row)
        row += n_rows
    position = torch.tensor([first for first, _, _ in chosen], device=device)[:, None]
    key = torch.arange(n_blocks * BLOCK_TOKENS, device=device)[None]
    masks = {}
    for window in windows:
        masks[window] = _hide(position, key, window, dtype)[:, None, None]
    return Batch(torch.tensor(rows, device=device), torch.tensor(tables, device=device), masks)


def compact(indices: Sequence[int], device: str) -> "Tensor | slice":
    """A slice where the indices are neighbours: writing and reading through it copies nothing."""
    start, n = indices[0], len(indices)
    if indices[-1] - start == n - 1 and all(b == start + i for i, b in enumerate(indices)):
        return slice(start, start + n)
    return torch.tensor(indices, device=device)


def _mask(
    first: int, n_rows: int, window: int, repeats: int, dtype: torch.dtype, device: str
) -> Tensor | None:
    """0 where a row may look, -inf elsewhere: causal, and within the window. None for one row."""
    if n_rows == 1:
        return None  # a window is cut off before attention instead
    skip = _skip(first, window)
    query = torch.arange(first, first + n_rows, device=device)[:, None]
    key = torch.arange(skip, first + n_rows, device=device)[None]
    mask = _hide(query, key, window, dtype)
    return torch.cat([mask] * repeats) if repeats > 1 else mask


def _hide(query: Tensor, key: Tensor, window: int, dtype: torch.dtype) -> Tensor:
    hidden = key > query
    if window:
        hidden |= key <= query - window
    return torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, -torch.inf)


def _skip(first: int, window: int) -> int:
    """Leading tokens no row of the span sees."""
    return max(0, first + 1 - window) if window else 0


def attend(pool: KvPool, layer: int, plan: Plan, queries: Tensor, window: int) -> Tensor:
    """queries: [rows, heads, head_dim] -> [rows, heads * head_dim]. KV is already written."""
    if plan.batch is None and len(plan.spans) == 1:
        return _attend_span(pool, layer, plan.spans[0], queries, window)
    outputs = torch.empty_like(queries).flatten(1)
    for span in plan.spans:
        rows = slice(span.row, span.row + span.n_rows)
        outputs[rows] = _attend_span(pool, layer, span, queries[rows], window)
    batch = plan.batch
    if batch is not None:
        keys, values = pool.read_batch(layer, batch.blocks)
        grouped = queries[batch.rows].view(len(batch.rows), keys.shape[1], -1, queries.shape[2])
        output = scaled_dot_product_attention(grouped, keys, values, attn_mask=batch.masks[window])
        outputs[batch.rows] = output.flatten(1)
    return outputs


def _attend_span(pool: KvPool, layer: int, span: Span, queries: Tensor, window: int) -> Tensor:
    """queries: [rows of the span, heads, head_dim] -> [rows, heads * head_dim]."""
    keys, values = pool.read(layer, span.blocks, _skip(span.first, window), span.n_tokens)
    mask = span.masks[window]
    if span.n_rows <= GROUPED_ROWS:
        return _attend_grouped(queries, keys, values, mask)
    output = scaled_dot_product_attention(
        queries.transpose(0, 1).unsqueeze(0), keys, values, attn_mask=mask, enable_gqa=True
    )
    return output.transpose(1, 2).reshape(span.n_rows, -1)


def _attend_grouped(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Few rows: the heads that share a KV head become rows of one head, so it is read once."""
    n_rows, n_heads, head_dim = queries.shape
    n_kv = keys.shape[1]
    group = n_heads // n_kv
    grouped = queries.view(n_rows, n_kv, group, head_dim).permute(1, 2, 0, 3)
    output = scaled_dot_product_attention(
        grouped.reshape(1, n_kv, group * n_rows, head_dim), keys, values, attn_mask=mask
    )
    output = output.view(n_kv, group, n_rows, head_dim).permute(2, 0, 1, 3)
    return output.reshape(n_rows, n_heads * head_dim)
