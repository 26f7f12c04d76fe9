"""Phrases that are likelier in this call: a push for their tokens where the sound allows them.

A token is pushed only while the model itself takes it for a rival of its best one, so a phrase
that was not said is not heard; within a phrase the push is larger than for its beginning.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

# In units of log-probability. A rival further behind the best than this was not said, whatever is
# on the menu.
RIVAL_MARGIN = 4.0
BEGIN_PUSH, GO_ON_PUSH = 1.0, 2.0

_Node = dict[int, "_Node"]


class PhraseHints:
    """Token sequences, as the trees of what may come next in one of them."""

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self._root: _Node = {}
        self._longest = 0
        for sequence in sequences:
            node = self._root
            for token in sequence:
                node = node.setdefault(token, {})
            self._longest = max(self._longest, len(sequence))

    def push(self, scores: NDArray[np.float32], said: Sequence[int]) -> None:
        """Raise in place the scores (one a token) of what goes on with or begins a phrase."""
        if not self._root:
            return
        pushes = dict.fromkeys(self._root, BEGIN_PUSH)
        for n_said in range(1, min(self._longest, len(said) + 1)):
            node: _Node | None = self._root
            for token in said[-n_said:]:
                node = node.get(token) if node is not None else None
            pushes |= dict.fromkeys(node or (), GO_ON_PUSH)
        tokens = np.fromiter(pushes, int)
        rivals = scores[tokens] > scores.max() - RIVAL_MARGIN
        scores[tokens[rivals]] += np.fromiter(pushes.values(), np.float32)[rivals]
