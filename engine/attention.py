"""Owns attention in torch over the paged KV: which tokens of which blocks each row of a step sees.

A `Plan` is built once a step and used by every layer. The library and the kernels have their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .kv_cache import KvPool
from .types import BLOCK_TOKENS, n_blocks_for

Part = tuple[int, int, Sequence[int]]  # of a sequence: first position, number of rows, block table


@dataclass(slots=True)
class Span:
    """The rows of one sequence in a step: positions first..first + n_rows of its tokens."""

    row: int
    n_rows: int
    first: int
    blocks: Tensor
    masks: dict[int, Tensor | None]  # by attention window; rows repeated for each head of a group

    @property
    def n_tokens(self) -> int:
        return self.first + self.n_rows


@dataclass(slots=True)
class Plan:
    """The places where a step's rows read and write. slots: KV slot of every row."""

    spans: list[Span]
    slots: Tensor


def plan_step(
    parts: Sequence[Part], *, windows: set[int], group: int, dtype: torch.dtype, device: str
) -> Plan:
    """Decide how the rows of a step attend.

    group: query heads that share a KV head. dtype: that of the queries.
    """
    spans, slots, row = list[Span](), list[int](), 0
    for first, n_rows, table in parts:
        masks = {window: _mask(first, n_rows, window, group, dtype, device) for window in windows}
        blocks = torch.tensor(table[: n_blocks_for(first + n_rows)], device=device)
        spans.append(Span(row, n_rows, first, blocks, masks))
        slots.extend(
            table[p // BLOCK_TOKENS] * BLOCK_TOKENS + p % BLOCK_TOKENS
            for p in range(first, first + n_rows)
        )
        row += n_rows
    return Plan(spans, torch.tensor(slots, device=device))


def _mask(
    first: int, n_rows: int, window: int, group: int, dtype: torch.dtype, device: str
) -> Tensor | None:
    """0 where a row may look, -inf elsewhere: causal, and within the window. None for one row."""
    if n_rows == 1:
        return None  # a window is cut off before attention instead
    query = torch.arange(first, first + n_rows, device=device)[:, None]
    key = torch.arange(_skip(first, window), first + n_rows, device=device)[None]
    hidden = key > query
    if window:
        hidden |= key <= query - window
    mask = torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, -torch.inf)
    return torch.cat([mask] * group)


def _skip(first: int, window: int) -> int:
    """Leading tokens no row of the span sees."""
    return max(0, first + 1 - window) if window else 0


def attend(pool: KvPool, layer: int, plan: Plan, queries: Tensor, window: int) -> Tensor:
    """queries: [rows, heads, head_dim] -> [rows, heads * head_dim]. KV is already written.

    The heads that share a KV head become rows of one head, so that it is read once.
    """
    n_heads, head_dim = queries.shape[1:]
    outputs = torch.empty_like(queries).flatten(1)
    for span in plan.spans:
        rows = slice(span.row, span.row + span.n_rows)
        keys, values = pool.read(layer, span.blocks, _skip(span.first, window), span.n_tokens)
        n_kv, group = keys.shape[1], n_heads // keys.shape[1]
        grouped = queries[rows].view(span.n_rows, n_kv, group, head_dim).permute(1, 2, 0, 3)
        found = scaled_dot_product_attention(
            grouped.reshape(1, n_kv, group * span.n_rows, head_dim), keys, values,
            attn_mask=span.masks[window],
        )  # fmt: skip
        found = found.view(n_kv, group, span.n_rows, head_dim).permute(2, 0, 1, 3)
        outputs[rows] = found.reshape(span.n_rows, -1)
    return outputs
