"""Owns the comparison of drafted tokens with the tokens that were sampled at their places."""

from torch import Tensor

from .attention import Rows


def verify(
    inputs: Tensor,
    chosen: Tensor,
    rows: Rows,
    n_known: Tensor,
    n_accepted: Tensor,
    next_tokens: Tensor,
) -> None:
    """How many guesses of each sequence stand, and the token that follows them.

    inputs: int64 [rows], the tokens fed: of each sequence `n_known` known ones, then guesses.
    chosen: int64 [rows], what `sample` chose after each row. n_known: int32 [n], at least 1.
    n_accepted: int32 [n], leading guesses that equal what was chosen at their place.
    next_tokens: int64 [n], what was chosen after the last of those. A sequence of no rows gets 0
    and -1.
    """
    raise NotImplementedError


def verify_reference(
    inputs: Tensor,
    chosen: Tensor,
    rows: Rows,
    n_known: Tensor,
    n_accepted: Tensor,
    next_tokens: Tensor,
) -> None:
    for i, (start, count) in enumerate(
        zip(rows.starts.tolist(), rows.counts.tolist(), strict=True)
    ):
        if not count:
            n_accepted[i], next_tokens[i] = 0, -1
            continue
        row, last = start + int(n_known[i]) - 1, start + count - 1
        accepted = 0
        while row < last and inputs[row + 1] == chosen[row]:
            row, accepted = row + 1, accepted + 1
        n_accepted[i], next_tokens[i] = accepted, chosen[row]
