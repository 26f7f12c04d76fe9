"""Owns the comparison of drafted tokens with the tokens that were sampled at their places."""

import triton
import triton.language as tl
from torch import Tensor

from .attention import Rows

MOST_GUESSES = tl.constexpr(16)  # of one sequence in one step


@triton.jit
def _verify(
    inputs_ptr, chosen_ptr, starts_ptr, counts_ptr, n_known_ptr, n_accepted_ptr, next_ptr,
):  # fmt: skip
    sequence = tl.program_id(0)
    count = tl.load(counts_ptr + sequence)
    if count == 0:
        tl.store(n_accepted_ptr + sequence, 0)
        tl.store(next_ptr + sequence, -1)
    else:
        n_known = tl.load(n_known_ptr + sequence)
        row = tl.load(starts_ptr + sequence) + n_known - 1  # whose choice the first guess meets
        guess = tl.arange(0, MOST_GUESSES)
        drafted = guess < count - n_known
        expected = tl.load(chosen_ptr + row + guess, mask=drafted, other=0)
        found = tl.load(inputs_ptr + row + 1 + guess, mask=drafted, other=0)
        is_wrong = drafted & (expected != found)
        n_accepted = tl.min(tl.where(is_wrong, guess, count - n_known), 0)
        tl.store(n_accepted_ptr + sequence, n_accepted)
        tl.store(next_ptr + sequence, tl.load(chosen_ptr + row + n_accepted))


def verify(
    inputs: Tensor,
    chosen: Tensor,
    rows: Rows,
    n_known: Tensor,
    n_accepted: Tensor,
    next_tokens: Tensor,
) -> None:
    """How many guesses of each sequence stand, and the token that follows them.

    inputs: int64 [rows], the tokens fed: of each sequence `n_known` known ones, then up to
    `MOST_GUESSES` guesses. chosen: int64 [rows], what `sample` chose after each row.
    n_known: int32 [n], at least 1.
    n_accepted: int32 [n], leading guesses that equal what was chosen at their place.
    next_tokens: int64 [n], what was chosen after the last of those. A sequence of no rows gets 0
    and -1.
    """
    _verify[(rows.starts.shape[0],)](
        inputs, chosen, rows.starts, rows.counts, n_known, n_accepted, next_tokens, num_warps=1,
        enable_fp_fusion=True,
    )  # fmt: skip


def verify_reference(
    inputs: Tensor,
    chosen: Tensor,
    rows: Rows,
    n_known: Tensor,
    n_accepted: Tensor,
    next_tokens: Tensor,
) -> None:
    parts = zip(rows.starts.tolist(), rows.counts.tolist(), strict=True)
    for i, (start, count) in enumerate(parts):
        if not count:
            n_accepted[i], next_tokens[i] = 0, -1
            continue
        row, last = start + int(n_known[i]) - 1, start + count - 1
        accepted = 0
        while row < last and inputs[row + 1] == chosen[row]:
            row, accepted = row + 1, accepted + 1
        n_accepted[i], next_tokens[i] = accepted, chosen[row]
