"""One reply of the engine on a GPU that speech is busy on as well: the three ways to share it.

As it is the GPU takes turns between processes. In one process, streams have priorities. Under
NVIDIA's MPS, whose daemon is started for this row alone, processes share the GPU at once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch

from benchmarks.engine.gpu_neighbour import be_busy
from benchmarks.engine.gpu_serving import LARGE, Build, Row, one_reply

PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
DEFAULT_PIPES = Path("/tmp/nvidia-mps")
CONTROL = "nvidia-cuda-mps-control"
# The first row as JSON, in a process that is MPS's client from its beginning.
FIRST_ROW = [
    sys.executable, "-c",
    "import json; from benchmarks.engine import gpu, gpu_sharing;"
    "print(json.dumps(gpu_sharing.beside_a_process(gpu.build, 'cuda')))",
]  # fmt: skip
ROW_S, CONTROL_S = 240.0, 20.0
BEGIN_S = 120.0  # for a neighbour's first products


def shared(build: Build, device: str) -> Iterator[Row]:
    """8B int4: the token gaps of one reply while somebody else has bursts of work on the GPU."""
    beside = "8b int4, one reply beside speech"
    yield f"{beside} in a process of its own", lambda: beside_a_process(build, device)
    yield f"{beside} in its process, at lower priority", lambda: _beside_a_thread(build, device)
    yield f"{beside} in a process of its own, under MPS", under_mps


def beside_a_process(build: Build, device: str) -> dict[str, Any]:
    """Raises: RuntimeError where no neighbour comes up, or MPS runs unasked."""
    if PIPES not in os.environ and DEFAULT_PIPES.exists():
        raise RuntimeError(f"expected no MPS, found {DEFAULT_PIPES}")
    engine = build(LARGE, quant="int4", kv_format="int8")
    command = [sys.executable, "-m", "benchmarks.engine.gpu_neighbour", device]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as neighbour:
        assert neighbour.stdin is not None and neighbour.stdout is not None
        try:
            if not neighbour.stdout.readline():
                raise RuntimeError("expected a busy neighbour, found that it ended")
            return one_reply(engine, 0)
        finally:
            neighbour.stdin.close()


def _beside_a_thread(build: Build, device: str) -> dict[str, Any]:
    """The engine's graphs are of a stream of high priority; its neighbour's has the least."""
    is_cuda = device.startswith("cuda")
    engine = build(LARGE, quant="int4", kv_format="int8")
    begun, over = Event(), Event()

    def run() -> None:
        with torch.cuda.stream(torch.cuda.Stream(priority=0)) if is_cuda else nullcontext():
            be_busy(device, over.is_set, begun.set)

    neighbour = Thread(target=run)
    neighbour.start()
    try:
        if not begun.wait(BEGIN_S):
            raise RuntimeError("expected a busy neighbour, found none")
        with torch.cuda.stream(torch.cuda.Stream(priority=-1)) if is_cuda else nullcontext():
            return one_reply(engine, 0)
    finally:
        over.set()
        neighbour.join()


def under_mps(command: list[str] = FIRST_ROW) -> dict[str, Any]:
    """The first row in a process that is MPS's client, as its neighbour is.

    Where there is no MPS the row says so, and has no figure.
    """
    control = shutil.which(CONTROL)
    if control is None:
        return {"not_measured": f"expected {CONTROL}, found none"}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, PIPES: folder, LOGS: folder}

        def daemon(*arguments: str, told: str = "") -> None:
            subprocess.run(
                [control, *arguments], env=environment, input=told, text=True, check=True,
                timeout=CONTROL_S, stdout=subprocess.DEVNULL,
            )  # fmt: skip

        daemon("-d")
        try:
            run = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=ROW_S
            )
        finally:
            daemon(told="quit\n")
    if run.returncode:
        raise RuntimeError((run.stderr.strip().splitlines() or ["no output"])[-1])
    row: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return row
