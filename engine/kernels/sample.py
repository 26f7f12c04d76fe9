"""Owns the choice of tokens on the device: temperature, filters, masks and replayable noise.

It chooses what `sampler.choose` chooses: the same Philox bits for (seed, index, token), the same
double precision, filters in the same order. Two candidates whose scores differ by less than a few
units in the last place of a double could come out differently; no fp32 logits are that close by
chance.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..sampler import choose
from ..types import SamplingParams


@dataclass(frozen=True, slots=True)
class Draws:
    """How each row is drawn; all on the device, one entry a row.

    temperature, top_p, min_p: fp64; top_k: int32; seed: int64 (the low 64 bits of the seed);
    index: int32, that of the token within its reply. Defaults of `SamplingParams` switch off.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    index: Tensor


@dataclass(frozen=True, slots=True)
class SampleSpace:
    """Workspace of `sample` for up to `rows` rows."""

    chunk_best: Tensor  # fp32 [rows, n_chunks]
    chunk_sum: Tensor  # fp64 [rows, n_chunks]
    ids: Tensor  # int32 [rows, vocab]: candidates of the filters
    keys: Tensor  # int32 [rows, vocab]: their logits, as integers of the same order
    floor: Tensor  # int64 [rows, 2]: smallest kept key, and the last id kept at it
    winner_score: Tensor  # fp64 [rows, n_chunks]
    winner: Tensor  # int32 [rows, n_chunks]

    @classmethod
    def allocate(cls, rows: int, vocab: int, device: torch.device) -> "SampleSpace":
        raise NotImplementedError


def sample(
    logits: Tensor, draws: Draws, mask: Tensor | None, space: SampleSpace, tokens: Tensor
) -> None:
    """tokens[row] = what `sampler.choose` would choose.

    logits: fp32 [rows, vocab], penalized already. mask: int32 [rows, ceil(vocab / 32)] or None; a
    set bit allows its token, lowest bit first (the form of xgrammar and llguidance).
    tokens: int64 [rows]. At least one token of a row must be allowed.
    """
    raise NotImplementedError


def sample_reference(
    logits: Tensor, draws: Draws, mask: Tensor | None, space: SampleSpace, tokens: Tensor
) -> None:
    for row in range(len(logits)):
        scores = logits[row].float()
        if mask is not None:
            bits = np.unpackbits(mask[row].cpu().numpy().view(np.uint8), bitorder="little")[
                : len(scores)
            ]
            allowed = torch.from_numpy(bits.astype(bool)).to(scores.device)
            scores = scores.masked_fill(~allowed, -torch.inf)
        params = SamplingParams(
            temperature=draws.temperature[row].item(),
            top_k=int(draws.top_k[row]),
            top_p=draws.top_p[row].item(),
            min_p=draws.min_p[row].item(),
        )
        tokens[row] = choose(scores, params, int(draws.seed[row]), int(draws.index[row]))


def sample_bytes(logits: Tensor, mask: Tensor | None) -> int:
    raise NotImplementedError
