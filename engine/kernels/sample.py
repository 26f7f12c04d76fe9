"""Owns the choice of tokens on the device: temperature, filters and replayable noise.

What is asked of logits beside a choice rides in its passes: what `adjust` does, and the probability
of any of some tokens after staged words, those that end the caller's turn.

It chooses what `sampler.choose` chooses: the same Philox bits for (seed, index, token), the same
double precision, the same filters in the same order. Two candidates whose scores differ by less
than a few units in the last place of a double could come out differently; fp32 logits plus
independent noise are not that close by chance. What lies at the edge of the nucleus within such an
error could be kept by one and dropped by the other, and matters only if it is then also chosen.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..sampler import COLDEST, NO_TOKEN, NOISE_SPAN, choose
from ..types import SamplingParams
from .adjust import MASK_BITS, SAID, Adjustments, adjust_reference, adjusted
from .launch import next_power_of_2

CHUNK = 4096  # tokens per program: 32 programs a row for a vocabulary of 128k
STAGED = -2  # in the place of a row's owner: nobody draws, a probability alone is asked
_STAGED = tl.constexpr(STAGED)
_NO_TOKEN = tl.constexpr(NO_TOKEN)
SPAN = tl.constexpr(NOISE_SPAN)
COLD = tl.constexpr(COLDEST)
FIRST_KEY = tl.constexpr(-(2**31))
NONE = tl.constexpr(2**31 - 1)  # no token: above all ids


@dataclass(frozen=True, slots=True)
class Draws:
    """Sampling parameters of each reply, and the reply of each row; all on the device.

    Of each reply: temperature, top_p: fp64; top_k: int32 or int64; seed: int64 (its low 64 bits);
    index: int32 or int64, that of the next token within the reply. Defaults of `SamplingParams`
    switch off.
    Of each row: owners: int64, the reply, -1 for a row that nobody wants, or `STAGED`; offsets:
    int64, how many tokens after the reply's next one the row's is.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    index: Tensor
    owners: Tensor
    offsets: Tensor


@dataclass(frozen=True, slots=True)
class Ends:
    """ids: int64 [k], k > 0, the tokens. probability: fp64 [rows], written where it is asked."""

    ids: Tensor
    probability: Tensor


@dataclass(frozen=True, slots=True)
class SampleSpace:
    """Workspace of `sample` for up to `rows` rows.

    Per chunk of the vocabulary: the largest logit (fp32), the sum of weights relative to it (fp64),
    the best noisy score (fp64) and whose it is (int32), [rows, n_chunks] each.
    Per row: the filters' candidates (ids and keys int32, weights fp64, [rows, vocab] each), and
    `floor` int32 [rows, 2]: the smallest kept key, and the last token kept of those at it.
    A key is a logit as an integer of the same order.
    """

    chunk_best: Tensor
    chunk_sum: Tensor
    chunk_score: Tensor
    chunk_winner: Tensor
    ids: Tensor
    keys: Tensor
    weights: Tensor
    floor: Tensor

    @classmethod
    def allocate(cls, rows: int, vocab: int, device: torch.device) -> "SampleSpace":
        def empty(n: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(rows, n, dtype=dtype, device=device)

        n_chunks = triton.cdiv(vocab, CHUNK)
        return cls(
            chunk_best=empty(n_chunks, torch.float32),
            chunk_sum=empty(n_chunks, torch.float64),
            chunk_score=empty(n_chunks, torch.float64),
            chunk_winner=empty(n_chunks, torch.int32),
            ids=empty(vocab, torch.int32),
            keys=empty(vocab, torch.int32),
            weights=empty(vocab, torch.float64),
            floor=empty(2, torch.int32),
        )

    def of(self, n_rows: int) -> "SampleSpace":
        """The workspace of the first rows."""
        parts = {name: getattr(self, name)[:n_rows] for name in self.__dataclass_fields__}
        return SampleSpace(**parts)


@triton.jit
def _share_of(
    logits_ptr, row, chunk_best_ptr, chunk_sum_ptr, ids_ptr,
    VOCAB: tl.constexpr, N_CHUNKS: tl.constexpr, CHUNKS_PAD: tl.constexpr, N_IDS: tl.constexpr,
    IDS_PAD: tl.constexpr,
):  # fmt: skip
    """Sum the probabilities of some tokens after a row whose logits are finite.

    chunk_best, chunk_sum: of each chunk the largest logit, and the sum of weights relative to it.
    """
    chunk = tl.arange(0, CHUNKS_PAD)
    at = row * N_CHUNKS + chunk
    bests = tl.load(chunk_best_ptr + at, mask=chunk < N_CHUNKS, other=float("-inf"))
    sums = tl.load(chunk_sum_ptr + at, mask=chunk < N_CHUNKS, other=0.0)
    best = tl.max(bests, 0)
    total = tl.sum(sums * tl.exp(bests - best), 0)
    place = tl.arange(0, IDS_PAD)
    token = tl.load(ids_ptr + place, mask=place < N_IDS, other=0)
    logits = tl.load(logits_ptr + row * VOCAB + token, mask=place < N_IDS, other=float("-inf"))
    return tl.sum(tl.exp(logits - best), 0) / total


@triton.jit
def _survey(
    logits_ptr, owners_ptr, temperature_ptr, top_p_ptr, chunk_best_ptr, chunk_sum_ptr,
    presence_ptr, frequency_ptr, said_from_ptr, places_ptr, rows_ptr, mask_lines_ptr,
    kept_lines_ptr, masks_ptr, kept_ptr, positions_ptr, history_ptr,
    VOCAB: tl.constexpr, CHUNK: tl.constexpr, N_CHUNKS: tl.constexpr, IS_ADJUSTED: tl.constexpr,
    N_WORDS: tl.constexpr, N_TOKENS: tl.constexpr, SAID: tl.constexpr, MASK_BITS: tl.constexpr,
):  # fmt: skip
    """Adjust one chunk of one row; its largest logit and sum of weights."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    owner = tl.load(owners_ptr + row)
    is_staged = owner == _STAGED
    if (owner >= 0) | is_staged:
        token = chunk * CHUNK + tl.arange(0, CHUNK)
        logits = load_logits(logits_ptr, row, token, VOCAB)
        if IS_ADJUSTED:
            if owner >= 0:
                logits = adjusted(
                    logits, logits_ptr, row, owner, token, presence_ptr, frequency_ptr,
                    said_from_ptr, places_ptr, rows_ptr, mask_lines_ptr, kept_lines_ptr, masks_ptr,
                    kept_ptr, positions_ptr, history_ptr,
                    VOCAB, CHUNK, N_WORDS, N_TOKENS, SAID, MASK_BITS,
                )  # fmt: skip
        best = tl.max(logits, 0)
        tl.store(chunk_best_ptr + row * N_CHUNKS + chunk, best)
        total = tl.zeros((), tl.float64)
        if is_staged:
            total += tl.sum(tl.exp(logits - best), 0).to(tl.float64)
        else:
            temperature = tl.load(temperature_ptr + owner)
            # It serves top-p alone, and a thousand double exponentials cost a microsecond.
            has_sum = (temperature >= COLD) & (tl.load(top_p_ptr + owner) < 1.0)
            if has_sum & (best > float("-inf")):
                gaps = logits.to(tl.float64) - best.to(tl.float64)
                total += tl.sum(tl.exp(gaps / temperature), 0)
        tl.store(chunk_sum_ptr + row * N_CHUNKS + chunk, total)


# -- what top-k and top-p keep of a row's tokens, as `sampler.choose` does, ties and all ----------


@triton.jit
def load_logits(logits_ptr, row, token, VOCAB: tl.constexpr):
    """Logits of one row, -inf past the end."""
    logits = tl.load(logits_ptr + row * VOCAB + token, mask=token < VOCAB, other=float("-inf"))
    return logits + 0.0  # -0.0 becomes 0.0: equal logits must have equal keys


@triton.jit
def keys(logits):
    """Integers in the order of the floats."""
    bits = logits.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def row_best(chunk_best_ptr, row, N_CHUNKS: tl.constexpr, CHUNKS_PAD: tl.constexpr):
    chunk = tl.arange(0, CHUNKS_PAD)
    at = chunk_best_ptr + row * N_CHUNKS + chunk
    return tl.max(tl.load(at, mask=chunk < N_CHUNKS, other=float("-inf")), 0)


@triton.jit
def filter_row(
    logits_ptr, owners_ptr, temperature_ptr, top_k_ptr, top_p_ptr,
    chunk_best_ptr, chunk_sum_ptr, ids_ptr, keys_ptr, weights_ptr, floor_ptr,
    VOCAB: tl.constexpr, CHUNK: tl.constexpr, N_CHUNKS: tl.constexpr, CHUNKS_PAD: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Find the `floor` that top-k and top-p keep of one row."""
    row = tl.program_id(0).to(tl.int64)
    owner = tl.load(owners_ptr + row)
    temperature = tl.load(temperature_ptr + owner, mask=owner >= 0, other=0.0)
    top_k = tl.load(top_k_ptr + owner, mask=owner >= 0, other=0).to(tl.int32)
    top_p = tl.load(top_p_ptr + owner, mask=owner >= 0, other=1.0)
    floor = tl.full((), FIRST_KEY, tl.int32)
    last = tl.full((), NONE, tl.int32)
    if (temperature >= COLD) & ((top_k > 0) | (top_p < 1.0)):
        best = row_best(chunk_best_ptr, row, N_CHUNKS, CHUNKS_PAD)
        chunk = tl.arange(0, CHUNKS_PAD)
        at = row * N_CHUNKS + chunk
        sums = tl.load(chunk_sum_ptr + at, mask=chunk < N_CHUNKS, other=0.0)
        bests = tl.load(chunk_best_ptr + at, mask=chunk < N_CHUNKS, other=float("-inf"))
        shares = tl.exp((bests.to(tl.float64) - best.to(tl.float64)) / temperature)
        total = tl.sum(sums * shares, 0)
        ids_ptr += row * VOCAB
        keys_ptr += row * VOCAB
        weights_ptr += row * VOCAB
        span = tl.full((), SPAN, tl.float64)
        if (top_k == 0) & (top_p < 1.0):
            # Tokens rarer than this have less than 1 - top_p between them: none is in the nucleus.
            span = tl.minimum(span, 1e-6 - tl.log((1.0 - top_p) * total / VOCAB))
        n_found = _gather(
            logits_ptr, chunk_best_ptr + row * N_CHUNKS, row, best, temperature, span,
            ids_ptr, keys_ptr, weights_ptr, VOCAB, CHUNK, N_CHUNKS, STEP,
        )  # fmt: skip
        tl.debug_barrier()  # the rest reads what other threads of this program have stored
        top_key = keys(best).to(tl.int64)
        cut = tl.full((), FIRST_KEY, tl.int64)
        n_tied = tl.full((), NONE, tl.int64)
        if (top_k > 0) & (top_k < n_found):
            cut, n_tied, total = _cut_top_k(keys_ptr, weights_ptr, n_found, top_k, top_key, STEP)
        if top_p < 1.0:
            cut, n_tied = _cut_top_p(
                keys_ptr, weights_ptr, n_found, top_p * total, cut, n_tied, top_key, STEP
            )
        floor, last = _floor(ids_ptr, keys_ptr, n_found, cut, n_tied, STEP)
    tl.store(floor_ptr + row * 2, floor)
    tl.store(floor_ptr + row * 2 + 1, last)


@triton.jit
def _gather(
    logits_ptr, chunk_best_ptr, row, best, temperature, span,
    ids_ptr, keys_ptr, weights_ptr,
    VOCAB: tl.constexpr, CHUNK: tl.constexpr, N_CHUNKS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """List the tokens within `span` (in scores) of the best, by id; returns how many."""
    n_found = tl.full((), 0, tl.int32)
    for chunk in range(N_CHUNKS):
        gap = best.to(tl.float64) - tl.load(chunk_best_ptr + chunk).to(tl.float64)
        if gap / temperature <= span:
            for base in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, VOCAB), STEP):
                token = base + tl.arange(0, STEP)
                logits = load_logits(logits_ptr, row, token, VOCAB)
                score = (logits.to(tl.float64) - best.to(tl.float64)) / temperature
                is_near = score >= -span
                place = n_found + tl.cumsum(is_near.to(tl.int32), 0) - 1
                tl.store(ids_ptr + place, token, mask=is_near)
                tl.store(keys_ptr + place, keys(logits), mask=is_near)
                tl.store(weights_ptr + place, tl.exp(score), mask=is_near)
                n_found += tl.sum(is_near.to(tl.int32), 0)
    return n_found


@triton.jit
def _above(keys_ptr, weights_ptr, n_found, key, STEP: tl.constexpr):
    """Count and weigh the candidates above `key`; and weigh one that is at it."""
    count = tl.full((), 0, tl.int32)
    mass = tl.full((), 0.0, tl.float64)
    tied_weight = tl.full((), 0.0, tl.float64)
    for base in range(0, n_found, STEP):
        at = base + tl.arange(0, STEP)
        keys = tl.load(keys_ptr + at, mask=at < n_found, other=FIRST_KEY).to(tl.int64)
        weights = tl.load(weights_ptr + at, mask=at < n_found, other=0.0)
        count += tl.sum((keys > key).to(tl.int32), 0)
        mass += tl.sum(tl.where(keys > key, weights, 0.0), 0)
        tied_weight = tl.maximum(tied_weight, tl.max(tl.where(keys == key, weights, 0.0), 0))
    return count, mass, tied_weight


@triton.jit
def _cut_top_k(keys_ptr, weights_ptr, n_found, top_k, top_key, STEP: tl.constexpr):
    """The k-th largest key, how many at it are kept, and the weight of all that are."""
    low = tl.full((), FIRST_KEY, tl.int64)
    high = top_key
    while low < high:  # the largest key with k candidates at or above it
        middle = (low + high + 1) >> 1
        count, _, _ = _above(keys_ptr, weights_ptr, n_found, middle - 1, STEP)
        if count >= top_k:
            low = middle
        else:
            high = middle - 1
    count, mass, tied_weight = _above(keys_ptr, weights_ptr, n_found, low, STEP)
    n_tied = (top_k - count).to(tl.int64)
    return low, n_tied, mass + n_tied.to(tl.float64) * tied_weight


@triton.jit
def _cut_top_p(
    keys_ptr, weights_ptr, n_found, mass_wanted, cut, n_tied, top_key, STEP: tl.constexpr
):
    """The smallest key, not below `cut`, with less than the wanted mass above it."""
    low = cut
    high = top_key
    while low < high:
        middle = (low + high) >> 1
        _, mass, _ = _above(keys_ptr, weights_ptr, n_found, middle, STEP)
        if mass < mass_wanted:
            high = middle
        else:
            low = middle + 1
    _, mass, tied_weight = _above(keys_ptr, weights_ptr, n_found, low, STEP)
    if tied_weight > 0.0:  # else `low` is the floor of all keys: everything is kept
        # A tied token is kept while what comes before it is less than the wanted mass.
        n_fitting = tl.ceil((mass_wanted - mass) / tied_weight).to(tl.int64)
        n_tied = tl.where(low > cut, n_fitting, tl.minimum(n_tied, n_fitting))
    return low, n_tied


@triton.jit
def _floor(ids_ptr, keys_ptr, n_found, cut, n_tied, STEP: tl.constexpr):
    """The smallest kept key, and the id of the last token kept at it."""
    least = tl.full((), NONE, tl.int64)  # smallest key of a candidate
    last = tl.full((), -1, tl.int32)
    n_seen = tl.full((), 0, tl.int64)
    for base in range(0, n_found, STEP):
        at = base + tl.arange(0, STEP)
        inside = at < n_found
        keys = tl.load(keys_ptr + at, mask=inside, other=FIRST_KEY).to(tl.int64)
        least = tl.minimum(least, tl.min(tl.where(inside, keys, NONE), 0))
        is_tied = (inside & (keys == cut)).to(tl.int64)
        is_kept = (is_tied != 0) & (n_seen + tl.cumsum(is_tied, 0) <= n_tied)
        ids = tl.load(ids_ptr + at, mask=inside, other=0)
        last = tl.maximum(last, tl.max(tl.where(is_kept, ids, -1), 0))
        n_seen += tl.sum(is_tied, 0)
    if least > cut:
        cut = least
        last = tl.full((), NONE, tl.int32)
    return cut.to(tl.int32), last


# -- the choice --------------------------------------------------------------------------------


@triton.jit
def _draw(
    logits_ptr, owners_ptr, offsets_ptr, temperature_ptr, seed_ptr, index_ptr, floor_ptr,
    chunk_best_ptr, chunk_score_ptr, chunk_winner_ptr,
    VOCAB: tl.constexpr, CHUNK: tl.constexpr, N_CHUNKS: tl.constexpr, CHUNKS_PAD: tl.constexpr,
):  # fmt: skip
    """Best noisy score of one chunk of one row, among the tokens the filters kept."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    owner = tl.load(owners_ptr + row)
    at = row * N_CHUNKS + chunk
    score = tl.full((), float("-inf"), tl.float64)
    winner = tl.full((), NONE, tl.int32)
    if owner >= 0:
        best = row_best(chunk_best_ptr, row, N_CHUNKS, CHUNKS_PAD)
        temperature = tl.load(temperature_ptr + owner)
        is_greedy = temperature < COLD
        gap = best.to(tl.float64) - tl.load(chunk_best_ptr + at).to(tl.float64)
        if gap <= tl.where(is_greedy, 0.0, SPAN * temperature):  # else none of the chunk can win
            token = chunk * CHUNK + tl.arange(0, CHUNK)
            logits = load_logits(logits_ptr, row, token, VOCAB)
            scores = logits.to(tl.float64)
            if not is_greedy:
                index = (tl.load(index_ptr + owner) + tl.load(offsets_ptr + row)).to(tl.int32)
                bits = tl.philox(tl.load(seed_ptr + owner), token, index, 0, 0)[0]
                uniform = (bits.to(tl.float64) + 0.5) / 4294967296.0
                scores = scores / temperature - tl.log(-tl.log(uniform))
                floor = tl.load(floor_ptr + row * 2)
                last = tl.load(floor_ptr + row * 2 + 1)
                key = keys(logits)
                is_kept = (key > floor) | ((key == floor) & (token <= last))
                scores = tl.where(is_kept, scores, float("-inf"))
            score = tl.max(scores, 0)
            winner = tl.min(tl.where(scores == score, token, NONE), 0)  # ties: the smaller id
    tl.store(chunk_score_ptr + at, score)
    tl.store(chunk_winner_ptr + at, winner)


@triton.jit
def _pick(
    logits_ptr, owners_ptr, chunk_best_ptr, chunk_sum_ptr, chunk_score_ptr, chunk_winner_ptr,
    tokens_ptr, ids_ptr, probability_ptr,
    VOCAB: tl.constexpr, N_CHUNKS: tl.constexpr, CHUNKS_PAD: tl.constexpr, N_IDS: tl.constexpr,
    IDS_PAD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if N_IDS > 0:
        if tl.load(owners_ptr + row) == _STAGED:
            share = _share_of(
                logits_ptr, row, chunk_best_ptr, chunk_sum_ptr, ids_ptr, VOCAB, N_CHUNKS,
                CHUNKS_PAD, N_IDS, IDS_PAD,
            )  # fmt: skip
            tl.store(probability_ptr + row, share.to(tl.float64))
    chunk = tl.arange(0, CHUNKS_PAD)
    at = row * N_CHUNKS + chunk
    scores = tl.load(chunk_score_ptr + at, mask=chunk < N_CHUNKS, other=float("-inf"))
    winners = tl.load(chunk_winner_ptr + at, mask=chunk < N_CHUNKS, other=NONE)
    winner = tl.min(tl.where(scores == tl.max(scores, 0), winners, NONE), 0)
    # Of a row without numbers nobody wins. The step ahead embeds what is said here: an id that
    # there is not would end the device for all replies.
    tl.store(tokens_ptr + row, tl.where(winner == NONE, _NO_TOKEN, winner).to(tl.int64))


def sample(
    logits: Tensor, draws: Draws, space: SampleSpace, tokens: Tensor,
    asked: Adjustments | None = None, ends: Ends | None = None,
) -> None:  # fmt: skip
    """tokens[row] = what `sampler.choose` would choose; rows that nobody wants get any number.

    logits: fp32 [rows, vocab], changed as `asked`; where a row holds no numbers its token is
        `NO_TOKEN`.
    tokens: int64 [rows]. ends: what is asked of staged rows, None where none are.
    """
    rows, vocab = logits.shape
    n_chunks = triton.cdiv(vocab, CHUNK)
    pad = next_power_of_2(n_chunks)
    sizes = {"VOCAB": vocab, "CHUNK": CHUNK, "N_CHUNKS": n_chunks}
    # Contracting to fused multiply-adds would make doubles differ from numpy's.
    options = {"num_warps": 8, "enable_fp_fusion": False}
    fields = [getattr(asked, name, logits) for name in Adjustments.__dataclass_fields__]
    _survey[(rows, n_chunks)](
        logits, draws.owners, draws.temperature, draws.top_p, space.chunk_best, space.chunk_sum,
        *fields, IS_ADJUSTED=asked is not None,
        N_WORDS=1 if asked is None else asked.masks.shape[1],
        N_TOKENS=1 if asked is None else asked.history.shape[1],
        SAID=SAID, MASK_BITS=MASK_BITS, **sizes, **options,
    )  # fmt: skip
    filter_row[(rows,)](
        logits, draws.owners, draws.temperature, draws.top_k, draws.top_p,
        space.chunk_best, space.chunk_sum, space.ids, space.keys, space.weights, space.floor,
        # A thread of 16 warps may have 128 registers, too few for these doubles.
        CHUNKS_PAD=pad, STEP=min(CHUNK, 4096), **sizes, **options,
    )  # fmt: skip
    _draw[(rows, n_chunks)](
        logits, draws.owners, draws.offsets, draws.temperature, draws.seed, draws.index,
        space.floor,
        space.chunk_best, space.chunk_score, space.chunk_winner,
        CHUNKS_PAD=pad, **sizes, **options,
    )  # fmt: skip
    n_ids = 0 if ends is None else len(ends.ids)
    _pick[(rows,)](
        logits, draws.owners, space.chunk_best, space.chunk_sum, space.chunk_score,
        space.chunk_winner, tokens, tokens if ends is None else ends.ids,
        tokens if ends is None else ends.probability,
        VOCAB=vocab, N_CHUNKS=n_chunks, CHUNKS_PAD=pad, N_IDS=n_ids,
        IDS_PAD=next_power_of_2(n_ids), num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip


def sample_reference(
    logits: Tensor, draws: Draws, space: SampleSpace, tokens: Tensor,
    asked: Adjustments | None = None, ends: Ends | None = None,
) -> None:  # fmt: skip
    if asked is not None:
        adjust_reference(logits, draws.owners, asked)
    for row, owner in enumerate(draws.owners.tolist()):
        if owner == STAGED and ends is not None:
            ends.probability[row] = logits[row].softmax(-1)[ends.ids].sum()
        if owner < 0:
            continue
        params = SamplingParams(
            temperature=draws.temperature[owner].item(),
            top_k=int(draws.top_k[owner]),
            top_p=draws.top_p[owner].item(),
        )
        index = int(draws.index[owner] + draws.offsets[row])
        tokens[row] = choose(logits[row], params, int(draws.seed[owner]), index)
