"""The engine on a GPU, in parts, each row written as soon as it is known: see `gpu_first_run`.

What stands in the file of rows for this engine's sources and device is not measured again, so an
interrupted run goes on where it stopped; rows that failed are tried again. Weights are random, made
on the device: they serve speed alone. No network is needed.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.engine import gpu_kernels, gpu_serving, gpu_truth
from benchmarks.engine.gpu_model import decode_ms
from benchmarks.engine.models import (
    SHAPES,
    RandomCheckpoint,
    RandomHead,
    head_of,
    sources,
    write_folder,
)
from clients.provenance import provenance
from engine.branch import Branch
from engine.device import open_device
from engine.engine import Engine
from engine.load.eagle import make_eagle
from engine.load.loader import read_config
from engine.model import Decoder
from engine.text.text import Text
from engine.types import Done, EngineConfig, Event, SamplingParams

DEVICE = "cuda"  # tests put "reference" here, to try the parts where there is no GPU
LARGE = "qwen3-8b"
# Replies side by side, and what each of them sees.
MATRIX = ((1, 64), (1, 4096), (8, 4096), (32, 1024), (64, 1024))
N_TOKENS = 64  # of a measured reply
N_COMMITS = 20
TAIL = [17, 18, 19, 20, 21]  # what a commit adds to staged words
MOST_LOST = 2  # times that a row's process crashed or hung, after which it is left alone
Row = tuple[str, Callable[[], dict[str, Any]]]
Apart = Callable[[str], dict[str, Any]]  # measures a row, by its key, in a process of its own


def use(device: str) -> None:
    """Measure on "cuda", or on "reference" where there is no GPU."""
    global DEVICE
    DEVICE = gpu_truth.DEVICE = device
    gpu_kernels.DEVICE = "cuda" if device == "cuda" else "cpu"


def measure_apart(module: str, key: str, limit_s: float) -> dict[str, Any]:
    """A row that a process of its own measures and prints last; "lost" where it did not end well.

    What it began ends with it.
    """
    command = [sys.executable, "-m", module, "--device", DEVICE, "--row", key]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, text=True, start_new_session=True) as process:
        try:
            told, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return {"error": f"expected an end within {limit_s:g} s, found none", "lost": 1}
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        return {"error": f"expected a row, found exit code {process.returncode}", "lost": 1}
    row: dict[str, Any] = json.loads(told.splitlines()[-1])
    return row


def measured(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A row, or the error in its place: one row's failure must not cost the others their turn."""
    try:
        return measure()
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


class Rows:
    """The file of rows; one measurement a row, kept for the same sources and device.

    It ends with the time it may take: of one command, and of all commands together.
    """

    def __init__(self, path: Path, *, command_s: float, total_s: float) -> None:
        self._path, self._began = path, time.monotonic()
        where = {
            **provenance(),
            "sources": sources(),
            "device": device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
        }
        known = json.loads(path.read_text()) if path.is_file() else {}
        same = all(known.get(key) == where[key] for key in ("sources", "device"))
        self.data = known if same else {**where, "spent_s": 0.0, "rows": {}}
        self._spent_s = self.data["spent_s"]
        self._end_s = min(command_s, total_s - self._spent_s)
        if "bandwidth_gb_s" not in self.data:
            self.data["bandwidth_gb_s"] = round(gpu_kernels.copy_bandwidth(), 1)

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self._began > self._end_s

    def run(self, part: str, rows: Iterator[Row], apart: Apart | None = None) -> bool:
        """Measure what is missing; False when time ran out first.

        apart: measures in place of the row itself. What it lost too often is left alone.
        """
        for name, measure in rows:
            key = f"{part}/{name}"
            before = self.data["rows"].get(key, {"error": "never measured"})
            if not before.get("error") or before.get("lost", 0) >= MOST_LOST:
                continue
            if self.is_over:
                print(f"{part}: time is up before {name}; run it again to go on")
                return False
            row = measured(measure) if apart is None else apart(key)
            if "lost" in row:
                row["lost"] += before.get("lost", 0)
            self.data["rows"][key] = row
            print(key, json.dumps(row), flush=True)
            self._write()
            if apart is None and "CUDA error" in (row.get("error") or ""):
                print(f"{part}: the device is lost to this process; run it again")
                return False
        return True

    def _write(self) -> None:
        self.data["spent_s"] = round(self._spent_s + time.monotonic() - self._began, 1)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.data, indent=1) + "\n")


def device_name() -> str:
    return torch.cuda.get_device_name() if DEVICE == "cuda" else DEVICE


# -- an engine of a given shape ------------------------------------------------------------------


def build(shape: str, has_head: bool = False, **changes: Any) -> Engine:
    """An engine with random weights of that shape, its graphs captured.

    has_head: with an EAGLE-3 head, whose guesses are random too.
    """
    release()
    config = EngineConfig(device=DEVICE, share_steps=True, **changes)
    device = open_device(config)
    with tempfile.TemporaryDirectory() as folder:
        model_dir = write_folder(Path(folder), SHAPES[shape])
        model = read_config(model_dir)
        decoder = Decoder(
            RandomCheckpoint(model_dir, device.torch_name),
            model,
            dtype="bf16",
            quant=config.quant,
            device=device.torch_name,
            context_length=config.context_length or model.context_length,
            make_linear=device.make_linear,
        )
        if has_head:
            decoder.eagle = make_eagle(
                RandomHead(model_dir, device.torch_name), head_of(SHAPES[shape]), decoder,
                quant=config.quant, make_linear=device.make_linear,
            )  # fmt: skip
        return Engine(Text.read(model_dir, model.eos_ids), decoder, config)


def release() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def resident(engine: Engine, branch: Branch, n_tokens: int) -> None:
    """Make a branch hold `n_tokens` whose KV nobody computed: its content costs no time."""
    sequence = branch.sequence
    sequence.tokens = [16 + i % 200 for i in range(n_tokens)]
    sequence.reserve(n_tokens)
    sequence.n_resident = branch.n_history = n_tokens


def drain(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while engine.has_work():
        events += engine.step()
    return events


def spread(values: list[float]) -> dict[str, float]:
    """p50, p90 and p99."""
    values = sorted(values)
    return {
        f"p{p}": round(values[min(len(values) - 1, p * len(values) // 100)], 3)
        for p in (50, 90, 99)
    }


def decode(engine: Engine, n_sequences: int, n_context: int) -> dict[str, Any]:
    """ms per step with so many replies side by side, each over so much KV; TTFT after a commit.

    Steps right after the prompts are left out.
    """
    params = SamplingParams(max_tokens=N_TOKENS, ignore_eos=True)
    gaps: list[float] = []
    for attempt in range(3):
        branches = [engine.branch(f"b{attempt}-{i}") for i in range(n_sequences)]
        for branch in branches:
            resident(engine, branch, n_context)
            branch.commit(TAIL, params)
        done = [event for event in drain(engine) if isinstance(event, Done)]
        if attempt:  # the first one warms up
            for event in done:
                gaps += event.timings.token_gaps_ms[gpu_serving.N_UNSETTLED :]
        for branch in branches:
            branch.close()
    ttft = []
    for attempt in range(N_COMMITS):
        branch = engine.branch(f"t{attempt}")
        resident(engine, branch, n_context)
        branch.commit(TAIL, SamplingParams(max_tokens=2, ignore_eos=True))
        ttft += [e.timings.ttft_ms for e in drain(engine) if isinstance(e, Done)]
        branch.close()
    tokens_s = round(n_sequences * 1e3 / statistics.median(gaps))
    return {"ms_per_step": spread(gaps), "ttft_ms": spread(ttft[2:]), "tokens_s": tokens_s}


# -- parts ---------------------------------------------------------------------------------------


def matrix() -> Iterator[Row]:
    """8B: weights x KV format x batch x context; one engine a format."""
    for quant, kv_format in (("int8", "int8"), ("int4", "int8"), (None, "plain")):
        engines: list[Engine] = []
        for batch, context in MATRIX:

            def measure(
                batch: int = batch,
                context: int = context,
                engines: list[Engine] = engines,
                quant: str | None = quant,
                kv_format: str = kv_format,
            ) -> dict[str, Any]:
                if not engines:
                    room = max(n * (seen + 256) for n, seen in MATRIX) + 4096
                    engines.append(build(LARGE, quant=quant, kv_format=kv_format, kv_tokens=room))
                row = decode(engines[0], batch, context)
                sizes = SHAPES[LARGE], quant, kv_format, batch, context
                predicted = decode_ms(*sizes)
                told = {"predicted": round(predicted, 2), "unit": "ms"}
                return {**row, **told, "measured": row["ms_per_step"]["p50"]}

            yield f"{quant or 'bf16'}, kv {kv_format}, batch {batch}, context {context}", measure
        engines.clear()


def small() -> Iterator[Row]:
    """1B and 4B at batch 1."""
    for shape in ("1b", "4b"):
        for quant in (None, "int8", "int4"):
            yield f"{shape}, {quant or 'bf16'}", partial(_small, shape, quant)


def _small(shape: str, quant: str | None) -> dict[str, Any]:
    return decode(build(shape, quant=quant, kv_tokens=16384), 1, 1024)


def breakdown() -> Iterator[Row]:
    """Where a step's time goes: microseconds by kernel, of one reply at 8B."""
    for quant, kv_format in (("int8", "int8"), ("int4", "int8")):
        yield f"8b, {quant}, kv {kv_format}", partial(_breakdown, quant, kv_format)


def _breakdown(quant: str, kv_format: str) -> dict[str, Any]:
    engine = build(LARGE, quant=quant, kv_format=kv_format, kv_tokens=16384)
    branch = engine.branch("b")
    resident(engine, branch, 4096)
    branch.commit(TAIL, SamplingParams(max_tokens=N_TOKENS, ignore_eos=True))
    for _ in range(8):
        engine.step()
    n_before = engine.metrics()["steps"]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(16):
            engine.step()
        torch.cuda.synchronize()
    n_steps = engine.metrics()["steps"] - n_before
    drain(engine)
    kernels = sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)
    on_device = sum(event.self_device_time_total for event in kernels) / n_steps / 1e3
    return {
        "predicted": round(decode_ms(SHAPES[LARGE], quant, kv_format, 1, 4096), 2),
        "measured": round(on_device, 2),
        "unit": "ms",
        "nodes_a_step": round(sum(event.count for event in kernels) / n_steps, 1),
        "us_per_step": {
            event.key[:60]: [round(event.self_device_time_total / n_steps, 1), event.count]
            for event in kernels[:24]
        },
    }


# In this order: whether the engine and each kernel are right, where a step's time goes, whether
# anything compiles late, and then speed; what only rounds off the picture comes last.
PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "truth": gpu_truth.rows,
    "kernels": gpu_kernels.rows,
    "breakdown": breakdown,
    "sealed": lambda: gpu_serving.sealed(build),
    "matrix": matrix,
    "mixed": lambda: gpu_serving.mixed(build),
    "cold": lambda: gpu_serving.cold(build),
    "conversations": lambda: gpu_serving.conversations(build),
    "eagle": lambda: gpu_serving.eagle(build),
    "small": small,
}
