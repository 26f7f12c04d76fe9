"""Owns where a step's rows go: their positions, and their slots in the KV pool, in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..types import BLOCK_TOKENS
from .attention import Rows
from .launch import next_power_of_2


@triton.jit
def _place_rows(
    firsts_ptr, counts_ptr, tables_ptr, rows_firsts_ptr, rows_counts_ptr, positions_ptr, slots_ptr,
    N_ROWS: tl.constexpr, ROWS_PAD: tl.constexpr, MAX_BLOCKS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
):  # fmt: skip
    """All rows of one sequence."""
    sequence = tl.program_id(0)
    first = tl.load(firsts_ptr + sequence).to(tl.int32)
    count = tl.load(counts_ptr + sequence).to(tl.int32)
    offset = tl.arange(0, ROWS_PAD)
    is_row = offset < tl.minimum(count, N_ROWS)
    position = first + offset
    block_ptr = tables_ptr + sequence * MAX_BLOCKS + position // BLOCK_TOKENS
    block = tl.load(block_ptr, mask=is_row, other=0)
    slot = block * BLOCK_TOKENS + position % BLOCK_TOKENS
    row = sequence * N_ROWS + offset
    inside = offset < N_ROWS
    tl.store(positions_ptr + row, tl.where(is_row, position, 0), mask=inside)
    tl.store(slots_ptr + row, tl.where(is_row, slot, -1), mask=inside)
    tl.store(rows_firsts_ptr + sequence, first)
    tl.store(rows_counts_ptr + sequence, count)


def place_rows(
    firsts: Tensor, counts: Tensor, rows: Rows, positions: Tensor, slots: Tensor
) -> None:
    """Fill `rows.firsts`, `rows.counts`, and position and slot of every row; -1 is padding's slot.

    firsts, counts: int64 [n], of each sequence its first position and its rows. positions, slots:
    int32 [n * rows of a sequence]. `rows.tables` must hold every position asked for.
    """
    n, max_blocks = rows.tables.shape
    n_rows = len(positions) // n
    _place_rows[(n,)](
        firsts, counts, rows.tables, rows.firsts, rows.counts, positions, slots,
        N_ROWS=n_rows, ROWS_PAD=next_power_of_2(n_rows), MAX_BLOCKS=max_blocks,
        BLOCK_TOKENS=BLOCK_TOKENS, num_warps=1 if n_rows <= 32 else 4, enable_fp_fusion=True,
    )  # fmt: skip


def place_rows_reference(
    firsts: Tensor, counts: Tensor, rows: Rows, positions: Tensor, slots: Tensor
) -> None:
    n, max_blocks = rows.tables.shape
    offsets = torch.arange(len(positions) // n, device=firsts.device)
    at = firsts[:, None] + offsets
    is_row = offsets < counts[:, None]
    block = (at // BLOCK_TOKENS).clamp_max(max_blocks - 1)
    found = rows.tables.gather(1, block) * BLOCK_TOKENS + at % BLOCK_TOKENS
    positions.copy_(torch.where(is_row, at, 0).flatten())
    slots.copy_(torch.where(is_row, found, -1).flatten())
    rows.firsts.copy_(firsts)
    rows.counts.copy_(counts)
