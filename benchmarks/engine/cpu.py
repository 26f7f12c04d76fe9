"""The engine's speed on a CPU, part by part: beside peers, after a commit, batched, drafting.

Every part is one function that returns bars. Peers run on the same weights in interleaved rounds,
each pinned to the same number of threads.
"""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.engine.llama_cpp_peer import LlamaCpp
from benchmarks.engine.models import SHAPES, write_random_model
from benchmarks.engine.setting import (
    N_REPLY,
    TAIL,
    Setting,
    drain,
    median,
    ms_per_token,
    paired,
    reply_of,
)
from benchmarks.harness.harness import Bar, interleaved
from engine.branch import Branch
from engine.engine import Engine
from engine.types import Done, EngineConfig, SamplingParams


def token_time(setting: Setting) -> list[Bar]:
    """ms per token at batch 1, int8, beside `transformers.generate` in bf16, the same weights.

    Of both, what the tokens after the first took in the mean.
    """
    from transformers import AutoModelForCausalLM

    peer = AutoModelForCausalLM.from_pretrained(setting.model_dir, dtype=torch.bfloat16).eval()
    prompt = setting.words(200, 1)
    engine = setting.engine()
    ms: dict[str, list[float]] = {"engine": [], "transformers": []}
    for turn in interleaved(list(ms), setting.repeats, warm_up=1):
        if turn.variant == "engine":
            branch = engine.branch(f"b{turn.index}{turn.is_warm_up}", prompt)
            drain(engine)
            found = ms_per_token(reply_of(engine, branch, [17, 18]))
            branch.close()
        else:
            found = _generate_ms(peer, prompt)
        if not turn.is_warm_up:
            ms[turn.variant].append(found)
    own, other = median(ms["engine"]), median(ms["transformers"])
    setting.tell(f"engine int8 {own:.2f} ms/token, transformers bf16 {other:.2f} ms/token")
    ratio = paired(ms["engine"], ms["transformers"])
    return [Bar("ms/token, int8, over transformers generate, bf16", ratio, 1 / 3, "x")]


def _generate_ms(model: object, prompt: list[int]) -> float:
    """ms per token of `generate`, the prompt's share taken out by a run of one token."""
    ids, took = torch.tensor([prompt]), {}
    for n_new in (1, 1 + N_REPLY):
        started = time.perf_counter()
        model.generate(  # type: ignore[attr-defined]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n_new,
            min_new_tokens=n_new,
            do_sample=False,
            pad_token_id=0,
        )
        took[n_new] = time.perf_counter() - started
    return (took[1 + N_REPLY] - took[1]) * 1e3 / N_REPLY


def after_commit(setting: Setting) -> list[Bar]:
    """TTFT after commit with everything but the tail staged, short and long history."""
    engine = setting.engine()
    ttft: dict[int, list[float]] = {100: [], 1000: []}
    for i in range(8 * setting.repeats):
        for n_staged, found in ttft.items():
            branch = engine.branch(f"b{n_staged}-{i}", setting.words(n_staged - 20, n_staged))
            turn = setting.words(20, i)
            branch.stage(turn)
            drain(engine)
            done = reply_of(engine, branch, turn + setting.words(TAIL, i), 2)
            found.append(done.timings.ttft_ms)
            branch.close()
    short, long = median(ttft[100]), median(ttft[1000])
    growth = paired(ttft[1000], ttft[100])
    setting.tell(f"TTFT after commit: {short:.2f} ms at 100 tokens, {long:.2f} ms at 1,000")
    return [
        Bar("TTFT after commit, 1,000 tokens staged, p50", long, 3.0),
        Bar("the same over 100 tokens staged (flat)", growth, 1.5, "x"),
    ]


def batch(setting: Setting) -> list[Bar]:
    """Aggregate tokens/s of eight replies at once over the fastest single one, in rounds."""
    formats = {"bf16": None, "int8": "int8", "int4": "int4"}
    engines = {name: setting.engine(quant=quant) for name, quant in formats.items()}
    variants = [f"{name} x {n}" for name in formats for n in (1, 8)]
    rates: dict[str, list[float]] = {variant: [] for variant in variants}
    prompts = [setting.words(200, i) for i in range(8)]
    params = SamplingParams(max_tokens=N_REPLY, ignore_eos=True)
    for turn in interleaved(variants, setting.repeats, warm_up=1):
        name, n_replies = turn.variant.split(" x ")
        engine = engines[name]
        branches = [
            engine.branch(f"{turn.variant}-{turn.index}{turn.is_warm_up}-{i}", words)
            for i, words in enumerate(prompts[: int(n_replies)])
        ]
        drain(engine)
        for branch in branches:
            branch.commit([17, 18], params)
        done = [event for event in drain(engine) if isinstance(event, Done)]
        step_ms = median([gap for event in done for gap in event.timings.token_gaps_ms])
        for branch in branches:
            branch.close()
        if not turn.is_warm_up:
            rates[turn.variant].append(len(branches) * 1e3 / step_ms)
    for variant in variants:
        setting.tell(f"{variant}: {median(rates[variant]):.0f} tokens/s")
    alone, together = (
        max((rates[v] for v in variants if v.endswith(f" x {n}")), key=median) for n in (1, 8)
    )
    gain = paired(together, alone)
    return [Bar("batch 8 over the fastest batch 1, tokens/s", gain, 2.0, "x", at_least=True)]


def sharing(setting: Setting) -> list[Bar]:
    """TTFT of a second call with the same 1,000-token system prompt, on an engine that has run."""
    engine, saved = setting.engine(), []
    for i in range(-1, setting.repeats):  # the first prompt warms up
        prompt = setting.words(1000, 100 + i)
        ttft = []
        for name in ("first", "second"):
            branch = engine.branch(f"{name}{i}")
            ttft.append(reply_of(engine, branch, prompt + setting.words(24, 7), 2).timings.ttft_ms)
            branch.close()
        if i >= 0:
            saved.append(100 * (1 - ttft[1] / ttft[0]))
    return [
        Bar("second call, same 1,000-token prompt: TTFT lower by", median(saved), 80, "%", True)
    ]


def under_speculation(setting: Setting) -> list[Bar]:
    """TTFT of a committed turn while eight branches draft, over TTFT with none drafting.

    A commit is a byte on a socket, sent at any moment of a step of the drafts. As in the worker,
    that step polls the socket, and the time counts from the moment of sending.
    """
    engine, prompt = setting.engine(), setting.words(300, 1)
    chance = random.Random(setting.seed)
    ttft: dict[str, list[float]] = {"alone": [], "beside 8 drafts": []}
    for turn in interleaved(list(ttft), 8 * setting.repeats, warm_up=1):
        branch = engine.branch(f"{turn.variant}{turn.index}{turn.is_warm_up}", prompt)
        drain(engine)
        drafts, step_ms = list[Branch](), 1.0
        if turn.variant != "alone":
            names = [f"d{turn.index}{turn.is_warm_up}-{i}" for i in range(8)]
            drafts = [engine.branch(name, prompt) for name in names]
            step_ms = _start_drafting(setting, engine, drafts)
        sent = _step_until_sent(engine, chance.uniform(1, 2) * step_ms / 1e3)
        branch.commit(setting.words(10, 99) + [17, 18], SamplingParams(max_tokens=1))
        while not any(isinstance(event, Done) for event in engine.step()):
            pass
        if not turn.is_warm_up:
            ttft[turn.variant].append((time.perf_counter() - sent) * 1e3)
        for other in [branch, *drafts]:
            other.close()
    setting.tell(f"{engine.metrics()['abandoned_steps']:.0f} steps of drafts given up")
    alone, beside = map(median, ttft.values())
    setting.tell(f"TTFT {alone:.2f} ms alone, {beside:.2f} ms beside 8 drafts")
    ratio = paired(ttft["beside 8 drafts"], ttft["alone"])
    return [Bar("committed TTFT beside 8 drafts over none", ratio, 1.1, "x")]


def _step_until_sent(engine: Engine, after_s: float) -> float:
    """Step until something sent after so many seconds has arrived; when it was sent."""
    ours, theirs = socket.socketpair()
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    sent = 0.0

    def send() -> None:
        nonlocal sent
        sent = time.perf_counter()
        theirs.send(b"c")

    with ours, theirs:
        timer = threading.Timer(after_s, send)
        timer.start()
        while not poll.poll(0 if engine.has_work() else None):
            engine.step(lambda: bool(poll.poll(0)))
        return sent


def _start_drafting(setting: Setting, engine: Engine, drafts: list[Branch]) -> float:
    """Have the branches draft; ms that a step of theirs takes."""
    for i, branch in enumerate(drafts):
        branch.stage(setting.words(10, i))
    drain(engine)
    for branch in drafts:
        branch.begin_preemptive([17, 18], SamplingParams(max_tokens=200, ignore_eos=True))
    step_ms = []
    for _ in range(6):
        started = time.perf_counter()
        engine.step()
        step_ms.append((time.perf_counter() - started) * 1e3)
    return median(step_ms[3:])


def llama_cpp(setting: Setting) -> list[Bar]:
    """ms per token beside llama.cpp q8_0 on a 28M-class model with the same random weights."""
    prompt = setting.words(200, 1)
    params = SamplingParams(max_tokens=N_REPLY, ignore_eos=True)
    ms: dict[str, list[float]] = {"engine": [], "llama.cpp": []}
    said: dict[str, list[int]] = {}
    with TemporaryDirectory() as folder:
        model_dir = write_random_model(Path(folder) / "28m", SHAPES["28m"])
        try:
            peer = LlamaCpp(model_dir, Path(folder), setting.threads)
        except FileNotFoundError as error:
            setting.tell(f"not measured: {error}")
            return [Bar("ms/token, int8, over llama.cpp q8_0, 28M, one thread", None, 1.1, "x")]
        config = EngineConfig(quant="int8", threads=setting.threads, kv_tokens=4096)
        engine = Engine.load(model_dir, config)
        for turn in interleaved(list(ms), 2 * setting.repeats, warm_up=1):
            if turn.variant == "engine":
                branch = engine.branch(f"b{turn.index}{turn.is_warm_up}")
                branch.commit(prompt, params)
                done = next(event for event in drain(engine) if isinstance(event, Done))
                found = median(done.timings.token_gaps_ms)
                said["engine"] = branch.sequence.tokens[len(prompt) :]
                branch.close()
            else:
                found, said["llama.cpp"] = peer.run(prompt, N_REPLY)
            if not turn.is_warm_up:
                ms[turn.variant].append(found)
        peer.close()
    own, other = median(ms["engine"]), median(ms["llama.cpp"])
    n_same = sum(a == b for a, b in zip(said["engine"], said["llama.cpp"], strict=True))
    setting.tell(f"engine int8 {own:.2f} ms/token, llama.cpp q8_0 {other:.2f} ms/token")
    setting.tell(f"{n_same} of {N_REPLY} tokens alike (random weights have near ties)")
    ratio = paired(ms["engine"], ms["llama.cpp"])
    return [Bar("ms/token, int8, over llama.cpp q8_0, 28M, one thread", ratio, 1.1, "x")]
