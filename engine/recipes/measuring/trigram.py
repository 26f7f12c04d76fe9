"""An interpolated trigram over the agent's own tokens: the yardstick for bits per byte."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence


class Trigram:
    """Interpolates uniform, unigram, bigram and trigram estimates; weights fitted by EM."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._counts: tuple[Counter[tuple[int, ...]], ...] = (Counter(), Counter(), Counter())
        self._contexts: tuple[Counter[tuple[int, ...]], ...] = (Counter(), Counter(), Counter())
        self._weights = [0.05, 0.15, 0.3, 0.5]

    def count(self, documents: Iterable[Sequence[int]]) -> None:
        """Add training documents."""
        for document in documents:
            padded = (-1, -1, *document)
            for at in range(2, len(padded)):
                for order in range(3):
                    gram = padded[at - order : at + 1]
                    self._counts[order][gram] += 1
                    self._contexts[order][gram[:-1]] += 1

    def _estimates(self, gram: tuple[int, ...]) -> list[float]:
        found = [1.0 / self._vocab_size]
        for order in range(3):
            part = gram[2 - order :]
            context = self._contexts[order][part[:-1]]
            found.append(self._counts[order][part] / context if context else found[-1])
        return found

    def fit_weights(self, documents: Sequence[Sequence[int]], n_rounds: int = 8) -> None:
        """Fit the interpolation on held-out documents."""
        grams = [
            self._estimates((*padded[at - 2 : at], padded[at]))
            for document in documents
            for padded in [(-1, -1, *document)]
            for at in range(2, len(padded))
        ]
        for _ in range(n_rounds):
            totals = [1e-9] * 4
            for parts in grams:
                mixed = sum(w * p for w, p in zip(self._weights, parts, strict=True))
                for index, part in enumerate(parts):
                    totals[index] += self._weights[index] * part / mixed
            self._weights = [total / sum(totals) for total in totals]

    def nats(self, document: Sequence[int], which: Sequence[bool]) -> float:
        """Negative log-likelihood of the marked tokens."""
        padded = (-1, -1, *document)
        total = 0.0
        for at, marked in enumerate(which, 2):
            if marked:
                parts = self._estimates((*padded[at - 2 : at], padded[at]))
                total -= math.log(sum(w * p for w, p in zip(self._weights, parts, strict=True)))
        return total
