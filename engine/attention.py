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
from .types import BLOCK_TOKENS

# Measured on a CPU with 1,000 tokens of KV, 6 heads on 2: 5 rows take 102 us grouped, 162 not;
# from 16 rows on there is nothing to gain.
GROUPED_ROWS = 8


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
class Plan:
    """Where a step's rows read and write. slots: KV slot of every row."""

    spans: list[Span]
    slots: "Tensor | slice"


def plan_step(
    parts: Sequence[tuple[int, int, Sequence[int]]],
    *,
    windows: set[int],
    group: int,
    dtype: torch.dtype,
    device: str,
) -> Plan:
    """parts: per sequence (first position, number of rows, its block table).

    group: query heads that share a KV head. dtype: that of the queries.
    """
    spans: list[Span] = []
    slots: list[int] = []
    row = 0
    for first, n_rows, table in parts:
        n_blocks = -(-(first + n_rows) // BLOCK_TOKENS)
        repeats = group if n_rows <= GROUPED_ROWS else 1
        masks = {window: _mask(first, n_rows, window, repeats, dtype, device) for window in windows}
        spans.append(Span(row, n_rows, first, _compact(table[:n_blocks], device), masks))
        slots.extend(
            table[p // BLOCK_TOKENS] * BLOCK_TOKENS + p % BLOCK_TOKENS
            for p in range(first, first + n_rows)
        )
        row += n_rows
    return Plan(spans, _compact(slots, device))


def _compact(indices: Sequence[int], device: str) -> "Tensor | slice":
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
    hidden = key > query
    if window:
        hidden |= key <= query - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, -torch.inf)
    return torch.cat([mask] * repeats) if repeats > 1 else mask


def _skip(first: int, window: int) -> int:
    """Leading tokens no row of the span sees."""
    return max(0, first + 1 - window) if window else 0


def attend(pool: KvPool, layer: int, plan: Plan, queries: Tensor, window: int) -> Tensor:
    """queries: [rows, heads, head_dim] -> [rows, heads * head_dim]. KV is already written."""
    outputs = []
    for span in plan.spans:
        keys, values = pool.read(layer, span.blocks, _skip(span.first, window), span.n_tokens)
        rows = queries[span.row : span.row + span.n_rows]
        mask = span.masks[window]
        if mask is not None and span.n_rows <= GROUPED_ROWS:
            outputs.append(_attend_grouped(rows, keys, values, mask))
            continue
        output = scaled_dot_product_attention(
            rows.transpose(0, 1).unsqueeze(0), keys, values, attn_mask=mask, enable_gqa=True
        )
        outputs.append(output.transpose(1, 2).reshape(span.n_rows, -1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_grouped(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Few rows: the heads that share a KV head become rows of one head, so it is read once."""
    n_rows, n_heads, head_dim = queries.shape
    n_kv = keys.shape[1]
    group = n_heads // n_kv
    grouped = queries.view(n_rows, n_kv, group, head_dim).permute(1, 2, 0, 3)
    output = scaled_dot_product_attention(
        grouped.reshape(1, n_kv, group * n_rows, head_dim),
        keys,
        values,
        attn_mask=mask,
    )
    output = output.view(n_kv, group, n_rows, head_dim).permute(2, 0, 1, 3)
    return output.reshape(n_rows, n_heads * head_dim)
