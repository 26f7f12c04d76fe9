"""Owns what the device keeps of each sequence from one step to the next."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from ..sequence import Sequence, common_prefix

N_STAGING = 32  # uploads of tokens under way at once; the next waits for the first


class Places:
    """A place for each sequence that tokens are drawn for; place 0 is for those without.

    history: int32 [places, tokens], what was fed and drawn: n-grams and penalties read it.
    position, token, index: int64 [places], where a reply goes on: the position of its next row, the
    token there, and the index within the reply of the one to be drawn. guesses: int64 [places,
    n_guesses], what may follow that token; n_guesses: int64 [places], how many do.
    Steps write all of it; only what was computed elsewhere (a shared prefix) is uploaded.
    """

    def __init__(
        self, n_sequences: int, n_tokens: int, n_guesses: int, device: torch.device
    ) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        n = 1 + n_sequences
        self.history = zeros(n, n_tokens, dtype=torch.int32)
        self.position, self.token, self.index, self.n_guesses = (zeros(n) for _ in range(4))
        self.guesses = zeros(n, max(1, n_guesses))
        is_cuda = device.type == "cuda"
        self.staging = torch.zeros(N_STAGING, n_tokens, dtype=torch.int32, pin_memory=is_cuda)
        self._uploaded: list[Any] = [
            torch.cuda.Event() if is_cuda else None for _ in range(N_STAGING)
        ]
        self._n_uploads = 0
        self._free = list(range(n_sequences, 0, -1))
        self._places: OrderedDict[int, tuple[int, list[int]]] = OrderedDict()

    def take(self, sequence: Sequence, n_tokens: int, n_fed: int) -> int:
        """The sequence's place, its first `n_tokens` in the history.

        n_fed: tokens behind them that the coming step is fed, and writes there itself.
        """
        key = id(sequence)
        if key not in self._places:
            oldest = None if self._free else self._places.popitem(last=False)[1]
            self._places[key] = (self._free.pop() if oldest is None else oldest[0], [])
        place, known = self._places[key]
        start = min(n_tokens, common_prefix(known, sequence.tokens))
        if start < n_tokens:
            self._upload(place, start, sequence.tokens[start:n_tokens])
        known[start:] = sequence.tokens[start : n_tokens + n_fed]
        self._places.move_to_end(key)
        return place

    def touch(self, sequence: Sequence) -> None:
        """Keep the place of a sequence that goes on by itself; others give theirs up first."""
        self._places.move_to_end(id(sequence))

    def _upload(self, place: int, start: int, tokens: list[int]) -> None:
        which = self._n_uploads % N_STAGING
        self._n_uploads += 1
        staging, uploaded = self.staging[which, : len(tokens)], self._uploaded[which]
        if uploaded is not None:
            uploaded.synchronize()
        staging.numpy()[:] = tokens
        self.history[place, start : start + len(tokens)].copy_(staging, non_blocking=True)
        if uploaded is not None:
            uploaded.record()
