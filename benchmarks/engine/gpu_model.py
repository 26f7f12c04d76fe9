"""What a step should take on an H200, from bytes, arithmetic and launches: a model, no measurement.

A step is a chain of nodes of one graph. Each takes as long as its bytes take to stream or its
products to multiply, whichever is longer, and a start; between two dependent nodes lies a gap. The
shares below are assumptions, each with its reason; `gpu_first_run` prints what comes of them beside
what was measured, and a share that a measurement contradicts is corrected here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.engine.models import DRAFTED, SHAPES, Shape
from benchmarks.harness.harness import Bar
from engine.graphs.part import MAX_WANTED
from engine.graphs.step import CHUNK_WANTED
from engine.kernels.gemm_8bit import WIDE_STAGE
from engine.kernels.launch import (
    STREAMED_ROWS,
    UNPACKING_ROWS,
    WIDE_OUTPUTS,
    WideStage,
    wide_rows,
)

BANDWIDTH_GB_S = 4300.0  # of a large copy on an H200: 90 % of what its data sheet says
BF16_TFLOPS = 790.0  # of a large cuBLAS product
GAP_US = 1.0  # between dependent nodes of a graph
SMALL_US = 2.3  # a kernel of a row or few: norms, SiLU, KV writes, merges ([P] RMSNorm: 2.9-4.1)
START_US = 1.5  # of a product: its first loads and its partial sums
ATTENTION_START_US = 2.5
TAIL_NODES = 11  # of a step, outside its layers: places, embedding, choice, results
TILE_ROWS = 32  # rows that share one unpacking of the weights, in the products of few rows
STREAMED = {"int4": 0.78, "int8": 0.85, None: 0.85}  # of the bandwidth, by weights
# Of the bandwidth's time, what unpacking all weights for one more tile of rows takes: int4 at full
# bandwidth keeps 55 % of the arithmetic units busy, and as much again waits for them.
UNPACKED = {"int4": 1.0, "int8": 0.8, None: 0.0}
ATTENTION_STREAMED = 0.80
DENSE_SHARE, PREFILL_ATTENTION_SHARE = 0.85, 0.40  # of BF16_TFLOPS: cuBLAS at some hundred rows
PROCESSORS = 132
CODE_BYTES = {"int4": 0.5 + 4 / 128, "int8": 1.0, None: 2.0}  # a weight, with its scale
KV_BYTES = {"plain": 2.0, "int8": 1.0}  # a number
KV_SCALE_BYTES = {"plain": 0, "int8": 2}  # a token, head, and of both
# Nodes of an EAGLE-3 head, products left out: what a step keeps for
# it, what begins a chain, and a guess.
KEPT_NODES, BEGUN_NODES, GUESS_NODES = 28, 30, 22
STANDS = 0.7  # assumed: of guesses behind one that stood
HOST_MS = 1.5  # of a TTFT: encoding, composing, reading, telling


@dataclass(frozen=True, slots=True)
class Work:
    """A step: its rows in all, of sequences that see so many tokens each."""

    shape: Shape
    quant: str | None
    kv_format: str
    n_rows: int
    n_sequences: int
    n_context: int


def _head_dim(shape: Shape) -> int:
    return shape.head_dim or shape.hidden_size // shape.num_attention_heads


def products(shape: Shape) -> dict[str, tuple[int, int]]:
    """Of one layer, by name: outputs and inputs."""
    dim = _head_dim(shape)
    heads, kv = shape.num_attention_heads * dim, shape.num_key_value_heads * dim
    hidden, inner = shape.hidden_size, shape.intermediate_size
    return {
        "qkv": (heads + 2 * kv, hidden),
        "o": (hidden, heads),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }


def product_us(n_out: int, n_in: int, n_rows: int, quant: str | None) -> float:
    """One product with weights kept as `quant` says."""
    n_weights = n_out * n_in
    read_us = n_weights * CODE_BYTES[quant] / BANDWIDTH_GB_S / 1e3
    if n_rows <= STREAMED_ROWS:
        n_tiles = -(-n_rows // TILE_ROWS)
        return START_US + max(read_us / STREAMED[quant], read_us * UNPACKED[quant] * n_tiles)
    tflops = BF16_TFLOPS * DENSE_SHARE
    if quant is None:
        return START_US + max(read_us, 2 * n_weights * n_rows / tflops / 1e6)
    # Whole rounds of the tiles that are launched, each with its unpacking.
    stage = WIDE_STAGE if quant != "int4" else WideStage(row_bytes=256, output_bytes=64)
    tile_rows = wide_rows(n_out, n_rows, torch.device("cpu"), stage)
    n_tiles = -(-n_rows // tile_rows) * -(-n_out // WIDE_OUTPUTS)
    round_flops = 2 * PROCESSORS * WIDE_OUTPUTS * (tile_rows + UNPACKING_ROWS) * n_in
    return START_US + -(-n_tiles // PROCESSORS) * round_flops / tflops / 1e6


def streamed_us(n_bytes: int) -> float:
    """A kernel alone that moves so many bytes."""
    return max(SMALL_US, START_US + n_bytes / (BANDWIDTH_GB_S * ATTENTION_STREAMED) / 1e3)


def kv_bytes_per_token(shape: Shape, kv_format: str) -> float:
    """Of one layer."""
    per_head = _head_dim(shape) * KV_BYTES[kv_format] + KV_SCALE_BYTES[kv_format]
    return 2 * shape.num_key_value_heads * per_head


def attention_us(work: Work) -> float:
    """Of one layer, the merge of its splits included."""
    shape = work.shape
    if work.n_rows <= STREAMED_ROWS:
        n_bytes = work.n_sequences * work.n_context * kv_bytes_per_token(shape, work.kv_format)
        read_us = n_bytes / (BANDWIDTH_GB_S * ATTENTION_STREAMED) / 1e3
        return ATTENTION_START_US + read_us + GAP_US + SMALL_US
    flops = 4 * work.n_rows * work.n_context * shape.num_attention_heads * _head_dim(shape)
    return ATTENTION_START_US + flops / (BF16_TFLOPS * PREFILL_ATTENTION_SHARE) / 1e6


def small_us(work: Work) -> float:
    """Of one layer: norms (a residual read and written, a delta, the result), KV write, SiLU."""
    shape, rows = work.shape, work.n_rows
    n_qkv = products(shape)["qkv"][0]
    norm = streamed_us(rows * shape.hidden_size * (4 + 4 + 2 + 2))
    return (
        2 * norm + streamed_us(rows * n_qkv * 4) + streamed_us(rows * shape.intermediate_size * 6)
    )


def step_ms(work: Work) -> float:
    """The whole step, on the device."""
    shape = work.shape
    sizes = products(shape).values()
    multiplied = sum(product_us(*size, work.n_rows, work.quant) for size in sizes)
    # Ten nodes: two norms, four products, the KV write, attention and its merge, SiLU.
    layer_us = multiplied + attention_us(work) + small_us(work) + 10 * GAP_US
    # The head stays at eight bits where the rest has four. It is met by as many rows as a step has
    # room to draw from, asked for or not; a whole chunk of a prompt for few.
    head = "int8" if work.quant else None
    n_chosen = work.n_rows if work.n_rows <= MAX_WANTED else CHUNK_WANTED
    head_us = product_us(shape.vocab_size, shape.hidden_size, n_chosen, head)
    tail_us = TAIL_NODES * (SMALL_US + GAP_US)
    return (shape.num_hidden_layers * layer_us + head_us + tail_us) / 1e3


def decode_ms(
    shape: Shape, quant: str | None, kv_format: str, n_replies: int, n_context: int
) -> float:
    """ms per token of each of so many replies side by side."""
    return step_ms(Work(shape, quant, kv_format, n_replies, n_replies, n_context))


def eagle_step_ms(
    shape: Shape, quant: str | None, kv_format: str, n_guesses: int, n_context: int
) -> float:
    """A step of one reply that verifies so many guesses of an EAGLE-3 head, made before it."""
    work = Work(shape, quant, kv_format, 1 + n_guesses, 1, n_context)
    kept, hidden, sizes = "int8" if quant else None, shape.hidden_size, products(shape)
    qkv = sizes.pop("qkv")[0], 2 * hidden
    node_us = SMALL_US + GAP_US
    kept_us = KEPT_NODES * node_us + product_us(hidden, 3 * hidden, 1, kept)
    kept_us += product_us(*qkv, 1, kept)
    guess_us = GUESS_NODES * node_us + attention_us(work)
    for size in (qkv, *sizes.values(), (DRAFTED, hidden)):
        guess_us += product_us(*size, 1, kept)
    begun_us = BEGUN_NODES * node_us if n_guesses else 0.0
    return step_ms(work) + (kept_us + begun_us + n_guesses * guess_us) / 1e3


def cold_ttft_ms(
    shape: Shape, quant: str | None, kv_format: str, n_prompt: int, chunk: int
) -> float:
    """From a prompt nobody has read, fed in chunks of so many rows, to its first token."""
    total = HOST_MS
    for first in range(0, n_prompt, chunk):
        rows = min(chunk, n_prompt - first)
        # Half of a chunk's own rows are seen, on average, besides all before it.
        seen = first + rows // 2
        total += step_ms(Work(shape, quant, kv_format, rows, 1, seen))
    return total


def commit_ttft_ms(shape: Shape, quant: str | None, kv_format: str, n_context: int) -> float:
    """After a commit of a few words behind so many that are staged, nobody else being served."""
    return HOST_MS + step_ms(Work(shape, quant, kv_format, 8, 1, n_context))


def bars(chunk: int) -> list[Bar]:
    """What the pages promise of Qwen3-8B, as modelled. chunk: rows of one prefill step."""
    shape = SHAPES["qwen3-8b"]
    alone = decode_ms(shape, "int4", "int8", 1, 64)
    drafted = eagle_step_ms(shape, "int4", "int8", 3, 64) / sum(STANDS**i for i in range(4))
    together = decode_ms(shape, "int4", "int8", 64, 1024)
    cold = {quant: cold_ttft_ms(shape, quant, "int8", 4096, chunk) for quant in ("int4", "int8")}
    return [
        Bar("8B int4, one reply, 64 tokens of context: ms a token (model)", alone, 2.4),
        Bar("8B int4, 3 guesses of an EAGLE-3 head, of which 0.7 stand (model)", drafted, 1.5),
        Bar("8B int4, 64 replies, 1,024 each: ms a token (model)", together, 5.5),
        Bar("8B int4, a cold prompt of 4,096 tokens: TTFT (model)", cold["int4"], 110.0),
        Bar("8B int8, a cold prompt of 4,096 tokens: TTFT (model)", cold["int8"], 110.0),
    ]
