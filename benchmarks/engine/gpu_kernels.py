"""Each kernel on a GPU: right on random data with poisoned outputs, and how near to the bandwidth.

A kernel is held against its torch reference; outputs are filled with NaN (or an impossible id)
first, so that an entry nobody wrote shows. Its time is that of graph replays over several copies of
its data, too large together for the cache where a call moves a megabyte or more; what is smaller
says `cached`, as in service, where activations are just written. The share is of a copy's bandwidth
in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.engine import gpu_model
from engine.graphs.part import FEW_ROWS
from engine.kernels import (
    attention,
    gemm_8bit,
    gemm_int4,
    kv_write,
    ngram,
    norm,
    sample,
    silu_mul,
)
from engine.kernels import rows as step_rows
from engine.kernels.adjust import MASK_BITS, Adjustments
from engine.kernels.attention import Partials, Pieces
from engine.kernels.launch import STREAMED_ROWS, compiling
from engine.kernels.places import Places
from engine.kernels.sample import Draws, Ends, SampleSpace
from engine.kv_format import KV_FORMATS
from engine.load.quant import quantize_int4, quantize_int8
from engine.types import BLOCK_TOKENS

Row = tuple[str, Callable[[], dict[str, Any]]]

DEVICE = "cuda"  # tests put "cpu" here, and run the kernels in Triton's interpreter
HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 4096, 14336, 32, 8, 128, 128256  # an 8B Llama
N_CALLS = 20  # at least, in one timed graph; every copy of the data has its turn
CACHE_BYTES = 100e6  # copies of a kernel's data exceed this together: two caches of an H200
MAX_COPIES = 128
TOLERANCE = 0.02  # of the largest entry: bf16 products against fp32


@dataclass(slots=True)
class Case:
    """A kernel's arguments; `outputs` are among them. bytes: that one call must move."""

    kernel: Callable[..., None]
    reference: Callable[..., None]
    arguments: list[Any]
    outputs: list[Tensor]
    n_bytes: int
    sums: tuple[int, ...] = ()  # outputs that are partial sums, compared after adding them up
    predicted_us: float = 0.0  # 0 for a kernel that only moves its bytes


def rows() -> Iterator[Row]:
    for name, make in _cases():

        def measure(make: Callable[[], Case] = make) -> dict[str, Any]:
            with compiling():  # an engine of this process may have been ready before
                return _measure(make)

        yield name, measure


def _cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    for m in (1, 8, 32, 512):
        for n_out, n_in in ((6144, HIDDEN), (HIDDEN, HIDDEN), (2 * INNER, HIDDEN), (HIDDEN, INNER)):
            for quant in ("int4", "int8"):
                yield (
                    f"{quant} gemm {m} x {n_in} x {n_out}",
                    partial(_gemm, quant, m, n_out, n_in),
                )
    for kv_format in KV_FORMATS:
        for batch, n_rows, context in (
            (1, 1, 1024),
            (1, 1, 4096),
            (8, 1, 4096),
            (32, 1, 4096),
            (1, 8, 16384),
            (1, 16, 4096),
        ):
            yield (
                f"decode attention, kv {kv_format}, {batch} x {n_rows} over {context}",
                partial(_attention, kv_format, batch, n_rows, context),
            )
        yield (
            f"prefill attention, kv {kv_format}, 256 over 4096",
            partial(_attention, kv_format, 1, 256, 4096),
        )
        yield f"kv write, {kv_format}, 32 rows", partial(_kv_write, kv_format, 32)
    for m in (1, 32):
        yield f"add norm, {m} rows", partial(_add_norm, m)
        yield f"silu mul, {m} rows", partial(_silu_mul, m)
        for filtered in (False, True):
            name = f"sample, {m} rows{', top-p' if filtered else ''}"
            yield name, partial(_sample, m, filtered)
        for asked in ("adjusted", "staged"):
            yield f"sample, {m} rows, {asked}", partial(_sample, m, False, asked)
    yield "verify, 16 x 8", _verify
    yield "place rows, 16 x 8", partial(_place_rows, 16, 8)
    yield "place rows, 1 x 256", partial(_place_rows, 1, 256)
    yield "guess, 16 x 4096", _guess


def _measure(make: Callable[[], Case]) -> dict[str, Any]:
    """Right, and how fast. Raises: RuntimeError where it is wrong."""
    torch.manual_seed(0)
    case = make()
    before = [out.clone() for out in case.outputs]
    case.reference(*case.arguments)
    expected = [out.clone() for out in case.outputs]
    for out, old in zip(case.outputs, before, strict=True):
        out.copy_(old)
    case.kernel(*case.arguments)
    worst = 0.0
    for i, (found, right) in enumerate(zip(case.outputs, expected, strict=True)):
        a, b = (found.sum(0), right.sum(0)) if i in case.sums else (found, right)
        if a.dtype.is_floating_point and a.element_size() > 1:
            error = float((a.float() - b.float()).abs().max() / b.float().abs().max())
        elif a.dtype == torch.int8:
            error = _codes_apart(a, b, before[i])
        else:
            error = float((a != b).float().max())
        if not error <= TOLERANCE:  # NaN too
            raise RuntimeError(f"expected an error of at most {TOLERANCE}, found {error}")
        worst = max(worst, error)
    took_us, is_cached = _time_us(make, case)
    share = case.n_bytes / (took_us * 1e3) / copy_bandwidth()
    row = {
        "error": None, "worst": worst, "us": round(took_us, 2), "of_copy": round(share, 3),
        "predicted": round(case.predicted_us or gpu_model.streamed_us(case.n_bytes), 2),
        "measured": round(took_us, 2), "unit": "us",
    }  # fmt: skip
    return row | ({"cached": True} if is_cached else {})


def _codes_apart(found: Tensor, right: Tensor, before: Tensor) -> float:
    """The share of the written codes that differ, a tenth of it; 1 where any is far off.

    Codes may differ by one step where a value lies between two; what nobody writes stays.
    """
    steps = (found.int() - right.int()).abs()
    n_written = int((right != before).sum())
    if int(steps.max()) > 1 or int((steps > 0).sum()) > n_written:
        return 1.0
    return float((steps > 0).sum()) / max(1, n_written) / 10


def _time_us(make: Callable[[], Case], case: Case) -> tuple[float, bool]:
    """Median microseconds a call, in a graph over copies of the data; whether the cache has it."""
    n_copies = max(1, min(MAX_COPIES, int(CACHE_BYTES / case.n_bytes) + 1))
    cases = [case, *(make() for _ in range(n_copies - 1))]
    n_calls = max(N_CALLS, n_copies)

    def run() -> None:
        for i in range(n_calls):
            cases[i % n_copies].kernel(*cases[i % n_copies].arguments)

    return _graph_us(run) / n_calls, n_copies * case.n_bytes < CACHE_BYTES


def _graph_us(run: Callable[[], None]) -> float:
    if DEVICE == "cpu":
        began = time.perf_counter()
        run()
        return (time.perf_counter() - began) * 1e6
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    took = []
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        took.append(start.elapsed_time(end) * 1e3)
    return sorted(took)[len(took) // 2]


_bandwidth: list[float] = []


def copy_bandwidth() -> float:
    """GB/s of a device copy of 1 GiB, bytes read and written."""
    if not _bandwidth:
        source = torch.empty(2**30 if DEVICE == "cuda" else 2**20, dtype=torch.uint8, device=DEVICE)
        target = torch.empty_like(source)
        _bandwidth.append(2 * source.nbytes / (_graph_us(lambda: target.copy_(source)) * 1e3))
    return _bandwidth[0]


# -- one case a kernel ---------------------------------------------------------------------------


def _random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def _poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(shape, torch.nan, dtype=dtype, device=DEVICE)


def _packed(quant: str, n_out: int, n_in: int) -> gemm_8bit.Packed8bit | gemm_int4.PackedInt4:
    weight = _random(n_out, n_in).mul_(n_in**-0.5)
    if quant == "int4":
        return gemm_int4.pack_int4(quantize_int4(weight, 128))
    codes = quantize_int8(weight)
    return gemm_8bit.pack_8bit(codes.codes, codes.scale)


def _gemm(quant: str, m: int, n_out: int, n_in: int) -> Case:
    packed, x = _packed(quant, n_out, n_in), _random(m, n_in)
    kernels: tuple[Callable[..., None], ...] = gemm_8bit.gemm_8bit, gemm_8bit.gemm_8bit_reference
    if quant == "int4":
        kernels = gemm_int4.gemm_int4, gemm_int4.gemm_int4_reference
    is_few = m <= STREAMED_ROWS
    dtype = torch.float32 if is_few else torch.bfloat16
    out = _poisoned(packed.n_splits if is_few else 1, m, n_out, dtype=dtype)
    return Case(
        kernels[0], kernels[1], [x, packed, None, out], [out],
        packed.nbytes + x.nbytes + out.nbytes, sums=(0,),
        predicted_us=gpu_model.product_us(n_out, n_in, m, quant),
    )  # fmt: skip


def _pool(kv_format: str, n_tokens: int) -> tuple[Tensor, Tensor]:
    """One layer of random KV."""
    stored = KV_FORMATS[kv_format](torch.bfloat16)
    vectors = _random(n_tokens // BLOCK_TOKENS, BLOCK_TOKENS, 2, KV_HEADS, HEAD_DIM)
    codes, scales = stored.encode(vectors)
    empty = torch.empty(*vectors.shape[:-1], 0, device=DEVICE, dtype=torch.bfloat16)
    return codes.contiguous(), empty if scales is None else scales.contiguous()


def _int32(values: Any) -> Tensor:
    return torch.as_tensor(values, dtype=torch.int32, device=DEVICE)


def _attention(kv_format: str, batch: int, n_rows: int, context: int) -> Case:
    n_blocks = context // BLOCK_TOKENS
    blocks, scales = _pool(kv_format, batch * context)
    tables = _int32(torch.randperm(batch * n_blocks).view(batch, n_blocks))
    pieces, most_rows = _cut(batch, n_rows, context, tables)
    queries = _random(batch * n_rows, HEADS, HEAD_DIM)
    out = _poisoned(batch * n_rows, HEADS * HEAD_DIM, dtype=torch.bfloat16)
    n_bytes = blocks.nbytes + scales.nbytes + 2 * queries.nbytes
    n_split = len(queries) if attention.is_split(most_rows, HEADS, KV_HEADS) else 1
    partials = Partials.allocate(n_split, HEADS, HEAD_DIM, context, queries.device)
    arguments = [queries, blocks, scales, pieces, most_rows, 0, partials, out]
    kernels = attention.paged_attention, attention.paged_attention_reference
    return Case(kernels[0], kernels[1], arguments, [out], n_bytes)


def _cut(batch: int, n_rows: int, context: int, tables: Tensor) -> tuple[Pieces, int]:
    """The last rows of each context in pieces, as a step has them, and a piece's most rows."""
    most_rows = attention.split_piece_rows(HEADS, KV_HEADS)
    if n_rows > FEW_ROWS:
        most_rows = attention.prefill_piece_rows(HEADS, KV_HEADS)
    places = [(owner, at) for owner in range(batch) for at in range(0, n_rows, most_rows)]
    return Pieces(
        starts=_int32([owner * n_rows + at for owner, at in places]),
        counts=_int32([min(most_rows, n_rows - at) for _, at in places]),
        firsts=_int32([context - n_rows + at for _, at in places]),
        owners=_int32([owner for owner, _ in places]),
        tables=tables,
    ), most_rows


def _kv_write(kv_format: str, m: int) -> Case:
    blocks, scales = _pool(kv_format, 64 * m)
    qkv = _random(1, m, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
    angles = torch.randn(8192, HEAD_DIM // 2, device=DEVICE)
    cos = torch.cat([angles.cos()] * 2, -1).bfloat16()
    sin = torch.cat([-angles.sin(), angles.sin()], -1).bfloat16()
    queries = _poisoned(m, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    slots = _int32(torch.randperm(64 * m)[:m])
    weight = torch.rand(HEAD_DIM, device=DEVICE)
    arguments = [
        qkv, _int32(torch.arange(m) * 7), slots, cos, sin, weight, weight, 1e-5, queries, blocks,
        scales,
    ]  # fmt: skip
    outputs = [queries, blocks, *([scales] if scales.numel() else [])]
    per_row = blocks[0, 0].nbytes + 2 * HEAD_DIM * queries.element_size()  # codes, and the angles
    n_bytes = qkv.nbytes + queries.nbytes + m * per_row
    return Case(kv_write.kv_write, kv_write.kv_write_reference, arguments, outputs, n_bytes)


def _add_norm(m: int) -> Case:
    residual, delta = _random(m, HIDDEN, dtype=torch.float32), _random(2, m, HIDDEN).float()
    weight = torch.rand(HIDDEN, device=DEVICE)
    out = _poisoned(m, HIDDEN, dtype=torch.bfloat16)
    n_bytes = 2 * residual.nbytes + delta.nbytes + out.nbytes
    arguments = [residual, delta, weight, 1e-5, out]
    return Case(norm.add_norm, norm.add_norm_reference, arguments, [residual, out], n_bytes)


def _silu_mul(m: int) -> Case:
    gate_up = _random(1, m, 2 * INNER).float()
    out = _poisoned(m, INNER, dtype=torch.bfloat16)
    n_bytes = gate_up.nbytes + out.nbytes
    return Case(silu_mul.silu_mul, silu_mul.silu_mul_reference, [gate_up, out], [out], n_bytes)


def _sample(m: int, is_filtered: bool, asked: str = "") -> Case:
    """asked: "adjusted", of each row a mask, and penalties for 200 tokens; or "staged"."""
    logits, each = 3 * torch.randn(m, VOCAB, device=DEVICE), torch.arange(m, device=DEVICE)

    def doubles(value: float) -> Tensor:
        return torch.full((m,), value, dtype=torch.float64, device=DEVICE)

    draws = Draws(
        temperature=doubles(0.8), top_k=each * 0, top_p=doubles(0.9 if is_filtered else 1.0),
        seed=each * 0 + 7, index=each, offsets=each * 0,
        owners=each * 0 + sample.STAGED if asked == "staged" else each,
    )  # fmt: skip
    space, tokens = SampleSpace.allocate(m, VOCAB, logits.device), each * 0 - 1
    arguments: list[Any] = [logits, draws, space, tokens]
    if asked == "staged":
        ends = Ends(torch.tensor([17, 18, 19], device=DEVICE), _poisoned(m).double())
        arguments += [None, ends]
        outputs = [ends.probability]
    else:
        arguments += [_adjustments(m, asked == "adjusted")]
        outputs = [tokens, logits]
    return Case(sample.sample, sample.sample_reference, arguments, outputs, logits.nbytes)


def _adjustments(m: int, is_asked: bool) -> Adjustments:
    _, places, _ = _going_on(m, 1)
    places.history.random_(0, VOCAB)
    each = torch.arange(m, device=DEVICE)
    penalty = torch.full((m,), 0.5 * is_asked, dtype=torch.float64, device=DEVICE)
    return Adjustments(
        presence=penalty, frequency=penalty, said_from=torch.zeros_like(each), places=each + 1,
        rows=each, mask_lines=each if is_asked else each * 0 - 1, kept_lines=each * 0 - 1,
        masks=torch.full((m, -(-VOCAB // MASK_BITS)), -1, dtype=torch.int32, device=DEVICE),
        kept=torch.zeros(1, VOCAB, device=DEVICE), positions=_int32([200] * m),
        history=places.history,
    )  # fmt: skip


def _going_on(n: int, q: int) -> tuple[step_rows.Fed, Places, Pieces]:
    """So many replies of which the device knows a token and `q` - 1 guesses each."""
    places = Places(n, 4096 + BLOCK_TOKENS, max(1, q - 1), torch.device(DEVICE))
    places.position[1:] = torch.arange(n) * 37
    places.n_guesses.fill_(q - 1)
    pieces, most_rows = _cut(n, q, q, _int32(torch.randperm(n * 257).view(n, 257)))
    per_sequence = {
        "starts": range(0, n * q, q), "firsts": [0] * n, "counts": [q] * n, "n_known": [1] * n,
        "index": [0] * n, "places": range(1, n + 1), "goes_on": [1] * n,
        "wanted_at": range(0, n * q, q),
    }  # fmt: skip
    offsets = pieces.starts % q
    fed = step_rows.Fed(
        tokens=torch.zeros(n * q, dtype=torch.int64, device=DEVICE),
        **{
            name: torch.tensor(list(values), device=DEVICE) for name, values in per_sequence.items()
        },
        piece_starts=pieces.starts.long(),
        piece_widths=(q - offsets).clamp_max(most_rows).long(),
        piece_offsets=offsets.long(),
        piece_owners=pieces.owners.long(),
    )
    return fed, places, pieces


def _verify() -> Case:
    n, q = 16, 8
    fed, places, _ = _going_on(n, q)
    tokens, chosen = (torch.randint(0, 2, (n * q,), device=DEVICE) for _ in range(2))
    counts, n_accepted = (torch.full((n,), -1, device=DEVICE) for _ in range(2))
    outputs = [counts, n_accepted, places.position, places.token, places.index]
    arguments = [fed, places, tokens, chosen, counts, n_accepted]
    return Case(step_rows.verify, step_rows.verify_reference, arguments, outputs, tokens.nbytes * 2)


def _place_rows(n: int, q: int) -> Case:
    fed, places, pieces = _going_on(n, q)
    tokens = torch.full((n * q,), -7, device=DEVICE)
    fields = [torch.full((n * q,), -7, dtype=torch.int32, device=DEVICE) for _ in range(3)]
    outputs = [tokens, *fields, pieces.counts, pieces.firsts, fed.firsts, fed.index]
    n_bytes = sum(out.nbytes for out in outputs)
    most_rows = int(fed.piece_widths.max())
    arguments = [fed, places, pieces, tokens, *fields, most_rows]
    return Case(step_rows.place_rows, step_rows.place_rows_reference, arguments, outputs, n_bytes)


def _guess() -> Case:
    """16 conversations of 4,096 tokens, looked through."""
    fed, places, _ = _going_on(16, 8)
    places.history.random_(0, 40)
    places.position[1:] = 4095
    arguments = [fed.places, torch.ones_like(fed.places), places]
    return Case(
        ngram.guess, ngram.guess_reference, arguments, [places.n_guesses, places.guesses],
        places.history.nbytes,
    )  # fmt: skip
