"""The engine on a GPU in use: sealed, drafting, with 64 callers at once."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.engine.gpu_model import cold_ttft_ms, commit_ttft_ms, decode_ms, eagle_step_ms
from benchmarks.engine.models import SHAPES
from engine.branch import Branch
from engine.engine import Engine
from engine.types import Done, SamplingParams

Row = tuple[str, Callable[[], dict[str, Any]]]
Build = Callable[..., Engine]
LARGE = "qwen3-8b"
N_TOKENS = 128
N_COLD = 4096  # tokens of a prompt that nobody has read
N_UNSETTLED = 2  # steps after a prompt, the first of which are launched behind a prefill
N_CONVERSATIONS, CONVERSATION_SECONDS = 64, 60.0


def reply(engine: Engine, prompt: list[int], params: SamplingParams) -> tuple[list[int], Done]:
    branch = engine.branch(f"r{time.perf_counter_ns()}")
    branch.commit(prompt, params)
    done = None
    while done is None:
        done = next((event for event in engine.step() if isinstance(event, Done)), None)
    tokens = branch.sequence.tokens[len(prompt) :]
    branch.close()
    return tokens, done


# -- nothing compiled, allocated or synchronized after ready -------------------------------------


def sealed(build: Build) -> Iterator[Row]:
    """A busy minute in which any late compilation, allocation or synchronization is an error."""
    for quant, kv_format in ((None, "plain"), ("int8", "int8"), ("int4", "int8")):

        def measure(quant: str | None = quant, kv_format: str = kv_format) -> dict[str, Any]:
            engine = build(
                "1b", quant=quant, kv_format=kv_format, kv_tokens=65536, ngram_draft=True
            )
            runner: Any = engine.runner
            n_allocated = _n_allocated()
            torch.cuda.set_sync_debug_mode("error")
            try:
                _be_busy(engine)
                if n_late := _n_allocated() - n_allocated:
                    raise RuntimeError(f"expected no allocation once ready, found {n_late}")
            finally:
                torch.cuda.set_sync_debug_mode("default")
            return {"launches": runner.n_launches, "ahead_used": runner.n_ahead_used}

        yield f"1b, {quant or 'bf16'}, kv {kv_format}", measure


def _n_allocated() -> int:
    return int(torch.cuda.memory_stats()["allocation.all.allocated"])


def _be_busy(engine: Engine) -> None:
    """Prompts, stagings, drafts and replies of all sizes side by side."""
    chance = random.Random(1)
    for turn in range(12):
        branches = []
        for i in range(1 + turn * 2):
            branch = engine.branch(f"s{turn}-{i}", [16 + i % 7] * chance.randrange(1, 300))
            branch.stage([30 + i] * chance.randrange(1, 40))
            for _ in range(chance.randrange(3)):
                engine.step()
            if i % 3 == 0:
                branch.begin_preemptive([20, 21], SamplingParams(max_tokens=20, temperature=0.7))
            branches.append(branch)
        for i, branch in enumerate(branches):
            params = SamplingParams(
                max_tokens=chance.randrange(2, 60), temperature=0.8 * (i % 2), top_p=0.9
            )
            branch.commit([31 + i] * chance.randrange(1, 30), params)
        while engine.has_work():
            engine.step()
        for branch in branches:
            branch.close()


# -- drafting ------------------------------------------------------------------------------------


def eagle(build: Build) -> Iterator[Row]:
    """8B int4 with an EAGLE-3 head: a step with so many guesses before it, right or wrong."""
    engines: list[Engine] = []
    params = SamplingParams(max_tokens=N_TOKENS, ignore_eos=True)

    def measure(n_guesses: int) -> dict[str, Any]:
        if not engines:
            engines.append(
                build(LARGE, has_head=True, quant="int4", kv_format="int8", kv_tokens=16384)
            )
        runner: Any = engines[0].runner
        runner.length.choose = lambda n_replies: n_guesses
        done = [reply(engines[0], [17, 18, 19], params)[1] for _ in range(3)]
        gaps = [gap for one in done[1:] for gap in one.timings.token_gaps_ms[N_UNSETTLED:]]
        return {
            "predicted": round(eagle_step_ms(SHAPES[LARGE], "int4", "int8", n_guesses, 64), 2),
            "measured": round(statistics.median(gaps), 3),
            "unit": "ms",
            "drafted": done[-1].usage.drafted_tokens,
        }

    for n_guesses in (0, 1, 3, 7):
        yield f"8b int4, {n_guesses} guesses", partial(measure, n_guesses)
    engines.clear()


# -- company, and prompts nobody has read ---------------------------------------------------------


def mixed(build: Build) -> Iterator[Row]:
    """8B int4: the token gaps of one reply alone, and while others say a word in every step."""
    engines: list[Engine] = []

    def measure(n_stagers: int) -> dict[str, Any]:
        engines[:] = engines or [build(LARGE, quant="int4", kv_format="int8")]
        return one_reply(engines[0], n_stagers)

    for n_stagers in (0, 1, 4):
        yield f"8b int4, one reply beside {n_stagers} that speak", partial(measure, n_stagers)


def one_reply(engine: Engine, n_stagers: int) -> dict[str, Any]:
    """The token gaps of a reply while so many others say a word in every step."""
    runner: Any = engine.runner
    n_launches, n_before = runner.n_launches, engine.metrics().get("steps", 0)
    words = [16 + i % 97 for i in range(512)]
    stagers = [engine.branch(f"s{time.perf_counter_ns()}-{i}") for i in range(n_stagers)]
    speaker = engine.branch(f"r{time.perf_counter_ns()}", words)
    speaker.commit([17, 18], SamplingParams(max_tokens=N_TOKENS, ignore_eos=True))
    done, n_words = None, 0
    while done is None:
        n_words = n_words % 200 + 1
        for i, stager in enumerate(stagers):
            stager.stage([30 + i, *words[:n_words]])
        done = next((event for event in engine.step() if isinstance(event, Done)), None)
    for branch in (speaker, *stagers):
        branch.close()
    gaps = sorted(done.timings.token_gaps_ms[N_UNSETTLED:])
    n_steps = engine.metrics().get("steps", 0) - n_before
    return {
        "gap_ms": {f"p{p}": round(gaps[p * len(gaps) // 100], 3) for p in (50, 90, 99)},
        "launches_a_step": round((runner.n_launches - n_launches) / n_steps, 2),
        "predicted": round(decode_ms(SHAPES[LARGE], "int4", "int8", 1 + n_stagers, 640), 2),
        "measured": round(gaps[len(gaps) // 2], 2),
        "unit": "ms",
    }


def cold(build: Build) -> Iterator[Row]:
    """8B: the first token after a prompt of `N_COLD` tokens that nobody has read."""
    for quant in ("int8", "int4"):

        def measure(quant: str = quant) -> dict[str, Any]:
            engine = build(LARGE, quant=quant, kv_format="int8", kv_tokens=4 * N_COLD)
            params = SamplingParams(max_tokens=2, ignore_eos=True)
            ttft = []
            for attempt in range(4):
                prompt = [16 + (i * 7 + attempt) % 200 for i in range(N_COLD)]
                ttft.append(reply(engine, prompt, params)[1].timings.ttft_ms)
            median_ms = statistics.median(ttft[1:])
            return {
                "ttft_ms": [round(ms, 1) for ms in ttft],
                "predicted": round(
                    cold_ttft_ms(SHAPES[LARGE], quant, "int8", N_COLD, engine.config.step_tokens)
                ),
                "measured": round(median_ms, 1),
                "unit": "ms",
            }

        yield f"8b {quant}, a cold prompt of {N_COLD}", measure


# -- conversations -------------------------------------------------------------------------------


class Caller:
    """One conversation: words come while it speaks, a reply is asked for, then it listens."""

    def __init__(self, engine: Engine, index: int, now: float) -> None:
        self.chance = random.Random(index)
        self.branch: Branch = engine.branch(f"c{index}", [16 + index] * 500)
        self.words: list[int] = []
        self.due = now + 4 * self.chance.random()
        self.is_answered = False

    def act(self, now: float) -> None:
        """Say some more, or end the turn."""
        if len(self.words) < 40:
            self.words += [self.chance.randrange(16, 250) for _ in range(4)]
            self.branch.stage(self.words)
            self.due = now + 0.25
            return
        params = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.7)
        self.branch.commit([*self.words, 17, 18], params)
        self.words, self.due = [], float("inf")


def conversations(build: Build) -> Iterator[Row]:
    """64 callers on one 8B int4 engine for a minute."""

    def measure() -> dict[str, Any]:
        engine = build(LARGE, quant="int4", kv_format="int8", kv_tokens=64 * 4096, max_branches=64)
        now = time.monotonic()
        callers = {f"c{i}": Caller(engine, i, now) for i in range(N_CONVERSATIONS)}
        ttft, gaps = list[float](), list[float]()
        end = now + CONVERSATION_SECONDS
        while (now := time.monotonic()) < end:
            for caller in callers.values():
                if caller.due <= now:
                    caller.act(now)
            for event in engine.step():
                if isinstance(event, Done):
                    ttft.append(event.timings.ttft_ms)
                    gaps += event.timings.token_gaps_ms
                    callers[event.branch_id].due = now + 4.0
        ttft.sort()
        gaps.sort()
        return {
            "replies": len(ttft),
            "ttft_ms": {f"p{p}": round(ttft[p * len(ttft) // 100], 2) for p in (50, 95, 99)},
            "gap_ms": {f"p{p}": round(gaps[p * len(gaps) // 100], 2) for p in (50, 95, 99)},
            "predicted": round(commit_ttft_ms(SHAPES[LARGE], "int4", "int8", 1000), 1),
            "measured": round(ttft[len(ttft) // 2], 2),
            "unit": "ms",
        }

    yield f"8b int4, {N_CONVERSATIONS} callers", measure
