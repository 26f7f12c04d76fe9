"""Owns what top-k and top-p keep of a row's tokens, as `sampler.choose` does, ties and all.

A key is a logit as an integer of the same order.
"""

import triton
import triton.language as tl

from ..sampler import COLDEST, NOISE_SPAN

SPAN = tl.constexpr(NOISE_SPAN)
COLD = tl.constexpr(COLDEST)
FIRST_KEY = tl.constexpr(-(2**31))
NO_TOKEN = tl.constexpr(2**31 - 1)


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
    """Where top-k and top-p cut one row off: `floor`."""
    row = tl.program_id(0).to(tl.int64)
    owner = tl.load(owners_ptr + row)
    temperature = tl.load(temperature_ptr + owner, mask=owner >= 0, other=0.0)
    top_k = tl.load(top_k_ptr + owner, mask=owner >= 0, other=0).to(tl.int32)
    top_p = tl.load(top_p_ptr + owner, mask=owner >= 0, other=1.0)
    floor = tl.full((), FIRST_KEY, tl.int32)
    last = tl.full((), NO_TOKEN, tl.int32)
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
        n_tied = tl.full((), NO_TOKEN, tl.int64)
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
    """Of the candidates above `key`: how many, and their weight; and the weight of one at it."""
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
    least = tl.full((), NO_TOKEN, tl.int64)  # smallest key of a candidate
    last = tl.full((), -1, tl.int32)
    n_seen = tl.full((), 0, tl.int64)
    for base in range(0, n_found, STEP):
        at = base + tl.arange(0, STEP)
        inside = at < n_found
        keys = tl.load(keys_ptr + at, mask=inside, other=FIRST_KEY).to(tl.int64)
        least = tl.minimum(least, tl.min(tl.where(inside, keys, NO_TOKEN), 0))
        is_tied = (inside & (keys == cut)).to(tl.int64)
        is_kept = (is_tied != 0) & (n_seen + tl.cumsum(is_tied, 0) <= n_tied)
        ids = tl.load(ids_ptr + at, mask=inside, other=0)
        last = tl.maximum(last, tl.max(tl.where(is_kept, ids, -1), 0))
        n_seen += tl.sum(is_tied, 0)
    if least > cut:
        cut = least
        last = tl.full((), NO_TOKEN, tl.int32)
    return cut.to(tl.int32), last
