"""What the host takes for a step of many callers, where the device takes nothing.

    python -m benchmarks.host_steps [--steps 200] [--check]

The served engine on the device "reference" with a null device: a replay does nothing, and every
token drawn is 0. So what is left is Python: the scheduler, the prefix tree, a step's inputs and its
results. The pool is full of earlier conversations. Of the callers a half is answered, the others
speak: in each step one of them has new words staged, and whoever is answered to the end is asked
again. Milliseconds are of this thread's processor time, so that neighbours do not count.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine.gpu import spread
from benchmarks.engine.models import RandomCheckpoint, Shape, write_folder
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import Bar
from engine.branch import Branch, Phase
from engine.device import open_device
from engine.engine import Engine
from engine.graphs.graph_runner import GraphRunner
from engine.load.loader import read_config
from engine.model import Decoder
from engine.text.text import Text
from engine.types import BLOCK_TOKENS, EngineConfig, SamplingParams

# The smallest model there is, under the contexts of the `gpu` preset: the host sees no layer.
SHAPE = Shape(32, 64, 1, 2, 1, vocab_size=512, max_position_embeddings=16384)
HISTORY, REPLY, WORDS = 2048, 48, 3  # tokens: of a call, of a reply, heard at once
BARS_MS = {8: 0.5, 64: 2.0, 256: 5.0}
PARAMS = SamplingParams(max_tokens=REPLY, ignore_eos=True)


def build(n_callers: int) -> Engine:
    """An engine whose device does nothing, with room for the callers' contexts and half as much."""
    n_each = HISTORY + 8 * (REPLY + WORDS * 16)
    config = EngineConfig(
        device="reference", kv_format="int8", kv_tokens=3 * n_callers * n_each // 2,
        max_branches=2 * n_callers + 2, context_length=SHAPE.max_position_embeddings,
        share_steps=True, ngram_draft=True,
    )  # fmt: skip
    device = open_device(config)
    with tempfile.TemporaryDirectory() as folder:
        model_dir = write_folder(Path(folder), SHAPE)
        model = read_config(model_dir)
        decoder = Decoder(
            RandomCheckpoint(model_dir, "cpu"), model, dtype="bf16", quant=None, device="cpu",
            context_length=SHAPE.max_position_embeddings, make_linear=device.make_linear,
        )  # fmt: skip
        engine = Engine(Text.read(model_dir, model.eos_ids), decoder, config)
    take_device_away(engine.runner)
    return engine


def take_device_away(runner: Any) -> None:
    """From here on a replay does nothing."""
    assert isinstance(runner, GraphRunner)
    runner._replays = dict.fromkeys(runner._replays, lambda: None)
    runner._late.replay = lambda: None


class Callers:
    """Half of them are answered, half of them speak; see above."""

    def __init__(self, engine: Engine, n_callers: int) -> None:
        self._engine, self._numbers = engine, count()
        self._fill()
        self.branches = [self._branch() for _ in range(n_callers)]
        self._answered = self.branches[: n_callers // 2]
        self._speaking = self.branches[n_callers // 2 :]
        self._words: dict[str, list[int]] = {branch.branch_id: [] for branch in self.branches}

    def _branch(self) -> Branch:
        """One with a history of its own."""
        number = next(self._numbers)
        history = [1 + (number * 31 + i * i * 7) % 500 for i in range(HISTORY)]
        history[:2] = [1 + number % 500, 1 + number // 500]
        branch = self._engine.branch(f"call_{number}", history)
        self._settle()
        return branch

    def _settle(self) -> None:
        while self._engine.has_work():
            self._engine.step()

    def _fill(self) -> None:
        """Conversations that have ended, until nothing is free that the tree has not."""
        keeps_busy = self._engine.branch("busy")  # an idle engine checks its whole pool
        while self._engine.pool.n_free > HISTORY // BLOCK_TOKENS + 1:
            branch = self._branch()
            branch.commit([5, 6, 7], SamplingParams(max_tokens=1, ignore_eos=True))
            self._settle()
            branch.close()
        keeps_busy.close()

    def step(self, number: int) -> float:
        """One step, after what callers ask for meanwhile; returns its milliseconds."""
        began = time.thread_time()
        for branch in self._answered:
            if branch.phase is Phase.OPEN:
                if len(branch.sequence.tokens) > HISTORY + 6 * REPLY:
                    branch.n_history = HISTORY  # a call of that length goes on for ever
                branch.commit([5, 6, 7, 8], PARAMS)
        branch = self._speaking[number % len(self._speaking)]
        words = self._words[branch.branch_id]
        if len(words) > 12 * WORDS:
            words.clear()
        words += [9 + number % 400] * WORDS
        branch.stage(list(words))
        self._engine.step()
        return (time.thread_time() - began) * 1e3


def measure(n_callers: int, n_steps: int) -> dict[str, float]:
    callers = Callers(build(n_callers), n_callers)
    gc.collect()
    gc.freeze()  # as a worker does, once it is loaded
    for number in range(n_steps // 4):
        callers.step(number)
    return spread([callers.step(number) for number in range(n_steps)])


def main(arguments: Sequence[str] | None = None) -> int:
    command = Benchmark("host_steps", "Milliseconds of the host for a step, by callers.")
    command.count("--steps", 200, "timed, for each number of callers")
    command.count("--callers", None, "so many alone")
    options = command.parse(arguments)
    torch.set_num_threads(1)
    numbers = (options.callers,) if options.callers else (8, 64, 128, 256)
    found: dict[int, dict[str, float]] = {}
    for n_callers in numbers:
        found[n_callers] = measure(n_callers, options.steps)
        print(f"{n_callers:>4} callers: ms a step {found[n_callers]}", flush=True)
    bars = [
        Bar(f"host, {n} callers: p50", found[n]["p50"], most)
        for n, most in BARS_MS.items()
        if n in found
    ]
    return command.finish({"history": HISTORY, "steps": options.steps}, bars, ms_per_step=found)


if __name__ == "__main__":
    sys.exit(run(main))
