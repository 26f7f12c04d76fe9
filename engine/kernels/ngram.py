"""Owns drafting on the device: n-grams of the conversation, looked up inside a step's graph.

The host would have to see a step's tokens before it could guess the next ones, and the device would
wait for it. The guesses are those of `drafting.drafters.NgramDrafter` with n-grams of one size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import next_power_of_2
from .places import Places

SIZE = 3  # tokens that must have stood together before
_TILE = 1024


@triton.jit
def _guess(
    places_ptr, guessing_ptr, history_ptr, position_ptr, guesses_ptr, n_guesses_ptr,
    N_TOKENS: tl.constexpr, N_GUESSES: tl.constexpr, GUESSES_PAD: tl.constexpr,
    SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Look through one conversation."""
    sequence = tl.program_id(0)
    place = tl.load(places_ptr + sequence)
    if place > 0:
        n_found = tl.zeros((), tl.int64)
        n_tokens = tl.load(position_ptr + place) + 1
        if (tl.load(guessing_ptr + sequence) != 0) & (n_tokens > SIZE):
            said_ptr = history_ptr + place * N_TOKENS
            best = tl.zeros((), tl.int64)
            for base in range(SIZE, n_tokens, TILE):
                end = base + tl.arange(0, TILE)  # behind where they might stand
                alike = end < n_tokens
                for i in tl.static_range(SIZE):
                    token = tl.load(said_ptr + end - SIZE + i, mask=alike, other=-1)
                    alike &= token == tl.load(said_ptr + n_tokens - SIZE + i)
                best = tl.maximum(best, tl.max(tl.where(alike, end, 0), 0).to(tl.int64))
            n_found += tl.where(best > 0, tl.minimum(n_tokens - best, N_GUESSES), 0)
            at = tl.arange(0, GUESSES_PAD)
            guesses = tl.load(said_ptr + best + at, mask=at < n_found, other=0)
            target = guesses_ptr + place * N_GUESSES + at
            tl.store(target, guesses.to(tl.int64), mask=at < N_GUESSES)
        tl.store(n_guesses_ptr + place, n_found)


def guess(which: Tensor, guessing: Tensor, places: Places) -> None:
    """Guess what followed when a conversation's last `SIZE` tokens last stood together.

    which: int64 [n], of each sequence its place in `places`, 0 for none, whose tokens end at its
    `position`. guessing: int64 [n], 0 where nothing is to be guessed. Fills `places.guesses`,
    `places.n_guesses`.
    """
    n_guesses = places.guesses.shape[1]
    _guess[(len(which),)](
        which, guessing, places.history, places.position, places.guesses, places.n_guesses,
        N_TOKENS=places.history.shape[1], N_GUESSES=n_guesses,
        GUESSES_PAD=next_power_of_2(n_guesses), SIZE=SIZE, TILE=_TILE, num_warps=4,
        enable_fp_fusion=True,
    )  # fmt: skip


def guess_reference(which: Tensor, guessing: Tensor, places: Places) -> None:
    for place, is_guessing in torch.stack((which, guessing), 1).tolist():
        if not place:
            continue
        places.n_guesses[place] = 0
        n_tokens = int(places.position[place]) + 1
        if not is_guessing or n_tokens <= SIZE:
            continue
        said = places.history[place, :n_tokens].tolist()
        ends = (end for end in range(n_tokens - 1, SIZE - 1, -1))
        found = next((end for end in ends if said[end - SIZE : end] == said[-SIZE:]), None)
        if found is not None:
            following = said[found : found + places.guesses.shape[1]]
            places.guesses[place, : len(following)] = torch.tensor(following)
            places.n_guesses[place] = len(following)
