"""The engine beside llama.cpp on the same trained weights, as 4-bit and 8-bit files.

    VOICELOOP_LLAMA_CPP=PEER/bin/python python -m benchmarks.engine_bench --peers --check

SmolLM2-135M and Qwen2.5-Coder-1.5B, of `python -m tests.real_weights.fetch smollm2-135m
qwen2.5-coder-1.5b`; llama.cpp makes Q4_0, Q8_0 and Q4_K_M of each file, and both read the same one.
A prompt, the tokens behind it, and several replies at once, with one thread and with two (and four
where the machine has them). Both sides take turns, a few tokens at a time. A ratio is the median of
their own; of two different files it is that of the medians.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.engine.llama_cpp_peer import LlamaCpp, requantize
from benchmarks.engine.setting import Setting, drain, median, paired, stage_words
from benchmarks.harness.harness import Bar
from engine.branch import Branch
from engine.engine import Engine
from engine.types import Done, EngineConfig, SamplingParams
from tests.real_weights.fetch import folder_of
from tests.real_weights.packages import QWEN_CODER, SMOLLM2, Weights
from voiceloop.models.catalog import CPU

KINDS = {"Q4_0": "int4", "Q4_K_M": "int4", "Q8_0": "int8"}  # of files, and what we keep them as
OF_BYTES = {"4 bits": ("Q4_0", "Q4_K_M"), "8 bits": ("Q8_0",)}
N_PROMPT, N_CLAUSE, N_STAGED = 256, 10, 60
TOGETHER = (1, 4, 8)  # replies at once
# Tokens of a side before it is the other's turn, and turns of a round; of several replies half as
# many, and half the rounds.
BURST, N_BURSTS = 4, 8
N_EACH = 16  # tokens of each prompt of several, whose reading is not timed
MOST_TOKENS = 1 + BURST * N_BURSTS
LARGE_SHARE = 0.4  # of the rounds of the small model: one of 1.5B takes eleven times as long
PACKED_BYTES = 8 << 30


@dataclass(slots=True)
class Found:
    """Of one file and number of threads: milliseconds of each prompt, and of a step of each burst
    by how many replies it serves.
    """

    prompt_ms: list[float] = field(default_factory=list)
    step_ms: dict[int, list[float]] = field(default_factory=lambda: {n: [] for n in TOGETHER})


Both = dict[str, Found]  # of "engine" and "llama.cpp"
Sides = dict[str, "Replies | LlamaCpp"]


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
    """Both read a prompt in turns, and then go on in turns, `BURST` steps at a time: what slows the
    machine for a second slows both.
    """
    engine = Engine.load(
        path, EngineConfig(quant=quant, threads=n_threads, kv_tokens=8192, max_draft_tokens=0)
    )
    both = {"engine": Found(), "llama.cpp": Found()}
    with TemporaryDirectory() as folder, _closing(LlamaCpp(path, Path(folder), n_threads)) as peer:
        sides: Sides = {"engine": Replies(engine), "llama.cpp": peer}
        _in_turns(sides, [setting.words(N_EACH, 0)], 1)  # a warm-up
        for n in TOGETHER:
            is_alone = n == 1
            n_words, n_bursts = (N_PROMPT, N_BURSTS) if is_alone else (N_EACH, N_BURSTS // 2)
            for index in range(n_rounds if is_alone else max(1, n_rounds // 2)):
                prompts = [setting.words(n_words, 1 + 10 * index + i) for i in range(n)]
                prompt_ms, step_ms = _in_turns(sides, prompts, n_bursts)
                for who, found in both.items():
                    if is_alone:
                        found.prompt_ms.append(prompt_ms[who])
                    found.step_ms[n] += step_ms[who]
                sides = dict(reversed(sides.items()))
    return both


def _in_turns(
    sides: Sides, prompts: list[list[int]], n_bursts: int
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Milliseconds of each side: of a prompt, and of a step of each burst."""
    prompt_ms = {who: side.begin(prompts) for who, side in sides.items()}
    step_ms: dict[str, list[float]] = {who: [] for who in sides}
    for _ in range(n_bursts):
        for who, side in sides.items():
            step_ms[who].append(median(side.go_on(BURST)))
    return prompt_ms, step_ms


@contextmanager
def _closing(peer: LlamaCpp) -> Iterator[LlamaCpp]:
    try:
        yield peer
    finally:
        peer.close()


class Replies:
    """Replies of the engine, a step at a time, as `LlamaCpp` makes them."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._branches = engine, list[Branch]()

    def begin(self, prompts: list[list[int]]) -> float:
        """Read all of these prompts; milliseconds of the first, up to its first token."""
        engine = self._engine
        for branch in self._branches:
            branch.close()
        engine.tree.evict(engine.pool.n_blocks)  # a prompt is computed, whatever it is
        self._branches = branches = [engine.branch(f"p{i}") for i in range(len(prompts))]
        if len(prompts) > 1:  # all are read before any goes on
            for branch, prompt in zip(branches, prompts, strict=True):
                branch.stage(prompt)
            drain(engine)
        params = SamplingParams(max_tokens=MOST_TOKENS, ignore_eos=True)
        started = time.perf_counter()
        for branch, prompt in zip(branches, prompts, strict=True):
            branch.commit(prompt, params)
        while not all(branch.reply is not None and branch.reply.tokens for branch in branches):
            engine.step()
        return (time.perf_counter() - started) * 1e3

    def go_on(self, n_steps: int) -> list[float]:
        """A token more for each of them, so many times; milliseconds of each."""
        found = []
        for _ in range(n_steps):
            started = time.perf_counter()
            self._engine.step()
            found.append((time.perf_counter() - started) * 1e3)
        return found


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
        min(kinds, key=lambda kind: median(ms(who, kind))) for who in ("engine", "llama.cpp")
    )
    if ours == theirs:
        return paired(ms("llama.cpp", theirs), ms("engine", ours))
    return median(ms("llama.cpp", theirs)) / median(ms("engine", ours))


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
    """As the `cpu` preset serves it: int4, its threads, weights kept on disk."""
    config = EngineConfig(
        quant="int4", threads=CPU.processes[0].threads(os.cpu_count() or 1), kv_tokens=8192,
        context_length=4096, packed_file_bytes=PACKED_BYTES, ngram_draft=True,
    )  # fmt: skip
    path = next(folder.glob("*.gguf"))
    Engine.load(path, config)  # the first start keeps them
    _await_packed()
    started = time.perf_counter()
    engine = Engine.load(path, config)
    ready_s, clauses = time.perf_counter() - started, list[float]()
    params = SamplingParams(max_tokens=N_CLAUSE, ignore_eos=True)
    for i in range(2 * setting.repeats):
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
