"""Kernels that are wrong in one small way each: what `gpu_truth` must find, planted in references.

A fault takes a reference's place for as long as engines are built and run. Each is of a kind that a
real kernel could have, and most of them strike only some rows: what is wrong everywhere shows
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from engine.kernels import attention, gemm_8bit, kv_write, norm, rows, sample, silu_mul

Kernel = Callable[..., None]


def _one_wrong_code(right: Kernel) -> Kernel:
    """The last code of one key of a block."""

    def wrong(*given: Any) -> None:
        right(*given)
        slots, blocks = given[2], given[9]
        at = slots[slots % 16 == 5].long()
        blocks.flatten(0, 1)[at, 0, 0, -1] *= -1

    return wrong


def _wrong_scale(right: Kernel) -> Kernel:
    """Of the last head's values, in the last place of a block."""

    def wrong(*given: Any) -> None:
        right(*given)
        slots, blocks, scales = given[2], given[9], given[10]
        at = slots[slots % 16 == 15].long()
        kept = (scales if scales.numel() else blocks).flatten(0, 1)
        kept[at, 1, -1] = kept[at, 1, -1] * 1.25

    return wrong


def _stale_slot(right: Kernel) -> Kernel:
    """The last place of a block is never written."""

    def wrong(*given: Any) -> None:
        slots = given[2]
        right(*given[:2], torch.where(slots % 16 == 15, -1, slots), *given[3:])

    return wrong


def _wrong_rope_position(right: Kernel) -> Kernel:
    """Rows behind the first of a step are rotated as if they stood one place further on."""

    def wrong(*given: Any) -> None:
        positions = given[1].clone()
        positions[1:] += 1
        right(given[0], positions, *given[2:])

    return wrong


def _one_block_further(right: Kernel) -> Kernel:
    """Keys of the second block come from the third entry of the table."""

    def wrong(queries: Tensor, blocks: Tensor, scales: Tensor, pieces: Any, *rest: Any) -> None:
        tables = pieces.tables.clone()
        tables[:, 1] = pieces.tables[:, 2]
        right(queries, blocks, scales, replace(pieces, tables=tables), *rest)

    return wrong


def _missing_mask(right: Kernel) -> Kernel:
    """Each row of a piece sees the one behind it."""

    def wrong(queries: Tensor, blocks: Tensor, scales: Tensor, pieces: Any, *rest: Any) -> None:
        later = replace(pieces, counts=(pieces.counts - 1).clamp_min(0), firsts=pieces.firsts + 1)
        right(queries, blocks, scales, pieces, *rest)
        right(queries, blocks, scales, later, *rest)

    return wrong


def _wrong_head_group(right: Kernel) -> Kernel:
    """Query heads take the KV heads in turn, not group by group."""

    def wrong(
        queries: Tensor, blocks: Tensor, scales: Tensor, pieces: Any, max_rows: int, window: int,
        partials: Any, out: Tensor, since: int = 0,
    ) -> None:  # fmt: skip
        n_heads, n_kv = queries.shape[1], blocks.shape[3]
        order = torch.arange(n_heads).view(-1, n_kv).T.flatten()
        mixed = torch.zeros_like(out)
        right(queries[:, order], blocks, scales, pieces, max_rows, window, partials, mixed, since)
        by_head = out.view(len(out), n_heads, -1)
        by_head[:, order] = mixed.view_as(by_head)

    return wrong


def _stale_partials(right: Kernel) -> Kernel:
    """A piece behind the first that decodes keeps what the layer before found."""

    def wrong(queries: Tensor, blocks: Tensor, scales: Tensor, pieces: Any, *rest: Any) -> None:
        counts = pieces.counts.clone()
        counts[1:][counts[1:] == 1] = 0
        right(queries, blocks, scales, replace(pieces, counts=counts), *rest)

    return wrong


def _wrong_residual_order(right: Kernel) -> Kernel:
    """The norm is of the residual before the layer's sum is added."""

    def wrong(
        residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float, out: Tensor,
        wanted: Tensor | None = None,
    ) -> None:  # fmt: skip
        if wanted is not None or delta is None:
            return right(residual, delta, weight, eps, out, wanted)
        right(residual, None, weight, eps, out)
        residual += delta.float().sum(0)

    return wrong


def _wrong_row_mapping(right: Kernel) -> Kernel:
    """The last wanted row is read from the row before it."""

    def wrong(
        residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float, out: Tensor,
        wanted: Tensor | None = None,
    ) -> None:  # fmt: skip
        if wanted is not None and len(wanted) > 1:
            wanted = wanted.clone()
            wanted[1:] = (wanted[1:] - (wanted[1:] % 4 == 3).long()).clamp_min(0)
        right(residual, delta, weight, eps, out, wanted)

    return wrong


def _wrong_row_sampled(right: Kernel) -> Kernel:
    """Where two replies draw in one step, the second gets the first one's token."""

    def wrong(logits: Tensor, draws: Any, space: Any, tokens: Tensor, *rest: Any) -> None:
        right(logits, draws, space, tokens, *rest)
        drawn = (draws.owners >= 0).nonzero().flatten()
        if len(drawn) > 1:
            tokens[drawn[1]] = tokens[drawn[0]]

    return wrong


def _draft_accepted_wrongly(right: Kernel) -> Kernel:
    """The first guess stands, whatever was chosen in its place."""

    def wrong(
        fed: Any, places: Any, tokens: Tensor, chosen: Tensor, counts: Tensor, n_accepted: Tensor
    ) -> None:
        for i, wanted_at in enumerate(fed.wanted_at.tolist()):
            place, n_known = int(fed.places[i]), int(fed.n_known[i])
            count = int(fed.counts[i])
            if fed.goes_on[i]:
                count = min(count, 1 + int(places.n_guesses[place]))
            if wanted_at >= 0 and count > n_known:
                chosen[wanted_at] = tokens[int(fed.starts[i]) + n_known]
        right(fed, places, tokens, chosen, counts, n_accepted)

    return wrong


def _wrong_channel(right: Kernel) -> Kernel:
    """One output of a product is multiplied by its neighbour's scale."""

    def wrong(x: Tensor, weight: Any, bias: Tensor | None, out: Tensor) -> None:
        right(x, weight, bias, out)
        out[..., 37] *= 1.5

    return wrong


def _halves_swapped(right: Kernel) -> Kernel:
    """Of the MLP the gate is taken for the other half, in rows past the eighth."""

    def wrong(gate_up: Tensor, out: Tensor) -> None:
        right(gate_up, out)
        if len(out) > 8:
            gate, up = gate_up[:, 8:].chunk(2, -1)
            right(torch.cat((up, gate), -1), out[8:])

    return wrong


def _mask_of_another(right: Kernel) -> Kernel:
    """What a grammar forbids may be drawn all the same."""

    def wrong(
        logits: Tensor, draws: Any, space: Any, tokens: Tensor, asked: Any = None, ends: Any = None
    ) -> None:
        if asked is not None:
            asked = replace(asked, mask_lines=torch.full_like(asked.mask_lines, -1))
        right(logits, draws, space, tokens, asked, ends)

    return wrong


def _probability_of_another(right: Kernel) -> Kernel:
    """The end of a turn is as likely as the first of the tokens that end it."""

    def wrong(
        logits: Tensor, draws: Any, space: Any, tokens: Tensor, asked: Any = None, ends: Any = None
    ) -> None:
        if ends is not None:
            ends = replace(ends, ids=ends.ids + 1)
        right(logits, draws, space, tokens, asked, ends)

    return wrong


FAULTS: dict[str, tuple[ModuleType, str, Callable[[Kernel], Kernel]]] = {
    "one wrong code": (kv_write, "kv_write", _one_wrong_code),
    "a wrong scale": (kv_write, "kv_write", _wrong_scale),
    "a stale slot": (kv_write, "kv_write", _stale_slot),
    "a wrong rope position": (kv_write, "kv_write", _wrong_rope_position),
    "one block further in the table": (attention, "paged_attention", _one_block_further),
    "a missing mask": (attention, "paged_attention", _missing_mask),
    "a wrong head group": (attention, "paged_attention", _wrong_head_group),
    "stale partials": (attention, "paged_attention", _stale_partials),
    "a wrong residual order": (norm, "add_norm", _wrong_residual_order),
    "a wrong row mapping": (norm, "add_norm", _wrong_row_mapping),
    "the wrong row sampled": (sample, "sample", _wrong_row_sampled),
    "a draft accepted wrongly": (rows, "verify", _draft_accepted_wrongly),
    "a wrong channel of a product": (gemm_8bit, "gemm_8bit", _wrong_channel),
    "halves of the MLP swapped": (silu_mul, "silu_mul", _halves_swapped),
    "a grammar's mask ignored": (sample, "sample", _mask_of_another),
    "the end of a turn misread": (sample, "sample", _probability_of_another),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Engines built meanwhile on the device "reference" have this fault."""
    module, kernel, spoil = FAULTS[name]
    spelled = f"{kernel}_reference"
    right = getattr(module, spelled)
    setattr(module, spelled, spoil(right))
    try:
        yield
    finally:
        setattr(module, spelled, right)
