"""Compiles what a GPU preset launches, for any compute capability, on a machine without a GPU.

The preset's own step runner is built on torch's `meta` device, whose tensors have shapes and no
numbers, and each program that it would capture is run once; a launch then compiles and launches
nothing. So what is compiled is what is launched, with the same types, sizes and options, and there
is no second list of them.

    python -m benchmarks.engine.preflight [90]  (the variants under the Triton installed, as JSON
    lines)
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from benchmarks.engine.models import (
    SHAPES,
    RandomCheckpoint,
    RandomHead,
    Shape,
    head_of,
    write_folder,
)
from engine.graphs.graph_runner import GraphRunner
from engine.kernels import launch
from engine.kernels.decoder import KernelLinear, KernelSet
from engine.load.eagle import make_eagle
from engine.load.loader import read_config
from engine.load.packed import ScaledWeight, Stored, dense
from engine.model import Decoder
from engine.types import BLOCK_TOKENS, EngineConfig
from voiceloop.models.catalog import GPU

# Shared memory that a program may have, by compute capability (CUDA C++ Programming Guide).
SHARED_KIB = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
# What a thread may spill: a word or two are read back once, and no loop waits for them.
MAX_STACK_BYTES = 8
POOL_TOKENS = 2**21  # on `meta` they take no memory; as many as an H200 would hold
END_IDS = (1,)  # that some token ends the caller's turn decides what runs, not which


FP8 = "fp8"  # of a checkpoint: no weights are rounded to it


@dataclass(frozen=True, slots=True)
class Serving:
    """A model and the formats it is served in."""

    shape: str
    quant: str | None
    kv_format: str
    has_head: bool = False  # an EAGLE-3 head drafts, in the place of n-grams


def servings(capability: int) -> tuple[Serving, ...]:
    """The preset as it ships, its other documented formats on a model twice the size, and other
    families: heads of 64 in threes, keys with biases, windows. None where the kernels are refused.
    """
    if capability < launch.LEAST_CAPABILITY:
        return ()
    options = GPU.options["engine"]
    shipped = Serving("qwen3-4b", options.get("quant"), options.get("kv_format", "plain"))
    large = Serving("qwen3-8b", "int4", "int8")
    fp8 = Serving("qwen3-8b", FP8, "int8")
    dense = Serving("qwen3-4b", None, "plain")
    of_8_bits = (fp8,) if capability >= 89 else ()  # below, such a checkpoint is read as bf16
    others = (
        Serving("smollm2-135m", "int8", "int8"),
        Serving("qwen2.5-7b", "int8", "plain"),
        Serving("mistral-7b", "int4", "int8"),
    )
    return shipped, large, *of_8_bits, dense, replace(large, has_head=True), *others


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel as compiled. stack_bytes: of a thread, where it spills; 0 in all of ours.

    is_pipelined: whether its launch asks for stages, so that loads must run ahead of their use.
    """

    kernel: str
    served: str  # what was the first to launch it
    sizes: str
    registers: int
    stack_bytes: int
    shared_bytes: int
    is_pipelined: bool
    is_asynchronous: bool
    seconds: float
    capability: int = 90

    def faults(self) -> list[str]:
        """What would fail on the GPU, or cost speed, in words."""
        found, limit = [], SHARED_KIB[self.capability] << 10
        if self.shared_bytes > limit:
            found.append(f"expected {limit} bytes of shared memory, found {self.shared_bytes}")
        if self.stack_bytes > MAX_STACK_BYTES:
            found.append(f"expected no spills, found {self.stack_bytes} bytes of stack a thread")
        if self.is_pipelined and not self.is_asynchronous:
            found.append("expected asynchronous copies in a pipelined kernel, found none")
        return found


class OfflineDriver:
    """Stands where Triton looks for a GPU: there is one of that kind, and nothing runs."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_launches(found: dict[int, Variant], served: list[str], capability: int = 90) -> None:
    """From here on a launch in this process compiles and keeps what it made; nothing is launched.

    served: who launches, the last of them.
    """
    run = JITFunction.run

    def compile_instead(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        began = time.perf_counter()
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        if id(kernel) not in found:
            seconds = time.perf_counter() - began
            is_pipelined = options.get("num_stages", 1) > 1
            sizes = {k: v for k, v in options.items() if k.isupper()}
            variant = _variant(kernel, served[-1], sizes, is_pipelined, seconds)
            found[id(kernel)] = replace(variant, capability=capability)
        return kernel

    driver.set_active(OfflineDriver(capability))
    JITFunction.run = compile_instead


def _variant(
    kernel: Any, served: str, sizes: dict[str, Any], is_pipelined: bool, seconds: float
) -> Variant:
    registers, stack = _resources(kernel.asm["cubin"])
    return Variant(
        kernel=kernel.metadata.name,
        served=served,
        sizes=" ".join(f"{name.lower()}={value}" for name, value in sizes.items()),
        registers=registers,
        stack_bytes=stack,
        shared_bytes=int(kernel.metadata.shared),
        is_pipelined=is_pipelined,
        is_asynchronous="cp.async" in kernel.asm["ptx"],
        seconds=round(seconds, 2),
    )


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of its stack and local memory."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run(
            [tool, "-res-usage", file.name], check=True, capture_output=True, text=True
        ).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", told)
    if usage is None:
        raise RuntimeError(f"expected REG, STACK and LOCAL from {tool}, found {told!r}")
    return int(usage[1]), int(usage[2]) + int(usage[3])


def compile_all(wanted: tuple[Serving, ...], capability: int) -> Iterator[Variant]:
    """Every variant once, in the order of first launch."""
    launch.DEFAULT_SHARED_BYTES = SHARED_KIB[capability] << 10
    launch.DEFAULT_CAPABILITY = capability
    found: dict[int, Variant] = {}
    served = [""]
    compile_launches(found, served, capability)
    n_told = 0
    for serving in wanted:
        for name, program in _programs(serving):
            served.append(f"{serving.shape} {serving.quant or 'bf16'}, {name}")
            with torch.inference_mode():
                program()
            yield from list(found.values())[n_told:]
            n_told = len(found)


def _programs(serving: Serving) -> Iterator[tuple[str, Any]]:
    """What the runner of a decoder of few layers would capture."""
    n_layers = 2 if serving.has_head else 1  # a head reads between layers
    sizes: dict[str, Any] = {**asdict(SHAPES[serving.shape]), "num_hidden_layers": n_layers}
    kernels = KernelSet(is_reference=False)
    quant, make_linear = serving.quant, kernels.make_linear
    if serving.quant == FP8:
        quant, make_linear = None, partial(_make_fp8, kernels)
    options = {**GPU.options["engine"], "quant": quant, "kv_format": serving.kv_format}
    options.pop("device")
    config = EngineConfig(**options, ngram_draft=not serving.has_head)
    with tempfile.TemporaryDirectory() as folder:
        model_dir = write_folder(Path(folder), Shape(**sizes))
        decoder = Decoder(
            RandomCheckpoint(model_dir, "meta"), read_config(model_dir), dtype="bf16",
            quant=quant, device="meta", context_length=config.context_length or 4096,
            make_linear=make_linear,
        )  # fmt: skip
        if serving.has_head:
            decoder.eagle = make_eagle(
                RandomHead(model_dir, "meta"), head_of(Shape(**sizes)), decoder,
                quant=quant, make_linear=make_linear,
            )  # fmt: skip
    pool = decoder.make_pool(POOL_TOKENS // BLOCK_TOKENS, serving.kv_format)
    runner = GraphRunner(decoder, pool, config, END_IDS, kernels)
    yield from runner.programs()


def _make_fp8(kernels: KernelSet, weight: Stored, *arguments: Any, **options: Any) -> KernelLinear:
    numbers = dense(weight)
    read = ScaledWeight(numbers.to(torch.float8_e4m3fn), numbers.new_ones(len(numbers)))
    return kernels.make_linear(read, *arguments, **options)


def main() -> int:
    capability = int(sys.argv[1]) if len(sys.argv) > 1 else 90
    for variant in compile_all(servings(capability), capability):
        print(json.dumps(asdict(variant)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
