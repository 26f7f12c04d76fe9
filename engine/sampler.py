"""Owns the choice of a token from logits: penalties, filters, and exact, replayable randomness.

Sampling is Gumbel-max: token = argmax(log p + g), with noise g a pure function of (seed, index
within the reply, token). The choice at an index therefore depends on nothing but the logits there,
so a drafted token is verified by choosing again and comparing, whoever drafted it.
Source: Daliri et al., "Coupling without communication and drafter-invariant speculative
decoding" (arXiv:2408.07978); Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (Philox).
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from .types import SamplingParams

# Noise from 32-bit uniforms lies in -3.1..22.9; a token further below the best cannot win.
NOISE_SPAN = 26.1

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF


def _multiply(a: Tensor, constant: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a 32 x 32 bit product held in int64."""
    low = a * (constant & 0xFFFF)
    high = a * (constant >> 16) + (low >> 16)
    return high >> 16, ((high & 0xFFFF) << 16) | (low & 0xFFFF)


def philox(seed: int, index: int, tokens: Tensor) -> Tensor:
    """Philox4x32-10 with counter (token, index, 0, 0): 32 random bits per token as int64.

    The same bits as Triton's `tl.randint4x` family gives for that counter and seed.
    """
    key0, key1 = seed & _MASK, (seed >> 32) & _MASK
    c0 = tokens.to(torch.int64)
    c1 = torch.full_like(c0, index)
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    for _ in range(10):
        high0, low0 = _multiply(c0, _M0)
        high1, low1 = _multiply(c2, _M1)
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0, key1 = (key0 + _W0) & _MASK, (key1 + _W1) & _MASK
    return c0


def gumbel_noise(seed: int, index: int, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise per token id: fp64 [n]."""
    uniform = (philox(seed, index, tokens).double() + 0.5) / 2**32
    return -(-uniform.log()).log()


def penalize(
    logits: Tensor, params: SamplingParams, prompt: Sequence[int], reply: Sequence[int]
) -> Tensor:
    """Penalties as the OpenAI API and Hugging Face define them; `logits` [vocab] is not changed.

    repetition looks at prompt and reply, presence and frequency at the reply alone.
    """
    repetition, presence = params.repetition_penalty, params.presence_penalty
    if repetition == 1.0 and presence == 0.0 and params.frequency_penalty == 0.0:
        return logits
    logits = logits.clone()
    if repetition != 1.0:
        seen = torch.tensor(sorted({*prompt, *reply}), device=logits.device)
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / repetition, values * repetition)
    counts = Counter(reply)
    if counts:
        tokens = torch.tensor(list(counts), device=logits.device)
        times = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
        logits[tokens] -= presence + params.frequency_penalty * times
    return logits


def choose(logits: Tensor, params: SamplingParams, seed: int, index: int) -> int:
    """The token for position `index` of a reply; `logits` [vocab] are penalized and masked."""
    if params.temperature == 0:
        return int(logits.argmax())
    scaled = logits.double() / params.temperature
    tokens = (scaled >= scaled.max() - NOISE_SPAN).nonzero()[:, 0]
    scores = scaled[tokens]
    if params.top_k or params.top_p < 1 or params.min_p > 0:
        tokens, scores = _filter(tokens, scores, scaled.logsumexp(0), params)
    return int(tokens[(scores + gumbel_noise(seed, index, tokens)).argmax()])


def _filter(
    tokens: Tensor, scores: Tensor, total: Tensor, params: SamplingParams
) -> tuple[Tensor, Tensor]:
    """top-k, then top-p of what is left, then min-p; ties go to the smaller id."""
    scores, order = scores.sort(descending=True, stable=True)
    tokens = tokens[order]
    n_kept = len(tokens)
    if params.top_k and params.top_k < n_kept:
        n_kept = params.top_k
        total = scores[:n_kept].logsumexp(0)
    probabilities = (scores[:n_kept] - total).exp()
    if params.top_p < 1:
        before = probabilities.cumsum(0) - probabilities
        n_kept = int((before < params.top_p).sum())
    if params.min_p > 0:
        kept = probabilities[:n_kept] >= params.min_p * probabilities[0]
        n_kept = int(kept.sum())
    return tokens[:n_kept], scores[:n_kept]
