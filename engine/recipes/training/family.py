"""Conversations that begin alike, and rows of them: what the step of an adapter reads at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..model.shared_attention import Segment

Encoded = tuple[list[int], list[float]]  # tokens, and the weight of predicting each


@dataclass(frozen=True, slots=True)
class Family:
    """Conversations with one beginning, which weighs nothing: `shared`, then each of `rests`."""

    shared: list[int]
    rests: tuple[Encoded, ...]

    @property
    def n_tokens(self) -> int:
        return len(self.shared) + sum(len(tokens) for tokens, _ in self.rests)

    @property
    def weight(self) -> float:
        """The sum of the weights that count; nothing foretells a conversation's first token."""
        skipped = 0 if self.shared else 1
        return sum(sum(weights[skipped:]) for _, weights in self.rests)


@dataclass(frozen=True, slots=True)
class Row:
    """Families one behind the other.

    tokens, positions [tokens]: positions count within a conversation. segments: who sees whom.
    sources, targets, weights [learned]: the state at `sources` foretells the token `targets`.
    """

    tokens: Tensor
    positions: Tensor
    segments: list[Segment]
    sources: Tensor
    targets: Tensor
    weights: Tensor


def row_of(families: Sequence[Family], device: torch.device) -> Row:
    """Lay families out in one row."""
    tokens: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    learned: list[tuple[int, int, float]] = []
    for family in families:
        first, n_shared = len(tokens), len(family.shared)
        if n_shared:
            tokens += family.shared
            positions += range(n_shared)
            segments.append(Segment(first, first + n_shared, first, first))
        for rest, weights in family.rests:
            at = len(tokens)
            segments.append(Segment(at, at + len(rest), first, first + n_shared))
            before = [first + n_shared - 1 if n_shared else -1, *range(at, at + len(rest) - 1)]
            learned += [
                (source, target, weight)
                for source, target, weight in zip(before, rest, weights, strict=True)
                if weight > 0 and source >= 0
            ]
            tokens += rest
            positions += range(n_shared, n_shared + len(rest))
    sources, targets, of_each = zip(*learned, strict=True) if learned else ((), (), ())
    return Row(
        torch.tensor(tokens, device=device),
        torch.tensor(positions, device=device),
        segments,
        torch.tensor(sources, dtype=torch.long, device=device),
        torch.tensor(targets, dtype=torch.long, device=device),
        torch.tensor(of_each, dtype=torch.float32, device=device),
    )


def in_rows(families: Sequence[Family], row_tokens: int) -> list[list[Family]]:
    """Families put together up to `row_tokens`, the longest first; a longer one stands alone."""
    rows: list[list[Family]] = []
    for family in sorted(families, key=lambda one: -one.n_tokens):
        for row in rows:
            if sum(one.n_tokens for one in row) + family.n_tokens <= row_tokens:
                row.append(family)
                break
        else:
            rows.append([family])
    return rows
