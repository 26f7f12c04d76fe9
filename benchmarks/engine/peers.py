"""The engine beside llama.cpp on the same trained weights, as 4-bit and 8-bit files.

    VOICELOOP_LLAMA_CPP=PEER/bin/python python -m benchmarks.engine_bench --peers --check

SmolLM2-135M and Qwen2.5-Coder-1.5B, of `python -m tests.real_weights.fetch smollm2-135m
qwen2.5-coder-1.5b`; llama.cpp makes Q4_0, Q8_0 and Q4_K_M of each file, and both read the same one.
A prompt, a token behind it, and several replies at once, in interleaved rounds, with one thread and
with two (and four where the machine has them). A ratio is the median of its rounds' own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.engine.llama_cpp_peer import LlamaCpp, Timed, requantize
from benchmarks.engine.setting import N_REPLY, Setting, drain, median, paired, stage_words
from benchmarks.harness.harness import Bar, interleaved
from engine.engine import Engine
from engine.types import Done, EngineConfig, SamplingParams
from tests.real_weights.fetch import folder_of
from tests.real_weights.packages import QWEN_CODER, SMOLLM2, Weights

KINDS = {"Q4_0": "int4", "Q4_K_M": "int4", "Q8_0": "int8"}  # of files, and what we keep them as
OF_BYTES = {"4 bits": ("Q4_0", "Q4_K_M"), "8 bits": ("Q8_0",)}
N_PROMPT, N_CLAUSE, N_STAGED = 256, 10, 60
TOGETHER = (1, 4, 8)  # replies at once
# Of several replies the steps alone are timed: tokens of their prompts, and steps.
N_EACH, N_STEPS = 32, 16
LARGE_SHARE = 0.4  # of the rounds of the small model: one of 1.5B takes eleven times as long
PACKED_BYTES = 8 << 30


@dataclass(slots=True)
class Found:
    """Of one file and number of threads, by round: milliseconds of a prompt, and of a step by how
    many replies it serves.
    """

    prompt_ms: list[float] = field(default_factory=list)
    step_ms: dict[int, list[float]] = field(default_factory=lambda: {n: [] for n in TOGETHER})

    def add(self, timed: Timed, n_together: int) -> None:
        if n_together == 1:
            self.prompt_ms.append(timed.prompt_ms)
        self.step_ms[n_together].append(timed.step_ms)


Both = dict[str, Found]  # of "engine" and "llama.cpp"


def peers(setting: Setting) -> list[Bar]:
    """Both models, whose rows are missed where one, or llama.cpp, is not here."""
    counts = [n for n in (1, 2, 4) if n <= (os.cpu_count() or 1)]
    bars = list[Bar]()
    for weights, name in ((SMOLLM2, "SmolLM2-135M"), (QWEN_CODER, "Qwen2.5-Coder-1.5B")):
        found = _measured(setting, weights, name, counts)
        bars += _of_smollm2(found) if weights is SMOLLM2 else _of_qwen(setting, found)
    return bars


def _measured(
    setting: Setting, weights: Weights, name: str, counts: list[int]
) -> dict[tuple[str, int], Both]:
    """By file and threads; nothing where something is missing, which is told."""
    found = dict[tuple[str, int], Both]()
    folder = folder_of(weights)
    if folder is None:
        setting.tell(f"not measured: {name} (python -m tests.real_weights.fetch {weights.name})")
        return found
    source = next(folder.glob("*.gguf"))
    with TemporaryDirectory() as scratch:
        for kind, quant in KINDS.items():
            try:
                path = requantize(source, kind, Path(scratch) / f"{kind}.gguf")
            except FileNotFoundError as error:
                setting.tell(f"not measured: {error}")
                return found
            share = 1.0 if weights is SMOLLM2 else LARGE_SHARE
            n_rounds = max(1, round(share * setting.repeats))
            for n_threads in counts:
                both = found[kind, n_threads] = _beside(setting, path, quant, n_threads, n_rounds)
                _tell(setting, f"{name} {kind}, {n_threads} threads", both)
            if path != source:
                path.unlink()
    return found


def _beside(setting: Setting, path: Path, quant: str, n_threads: int, n_rounds: int) -> Both:
    engine = Engine.load(
        path, EngineConfig(quant=quant, threads=n_threads, kv_tokens=8192, max_draft_tokens=0)
    )
    both = {"engine": Found(), "llama.cpp": Found()}
    variants = [f"{who} {n}" for n in TOGETHER for who in both]
    with TemporaryDirectory() as folder, _closing(LlamaCpp(path, Path(folder), n_threads)) as peer:
        for turn in interleaved(variants, n_rounds, warm_up=1):
            who, _, n = turn.variant.rpartition(" ")
            n_words, n_reply = (N_PROMPT, N_REPLY) if n == "1" else (N_EACH, N_STEPS)
            prompts = [setting.words(n_words, 10 * turn.index + i) for i in range(int(n))]
            ours = who == "engine"
            timed = _of_engine(engine, prompts, n_reply) if ours else peer.timed(prompts, n_reply)
            if not turn.is_warm_up:
                both[who].add(timed, int(n))
    return both


@contextmanager
def _closing(peer: LlamaCpp) -> Iterator[LlamaCpp]:
    try:
        yield peer
    finally:
        peer.close()


def _of_engine(engine: Engine, prompts: list[list[int]], n_reply: int) -> Timed:
    params = SamplingParams(max_tokens=n_reply, ignore_eos=True)
    branches = [engine.branch(f"p{i}") for i in range(len(prompts))]
    for branch, prompt in zip(branches, prompts, strict=True):
        if len(prompts) > 1:  # all are read before any goes on
            branch.stage(prompt)
    drain(engine)
    for branch, prompt in zip(branches, prompts, strict=True):
        branch.commit(prompt, params)
    done = [event for event in drain(engine) if isinstance(event, Done)]
    for branch in branches:
        branch.close()
    engine.tree.evict(engine.pool.n_blocks)  # the next prompt is computed, whatever it is
    gaps = [gap for event in done for gap in event.timings.token_gaps_ms[len(prompts) :]]
    return Timed(done[0].timings.ttft_ms, median(gaps))


def _tell(setting: Setting, name: str, both: Both) -> None:
    for who, found in both.items():
        steps = ", ".join(
            f"{n} at once {1e3 * n / median(ms):.1f}" for n, ms in found.step_ms.items()
        )
        prompt = 1e3 * N_PROMPT / median(found.prompt_ms)
        setting.tell(f"{name}, {who}: prompt {prompt:.0f} tokens/s; {steps}")


def _over(found: dict[tuple[str, int], Both], kinds: tuple[str, ...], n: int, what: str) -> float:
    """Tokens a second of our best file over theirs, round by round; of a prompt, or of a reply."""

    def ms(who: str, kind: str) -> list[float]:
        one = found[kind, n][who]
        return one.prompt_ms if what == "prompt" else one.step_ms[1]

    ours, theirs = (
        min((ms(who, kind) for kind in kinds), key=median) for who in ("engine", "llama.cpp")
    )
    return paired(theirs, ours)


def _of_smollm2(found: dict[tuple[str, int], Both]) -> list[Bar]:
    bars = []
    for bits, kinds in OF_BYTES.items():
        for what, least in (("token", 0.9), ("prompt", 0.8)):
            value = _over(found, kinds, 1, what) if found else None
            name = f"SmolLM2-135M, {bits}, one thread: {what} over llama.cpp's best, tokens/s"
            bars.append(Bar(name, value, least, "x", at_least=True))
    return bars


def _of_qwen(setting: Setting, found: dict[tuple[str, int], Both]) -> list[Bar]:
    bars = []
    for n in (1, 2):
        value = _over(found, ("Q4_0",), n, "token") if ("Q4_0", n) in found else None
        name = f"Qwen2.5-1.5B Q4_0, {n} threads: token over llama.cpp, tokens/s"
        bars.append(Bar(name, value, 0.9, "x", at_least=True))
    folder = folder_of(QWEN_CODER)
    clause_ms, ready_s = (None, None) if folder is None else _as_served(setting, folder)
    return [
        *bars,
        Bar(f"Qwen2.5-1.5B: a first clause of {N_CLAUSE} tokens behind a staged prompt",
            clause_ms, 450.0),
        Bar("Qwen2.5-1.5B: ready from packed weights on disk", ready_s, 10.0, "s"),
    ]  # fmt: skip


def _as_served(setting: Setting, folder: Path) -> tuple[float, float]:
    """As the `cpu` preset serves it: int4, half of the cores, weights kept on disk."""
    config = EngineConfig(
        quant="int4", threads=max(1, (os.cpu_count() or 1) // 2), kv_tokens=8192,
        context_length=4096, packed_file_bytes=PACKED_BYTES, ngram_draft=True,
    )  # fmt: skip
    path = next(folder.glob("*.gguf"))
    Engine.load(path, config)  # the first start keeps them
    _await_packed()
    started = time.perf_counter()
    engine = Engine.load(path, config)
    ready_s, clauses = time.perf_counter() - started, list[float]()
    params = SamplingParams(max_tokens=N_CLAUSE, ignore_eos=True)
    for i in range(4 * setting.repeats):
        prompt, branch = setting.words(N_STAGED, 500 + i), engine.branch(f"c{i}")
        stage_words(engine, branch, prompt)
        branch.commit(prompt, params)
        clauses.append(next(e for e in drain(engine) if isinstance(e, Done)).timings.total_ms)
        branch.close()
    setting.tell(f"as served: first clause {median(clauses):.0f} ms, ready {ready_s:.1f} s")
    return median(clauses), ready_s


def _await_packed() -> None:
    """Until the thread that writes them has ended."""
    import threading

    for thread in threading.enumerate():
        if thread.name == "packed weights":
            thread.join()
