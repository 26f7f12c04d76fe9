"""Owns drafting on the device: n-grams of the conversation, looked up inside a step's graph.

The host would have to see a step's tokens before it could guess the next ones, and the device would
wait for it. The guesses are those of `speculative.NgramDrafter` with n-grams of one size.
"""

from collections import OrderedDict

import torch
from torch import Tensor

from ..sequence import Sequence, common_prefix

SIZE = 3  # tokens that must have stood together before


def guess(history: Tensor, slots: Tensor, n_tokens: Tensor, n_most: int) -> tuple[Tensor, Tensor]:
    """What followed the last time a conversation's last `SIZE` tokens stood together.

    history: int32 [conversations, places]; slots, n_tokens: int64 [n]. Returns guesses [n, n_most]
    (int32) and how many of each row are meant: int64 [n].
    """
    said = history[slots]
    places = torch.arange(SIZE, said.shape[1], device=said.device)
    ends = n_tokens[:, None] - SIZE + torch.arange(SIZE, device=said.device)
    last = said.gather(1, ends.clamp_min(0))
    # The tokens before place p are those at the end, and p is not the end itself.
    alike = (places < n_tokens[:, None]) & (n_tokens[:, None] > SIZE)
    for i in range(SIZE):
        alike &= said[:, i : i - SIZE] == last[:, i : i + 1]
    place = torch.where(alike, places, 0).amax(1)
    following = place[:, None] + torch.arange(n_most, device=said.device)
    guesses = said.gather(1, following.clamp_max(said.shape[1] - 1))
    n_guesses = (n_tokens - place).clamp_max(n_most) * (place > 0)
    return guesses, n_guesses


class DeviceHistory:
    """The tokens of every conversation on the device, a place each; place 0 is for padding.

    Steps write what they are fed; only what was computed elsewhere (a shared prefix) is uploaded,
    in the order of the steps. A wrong token here costs a wrong guess, nothing else.
    """

    def __init__(self, n_conversations: int, n_tokens: int, device: torch.device) -> None:
        shape = (1 + n_conversations, n_tokens)
        self.tokens = torch.zeros(shape, dtype=torch.int32, device=device)
        # A row for each place, so that no upload waits for another: a conversation's last one was
        # over when the results of its last step were read.
        self._staging = torch.zeros(
            shape, dtype=torch.int32, pin_memory=device.type == "cuda"
        )  # fmt: skip
        self._host = self._staging.numpy()
        self._free = list(range(n_conversations, 0, -1))
        self._places: OrderedDict[int, tuple[int, list[int]]] = OrderedDict()

    def place(self, sequence: Sequence, n_fed: int) -> int:
        """Where the conversation stands, its resident tokens uploaded where they are not.

        n_fed: pending tokens that the coming step is fed, and writes there itself.
        """
        key, n = id(sequence), sequence.n_resident
        if key not in self._places:
            oldest = None if self._free else self._places.popitem(last=False)[1]
            self._places[key] = (self._free.pop() if oldest is None else oldest[0], [])
        place, known = self._places[key]
        start = min(n, common_prefix(known, sequence.tokens))
        if start < n:
            self._host[place, start:n] = sequence.tokens[start:n]
            self.tokens[place, start:n].copy_(self._staging[place, start:n], non_blocking=True)
        known[start:] = sequence.tokens[start : n + n_fed]
        self._places.move_to_end(key)
        return place
