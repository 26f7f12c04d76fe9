"""Owns the choice of a token from logits: penalties, filters, and exact, replayable randomness.

Sampling is Gumbel-max: token = argmax(log p + g), with noise g a pure function of (seed, index
within the reply, token). The choice at an index therefore depends on nothing but the logits there,
so a drafted token is verified by choosing again and comparing, whoever drafted it.
Source: Daliri et al., "Coupling without communication and drafter-invariant speculative
decoding" (arXiv:2408.07978); Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (Philox).
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .types import SamplingParams

# Noise from 32-bit uniforms lies in -3.1..22.9; a token further below the best cannot win.
NOISE_SPAN = 26.1
# Colder than this only the best token can win: fp32 logits near 10 differ by 1e-6 or not at all,
# and a thousandfold of that is far beyond the noise. Dividing by next to nothing would overflow.
COLDEST = 1e-9
NO_TOKEN = -1  # what is chosen from a row that holds NaN or infinity: nothing

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


def philox(seed: int, index: int, tokens: Ids) -> npt.NDArray[np.uint64]:
    """Philox4x32-10 with counter (token, index, 0, 0): 32 random bits per token.

    The bits that Triton's `tl.philox` gives for that counter and seed.
    """
    key0, key1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    c0 = tokens.astype(np.uint64)
    c1 = np.full_like(c0, index)
    c2, c3 = np.zeros_like(c0), np.zeros_like(c0)
    for _ in range(10):
        product0, product1 = c0 * _M0, c2 * _M1
        c0 = (product1 >> _HALF) ^ c1 ^ np.uint64(key0)
        c2 = (product0 >> _HALF) ^ c3 ^ np.uint64(key1)
        c1, c3 = product1 & _LOW, product0 & _LOW
        key0, key1 = (key0 + _W0) & 0xFFFFFFFF, (key1 + _W1) & 0xFFFFFFFF
    return c0


def gumbel_noise(seed: int, index: int, tokens: Ids) -> Floats:
    """Standard Gumbel noise per token id."""
    uniform = (philox(seed, index, tokens) + 0.5) / 2**32
    noise: Floats = -np.log(-np.log(uniform))
    return noise


def is_greedy(params: SamplingParams) -> bool:
    """Whether the likeliest token is always chosen, whatever was said."""
    penalties = (params.presence_penalty, params.frequency_penalty)
    return params.temperature < COLDEST and not any(penalties)


def penalize(logits: Tensor, params: SamplingParams, reply: Sequence[int]) -> Tensor:
    """Penalties as the OpenAI API defines them; `logits` [vocab] is not changed."""
    presence, frequency = params.presence_penalty, params.frequency_penalty
    if not reply or presence == frequency == 0.0:
        return logits
    counts = Counter(reply)
    tokens = torch.tensor(list(counts), device=logits.device)
    times = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
    return logits.index_add(0, tokens, -(presence + frequency * times))


def choose(logits: Tensor, params: SamplingParams, seed: int, index: int) -> int:
    """The token for position `index` of a reply; `logits` [vocab] are penalized and masked.

    `NO_TOKEN` where the largest of them is no number.
    """
    if params.temperature < COLDEST:
        token = int(logits.argmax())
        return token if logits[token] < np.inf else NO_TOKEN
    scores = logits.cpu().numpy().astype(np.float64) / params.temperature
    if not scores.max() < np.inf:
        return NO_TOKEN
    tokens = np.flatnonzero(scores >= scores.max() - NOISE_SPAN)
    total = _log_sum(scores)
    scores = scores[tokens]
    if params.top_k or params.top_p < 1:
        tokens, scores = _filter(tokens, scores, total, params)
    return int(tokens[(scores + gumbel_noise(seed, index, tokens)).argmax()])


def _log_sum(scores: Floats) -> float:
    best = scores.max()
    return float(best + np.log(np.exp(scores - best).sum()))


def _filter(
    tokens: Ids, scores: Floats, total: float, params: SamplingParams
) -> tuple[Ids, Floats]:
    """top-k, then top-p of what is left; ties go to the smaller id."""
    if params.top_k and params.top_k < len(tokens):
        order = np.argsort(-scores, kind="stable")[: params.top_k]
        tokens, scores = tokens[order], scores[order]
        total = _log_sum(scores)
    elif params.top_p < 1:
        # Tokens rarer than this have less than 1 - top_p between them: none is in the nucleus.
        rare = total + np.log((1 - params.top_p) / len(tokens))
        likely = np.flatnonzero(scores >= min(rare, scores.max()))
        order = likely[np.argsort(-scores[likely], kind="stable")]
        tokens, scores = tokens[order], scores[order]
    if params.top_p < 1:
        probabilities = np.exp(scores - total)
        kept = np.cumsum(probabilities) - probabilities < params.top_p
        tokens, scores = tokens[kept], scores[kept]
    return tokens, scores
