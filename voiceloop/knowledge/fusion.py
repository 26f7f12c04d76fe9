"""Several rankings of the same passages made into one, by reciprocal rank. Pure.

Source: Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion outperforms Condorcet and individual
Rank Learning Methods", SIGIR 2009, which also found K.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

T = TypeVar("T", bound=Hashable)
K = 60


def fuse(rankings: Sequence[Sequence[T]], weights: Sequence[float] | None = None) -> list[T]:
    """All that any ranking holds, best first; equals in the order in which they were met.

    rankings: each best first, without repetition. weights: of each, 1 where none are given.

    Raises: ValueError: as many weights as rankings were expected.
    """
    weights = [1.0] * len(rankings) if weights is None else weights
    scores: dict[T, float] = {}
    for ranking, weight in zip(rankings, weights, strict=True):
        for rank, found in enumerate(ranking, start=1):
            scores[found] = scores.get(found, 0.0) + weight / (K + rank)
    return sorted(scores, key=lambda found: -scores[found])
