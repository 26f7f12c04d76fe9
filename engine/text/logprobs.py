"""Owns what a caller who asks for log probabilities is told of each token of a reply.

They are the model's own, before penalties, grammar and temperature: what was likely, not what was
allowed. A token's text is what it adds to the token before it, as in the reply.
"""

import torch
from torch import Tensor

from ..types import TokenLogprob
from .text import Text


def describe(text: Text, row: Tensor, before: list[int], token: int, n_top: int) -> TokenLogprob:
    """The chosen `token` and the `n_top` likeliest under the logits `row` [vocab].

    before: the reply so far.
    """
    logprobs = torch.log_softmax(row.float(), -1)
    context = before[-1:]
    start = len(text.decode(context))

    def spelled(one: int) -> str:
        return text.special.get(one) or text.decode([*context, one])[start:]

    values, ids = logprobs.topk(n_top) if n_top else (logprobs[:0], logprobs[:0])
    likeliest = zip(ids.tolist(), values.tolist(), strict=True)
    top = tuple((spelled(int(one)), value) for one, value in likeliest)
    return TokenLogprob(spelled(token), float(logprobs[token]), top)
