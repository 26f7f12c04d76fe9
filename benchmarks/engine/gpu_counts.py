"""What a step on a GPU takes, counted where there is none: passes, launches, nodes, memory.

    python -m benchmarks.engine.gpu_counts  (the counts, as JSON)

The step's logic runs on references of its kernels, its launches in Triton's interpreter. Counts are
the same on any machine; what they cost is not told here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.engine.models import SHAPES, RandomCheckpoint, Shape, write_folder
from benchmarks.engine.setting import Setting
from benchmarks.harness.harness import Bar
from engine.branch import Branch
from engine.device import open_device
from engine.engine import Engine
from engine.load.loader import read_config
from engine.model import Decoder
from engine.reply import Reply
from engine.text.text import Text
from engine.types import BLOCK_TOKENS, EngineConfig, SamplingParams

TINY = Shape(128, 256, 1, 4, 2, vocab_size=300, max_position_embeddings=1024)
N_LAYERS = 36  # of the models of 4B and 8B that the preset is made for
NODE_ROWS = 64  # of the steps whose nodes are counted: the largest that only decodes
N_REPLIES = (1, 16, 64)
N_TOKENS = 60  # of a reply, as long as a spoken answer
N_CALLERS = 64
JSON_TEXT = json.dumps({"type": "string", "minLength": 20 * N_TOKENS})
# Operations that launch nothing: another view, memory, a number.
FREE = ("view", "slice", "select", "expand", "empty", "alias", "detach", "as_strided", "squeeze",
        "transpose", "permute", "split", "unbind", "aten.t.")  # fmt: skip


def measure() -> dict[str, float | None]:
    """All counts by name; None where a package that is needed is not installed."""
    counts: dict[str, float | None] = _beside_a_call()
    for n in N_REPLIES:
        counts[f"launched ahead, {n} replies"] = _launched_ahead(n)
    one, two = _nodes(1), _nodes(2)
    counts["nodes"] = one + (two - one) * (N_LAYERS - 1)
    counts["graphs"], counts["pinned MB"] = _served()
    return counts


def _engine(device: str, n_layers: int = 2, **changes: Any) -> Engine:
    shape = replace(TINY, num_hidden_layers=n_layers)
    settings: dict[str, Any] = {
        "dtype": "fp32", "kv_tokens": 32768, "max_branches": 160, "share_steps": True,
        "step_tokens": 256, "ngram_draft": True, **changes,
    }  # fmt: skip
    config = EngineConfig(device=device, **settings)
    opened = open_device(config)
    with tempfile.TemporaryDirectory() as folder:
        model_dir = write_folder(Path(folder), shape)
        model = read_config(model_dir)
        decoder = Decoder(
            RandomCheckpoint(model_dir, "cpu"), model, dtype=config.dtype, quant=config.quant,
            device="cpu", context_length=1024, make_linear=opened.make_linear,
        )  # fmt: skip
        return Engine(Text.read(model_dir, model.eos_ids), decoder, config)


def _replies(engine: Engine, n: int) -> list[Branch]:
    branches = [engine.branch(f"reply{i}", [16 + i % 200] * 20) for i in range(n)]
    for i, branch in enumerate(branches):
        params = SamplingParams(N_TOKENS, temperature=0.8 * (i % 2), seed=i, ignore_eos=True)
        branch.commit([17, 18, 19 + i % 50], params)
    return branches


def _run(engine: Engine, speakers: list[Branch], reply: Reply | None = None) -> tuple[int, int]:
    """Step to the end of all replies, while speakers say words now and then.

    Returns the steps, and those of them behind the first token of `reply`.
    """
    n_steps = said = n_begun = 0
    while any(branch.reply is not None for branch in list(engine._branches.values())):
        for i, speaker in enumerate(speakers):
            if said % (2 + i) == 0:
                speaker.stage([30 + k % 90 for k in range(3 + said % 60)])
        said += 1
        n_before = engine.metrics().get("steps", 0)
        n_begun += reply is not None and len(reply.tokens) > 0
        engine.step()
        n_steps += int(engine.metrics()["steps"] - n_before)
    return n_steps, n_begun


def _launched_ahead(n_replies: int) -> float:
    """Per cent of steps that the device had begun before they were asked for."""
    engine = _engine("reference")
    runner: Any = engine.runner
    _replies(engine, n_replies)
    n_steps, _ = _run(engine, [engine.branch("speaker")])
    return 100 * runner.n_ahead_used / n_steps


def _beside_a_call() -> dict[str, float | None]:
    """How often a step reads the weights, and how many tokens the call has in each from its first.

    32 replies, four who speak, a reply under a grammar.
    """
    try:
        import llguidance  # noqa: F401
    except ImportError:
        return {}
    engine = _engine("reference")
    _replies(engine, 32)
    call = SamplingParams(N_TOKENS, temperature=0.9, seed=3, json_schema=JSON_TEXT)
    branch = engine.branch("call", [40] * 20)
    branch.commit([17, 18, 60], call)
    reply, runner = branch.reply, cast("Any", engine.runner)
    assert reply is not None
    n_steps, n_begun = _run(engine, [engine.branch(f"speaker{i}") for i in range(4)], reply)
    assert len(reply.tokens) == N_TOKENS, "expected a call as long as the replies beside it"
    return {
        "passes a step": runner.n_launches / n_steps,
        "launched ahead, 1 call": 100 * runner.n_ahead_used / n_steps,
        "tokens of the call a step": (len(reply.tokens) - 1) / n_begun,
    }


class _Nodes(TorchDispatchMode):
    """Counts what a graph would hold: kernels launched, and torch's operations outside them."""

    def __init__(self) -> None:
        super().__init__()
        self.n, self.is_inside = 0, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.is_inside and not any(word in str(func) for word in FREE):
            self.n += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def _counted_launches(nodes: _Nodes) -> Iterator[None]:
    from triton.runtime.interpreter import GridExecutor

    launch = GridExecutor.__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        nodes.n, nodes.is_inside = nodes.n + 1, True
        try:
            return launch(self, *args, **kwargs)
        finally:
            nodes.is_inside = False

    GridExecutor.__call__ = counted
    try:
        yield
    finally:
        GridExecutor.__call__ = launch


def _nodes(n_layers: int) -> int:
    """Of a step that decodes, with int8 weights, of a model of so many layers."""
    engine = _engine("interpreter", n_layers, quant="int8", max_branches=2, kv_tokens=1024)
    runner: Any = engine.runner
    name = f"{NODE_ROWS} rows"
    program = next(program for found, program in runner.programs() if found == name)
    with torch.inference_mode():
        nodes = _Nodes()
        with _counted_launches(nodes), nodes:
            program()
    return nodes.n


def _served() -> tuple[int, float]:
    """Graphs, and pinned megabytes, of the GPU preset with as many callers as fit an H200."""
    from engine.graphs.graph_runner import GraphRunner
    from engine.kernels.decoder import KernelSet
    from voiceloop.models.catalog import GPU
    from voiceloop.models.engine_options import BRANCHES_PER_SESSION

    options = {name: value for name, value in GPU.options["engine"].items() if name != "device"}
    options |= {"max_branches": BRANCHES_PER_SESSION * N_CALLERS, "ngram_draft": True}
    config = EngineConfig(**options)
    kernels = KernelSet(is_reference=False)
    shape = replace(SHAPES["qwen3-8b"], num_hidden_layers=1)
    with tempfile.TemporaryDirectory() as folder:
        model_dir = write_folder(Path(folder), shape)
        decoder = Decoder(
            RandomCheckpoint(model_dir, "meta"), read_config(model_dir), dtype="bf16",
            quant="int8", device="meta", context_length=config.context_length or 4096,
            make_linear=kernels.make_linear,
        )  # fmt: skip
    pool = decoder.make_pool(config.kv_tokens // BLOCK_TOKENS)
    runner = GraphRunner(decoder, pool, config, (1,), kernels)
    return runner.n_graphs, runner.pinned_bytes / 1e6


def gpu_counts(setting: Setting) -> list[Bar]:
    """The step on a GPU, counted on references and in Triton's interpreter."""
    command = [sys.executable, "-m", "benchmarks.engine.gpu_counts"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        setting.tell(f"not measured: {(run.stderr.strip().splitlines() or ['no output'])[-1]}")
    found = json.loads(run.stdout) if run.returncode == 0 else {}
    ahead = [
        Bar(f"GPU: steps launched ahead, {n} replies, one staging",
            found.get(f"launched ahead, {n} replies"), 90, "%", True)
        for n in N_REPLIES
    ]  # fmt: skip
    return [
        Bar("GPU: weight passes a step, 32 replies, 4 staging, 1 tool call",
            found.get("passes a step"), 1.02, ""),
        Bar("GPU: steps launched ahead, those",
            found.get("launched ahead, 1 call"), 90, "%", True),
        Bar("GPU: tokens a step of the call beside them",
            found.get("tokens of the call a step"), 0.9, "", True),
        *ahead,
        Bar(f"GPU: graph nodes a step, {N_LAYERS} layers", found.get("nodes"), 380, ""),
        Bar("GPU: graphs captured", found.get("graphs"), 14, ""),
        Bar("GPU: pinned host memory, 64 callers", found.get("pinned MB"), 64, "MB"),
    ]  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(measure()))
