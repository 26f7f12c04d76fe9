"""Owns how kernels are launched: interpreted or compiled, when, and on how many processors.

Nothing is tuned at run time, and nothing compiled once a runner is made: see `compiling`.
Every size a kernel is specialized for follows from the model's shapes and the number of streaming
multiprocessors, by the small rules in this room's files.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from ..types import LateCompilation

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# What `tl.dot` multiplies. The interpreter (numpy) has no bf16: its products come out as garbage.
OPERAND = tl.constexpr(tl.float32 if INTERPRETED else tl.bfloat16)
IS_COMPILED = tl.constexpr(not INTERPRETED)

# Rows of the smallest matrix tile: `tl.dot` needs 16 in the interpreter and on tensor cores.
LEAST_ROWS = 16
MAX_TILE_ROWS = 32
STREAMED_ROWS = 128  # up to here a product is bound by reading its weights, above by arithmetic
# Of the tiles of many rows: as many outputs as two warpgroups hold, and rows to choose from.
WIDE_OUTPUTS = 128
WIDE_ROWS = (256, 128)  # of two that take as long, the larger reads less
# What unpacking adds to a tile, in rows. Compiled for sm_90, a tile of 256 rows issues other
# instructions for a third (int4) to a half (8 bits) of the cycles that its products take; assumed:
# half of those do not hide behind products.
UNPACKING_ROWS = 54
# Left to itself ptxas 12.8 stops at 80 or 96 registers in products of 32 rows, and spills. Of int4,
# shared memory holds three programs at 32 rows and five at 16, which take 127 and 95 registers: no
# fewer fit side by side.
MAX_REGISTERS = 128
# A split shorter than this many steps spends its time on starting and on writing partial sums.
LEAST_STEPS = 4
MAX_SPLITS = 8
# Assumed: what a tile's first loads and its partial sums take, in steps; and of the bandwidth, what
# one tile a processor can draw. Five stages of 4 KiB are under way; an H200's 4.8 TB/s at a latency
# of about 750 ns would take 28 KiB on each of 132 processors.
TILE_STEPS = 2
LONE_TILE_SHARE = 0.7
# Assumed where there is no GPU to ask: an H200's, so that tests see the sizes that will run.
DEFAULT_PROCESSORS = 132
DEFAULT_SHARED_BYTES = 227 << 10
DEFAULT_CAPABILITY = 90
# Below it there is no bf16 and nothing is copied ahead; plain torch runs there.
LEAST_CAPABILITY = 80
FP8_CAPABILITY = 89  # from here on Triton reads e4m3
# Below it a warp's products wait in its own registers, of which 256 rows leave none: they spill.
LARGE_TILE_CAPABILITY = 90
LEAST_STAGES = 2  # of a tile of many rows: one that is multiplied, one on its way


Replay = Callable[[], None]


class CudaGraphs:
    """Captures programs; replaying one launches all its kernels at once.

    They share a memory pool, as no two run at the same time. It is this object's own: a pool whose
    graphs are gone cannot be captured into again. Programs are run and captured on one stream, so
    that cuBLAS has its workspace there before a capture could claim it. A graph's kernels keep the
    priority of that stream: they go before what else this process runs on the device.
    """

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream(priority=-1)
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, program: Replay) -> Replay:
        """Capture a program and return its replay; two runs before compile its kernels."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                program()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            program()
        graph.replay()  # the first one is slow: it brings the graph to the device
        return graph.replay


@contextmanager
def compiling() -> Iterator[None]:
    """Allow kernels to compile while a runner is made; from then on one that would is refused.

    It would hold up every reply for a second. What others launch in this process is theirs.
    """
    triton.knobs.runtime.jit_cache_hook = None
    try:
        yield
    finally:
        triton.knobs.runtime.jit_cache_hook = _refuse_late


def _refuse_late(*, fn: Any, repr: str, is_manual_warmup: bool = False, **_: Any) -> bool:
    """Triton asks it before it compiles. Raises: LateCompilation."""
    if fn.module.partition(".")[0] == __name__.partition(".")[0]:
        raise LateCompilation(f"expected every kernel launched before, found {repr} to compile")
    return False


@cache
def n_processors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU."""
    if device.type != "cuda":
        return DEFAULT_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def shared_bytes(device: torch.device) -> int:
    """Shared memory that one program of a GPU may have: 99 KiB on some cards, 227 on others."""
    if device.type != "cuda":
        return DEFAULT_SHARED_BYTES
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"])


def capability(device: torch.device) -> int:
    """Compute capability of a GPU, ten times its number: 86 for 8.6."""
    if device.type != "cuda":
        return DEFAULT_CAPABILITY
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def tile_outputs(n_out: int, device: torch.device) -> int:
    """Outputs per tile of a product of few rows: 64, or 32 where 64 would leave processors idle.

    64 gives each of four warps two 8-wide tensor-core tiles.
    """
    return 64 if triton.cdiv(n_out, 64) * MAX_SPLITS >= n_processors(device) else 32


def choose_splits(n_out: int, n_steps: int, device: torch.device) -> int:
    """Into how many partial sums a product of few rows is split over its `n_steps` input steps.

    What takes least by a plain count: the processor with the most tiles works through their steps
    and a tile's start and end (`TILE_STEPS`); one tile alone has too little on its way from memory
    to keep it busy. By shape and device only: the rows must not change the order of a sum.
    """
    tiles = triton.cdiv(n_out, tile_outputs(n_out, device))
    most = max(1, min(n_steps // LEAST_STEPS, MAX_SPLITS))

    def cost(n_splits: int) -> float:
        per_processor = triton.cdiv(tiles * n_splits, n_processors(device))
        steps = per_processor * (triton.cdiv(n_steps, n_splits) + TILE_STEPS)
        return steps / LONE_TILE_SHARE if per_processor == 1 else steps

    n_splits = min(range(1, most + 1), key=cost)
    # Splits are whole steps: leave none with nothing to add up.
    return triton.cdiv(n_steps, triton.cdiv(n_steps, n_splits))


@dataclass(frozen=True, slots=True)
class WideStage:
    """The shared memory that one step of a tile of many rows takes.

    row_bytes: of each row's inputs. output_bytes: of each output's codes.
    """

    row_bytes: int
    output_bytes: int

    def fitting(self, tile_rows: int, device: torch.device) -> int:
        """Count the steps that fit into shared memory together."""
        n_bytes = tile_rows * self.row_bytes + WIDE_OUTPUTS * self.output_bytes
        return shared_bytes(device) // n_bytes


def wide_rows(n_out: int, n_rows: int, device: torch.device, stage: WideStage) -> int:
    """Rows per tile of a product of many rows: what takes least, counted in whole rounds of tiles.

    Of the sizes that the device has shared memory and registers for. It does not change the order
    of a sum.
    """

    def cost(tile_rows: int) -> int:
        tiles = triton.cdiv(n_rows, tile_rows) * triton.cdiv(n_out, WIDE_OUTPUTS)
        return triton.cdiv(tiles, n_processors(device)) * (tile_rows + UNPACKING_ROWS)

    sizes = WIDE_ROWS if capability(device) >= LARGE_TILE_CAPABILITY else WIDE_ROWS[-1:]
    fitting = [rows for rows in sizes if stage.fitting(rows, device) >= LEAST_STAGES]
    return min(fitting or WIDE_ROWS[-1:], key=cost)


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()
