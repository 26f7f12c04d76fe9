"""Owns the probability of any of some tokens after some rows: those that end the caller's turn.

It is asked of few rows of a step, or of none, which must cost next to nothing: one pass over those
rows' logits by many programs, then one small merge.
"""

import triton
import triton.language as tl
from torch import Tensor

from .launch import next_power_of_2

CHUNK = 4096  # tokens per program: 32 programs a row for a vocabulary of 128k


@triton.jit
def _masses(
    logits_ptr, rows_ptr, masses_ptr,
    VOCAB: tl.constexpr, CHUNK: tl.constexpr, N_CHUNKS: tl.constexpr,
):  # fmt: skip
    """Of one chunk of one row, the largest logit and the sum of weights relative to it."""
    at, chunk = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows_ptr + at).to(tl.int64)
    if row >= 0:
        token = chunk * CHUNK + tl.arange(0, CHUNK)
        logits = tl.load(logits_ptr + row * VOCAB + token, mask=token < VOCAB, other=float("-inf"))
        best = tl.max(logits, 0)
        target = masses_ptr + (at * N_CHUNKS + chunk) * 2
        tl.store(target, best)
        tl.store(target + 1, tl.sum(tl.exp(logits - best), 0))


@triton.jit
def _probability(
    logits_ptr, rows_ptr, tokens_ptr, masses_ptr, out_ptr,
    N_TOKENS: tl.constexpr, TOKENS_PAD: tl.constexpr, VOCAB: tl.constexpr,
    N_CHUNKS: tl.constexpr, CHUNKS_PAD: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0)
    row = tl.load(rows_ptr + at).to(tl.int64)
    if row >= 0:
        chunk = tl.arange(0, CHUNKS_PAD)
        inside = chunk < N_CHUNKS
        source = masses_ptr + (at * N_CHUNKS + chunk) * 2
        bests = tl.load(source, mask=inside, other=float("-inf"))
        sums = tl.load(source + 1, mask=inside, other=0.0)
        best = tl.max(bests, 0)
        total = tl.sum(sums * tl.exp(bests - best), 0)
        at_token = tl.arange(0, TOKENS_PAD)
        given = at_token < N_TOKENS
        token = tl.load(tokens_ptr + at_token, mask=given, other=0)
        logits = tl.load(logits_ptr + row * VOCAB + token, mask=given, other=float("-inf"))
        weight = tl.sum(tl.exp(logits - best), 0)
        tl.store(out_ptr + at, (weight / total).to(tl.float64))


def n_chunks(vocab: int) -> int:
    return triton.cdiv(vocab, CHUNK)


def probability(logits: Tensor, rows: Tensor, tokens: Tensor, masses: Tensor, out: Tensor) -> None:
    """out[i] = sum of softmax(logits[rows[i]])[tokens]; of a row -1 whatever it was.

    logits: fp32 [any, vocab], finite. rows: int64 [n]. tokens: int64 [k], k > 0. out: fp64 [n].
    masses: fp32 [n, n_chunks(vocab), 2], workspace.
    """
    n, vocab = len(rows), logits.shape[1]
    chunks = n_chunks(vocab)
    sizes = {"VOCAB": vocab, "N_CHUNKS": chunks}
    _masses[(n, chunks)](
        logits, rows, masses, CHUNK=CHUNK, **sizes, num_warps=8, enable_fp_fusion=True
    )
    _probability[(n,)](
        logits, rows, tokens, masses, out, N_TOKENS=len(tokens),
        TOKENS_PAD=next_power_of_2(len(tokens)), CHUNKS_PAD=next_power_of_2(chunks), **sizes,
        num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip


def probability_reference(
    logits: Tensor, rows: Tensor, tokens: Tensor, masses: Tensor, out: Tensor
) -> None:
    asked = rows >= 0
    out[asked] = logits[rows[asked]].softmax(-1)[:, tokens].sum(-1).to(out.dtype)
