"""The engine's table on a CPU: speed beside peers, latency after commit, sharing, speculation.

    python -m benchmarks.engine_bench --check [--part NAME ...] [--model DIR] [--json]

Every part is one function that returns bars. Peers run in the same process on the same weights, in
interleaved rounds, each pinned to `--threads`. A row that cannot be measured here (a peer that is
not installed, a model that is not trained yet) says so and counts as missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.engine_models import SHAPES, embedded_model, write_random_model
from benchmarks.harness import Bar, bar_table, interleaved, results, write_results
from engine.branch import Branch
from engine.engine import Engine
from engine.sampler import gumbel_noise
from engine.types import Done, EngineConfig, EngineError, Event, SamplingParams

N_REPLY = 48  # tokens of a measured reply
TAIL = 5  # tokens a commit adds to what is staged: end of turn and assistant header


# What callers say, for the parts whose figures depend on what a trained model answers.
CALLERS = (
    "hi i would like to book a table for four on friday evening",
    "what time do you close on sundays",
    "my number is zero five five one seven seven two could you read that back to me",
    "do you have anything without nuts",
    "can you move my booking to half past eight please",
    "how much is the large one and how long does it take",
    "i need to cancel my appointment for tomorrow morning",
    "which of the two would you recommend for a child",
)


@dataclass(frozen=True, slots=True)
class Setting:
    model_dir: Path
    is_trained: bool
    threads: int
    repeats: int
    seed: int

    def engine(self, **changes: object) -> Engine:
        config = {"quant": "int8", "threads": self.threads, "kv_tokens": 32768, **changes}
        return Engine.load(self.model_dir, EngineConfig(**config))  # type: ignore[arg-type]

    def words(self, n_tokens: int, salt: int) -> list[int]:
        """Token ids that stand for somebody's words; every salt gives others."""
        chance = random.Random(self.seed * 1000 + salt)
        return [chance.randrange(16, 256) for _ in range(n_tokens)]

    def question(self, engine: Engine, index: int) -> list[int]:
        """A prompt worth an answer; of random words where the model is random too."""
        if not self.is_trained:
            return self.words(60, index)
        said = CALLERS[index % len(CALLERS)]
        messages = [
            {"role": "system", "content": "You answer the phone of a small business. Be brief."},
            {"role": "user", "content": CALLERS[(index * 5 + 1) % len(CALLERS)]},
            {"role": "assistant", "content": "One moment, please. Is there anything else?"},
            {"role": "user", "content": said},
        ]
        return engine.text.encode_chat(messages, add_generation_prompt=True)


def drain(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while engine.has_work():
        events += engine.step()
    return events


def reply_of(engine: Engine, branch: Branch, tokens: list[int], n_reply: int = N_REPLY) -> Done:
    """Commit and run to the end."""
    branch.commit(tokens, SamplingParams(max_tokens=n_reply, ignore_eos=True))
    return next(event for event in drain(engine) if isinstance(event, Done))


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


# -- parts ---------------------------------------------------------------------------------------


def token_time(setting: Setting) -> list[Bar]:
    """ms per token at batch 1 beside `transformers.generate` (bf16, the same weights)."""
    from transformers import AutoModelForCausalLM

    peer = AutoModelForCausalLM.from_pretrained(setting.model_dir, dtype=torch.bfloat16).eval()
    prompt = setting.words(200, 1)
    engine = setting.engine()
    ms: dict[str, list[float]] = {"engine": [], "transformers": []}
    for turn in interleaved(list(ms), setting.repeats, warm_up=1):
        if turn.variant == "engine":
            branch = engine.branch(f"b{turn.index}{turn.is_warm_up}", prompt)
            drain(engine)
            found = median(reply_of(engine, branch, [17, 18]).timings.token_gaps_ms)
            branch.close()
        else:
            found = _generate_ms(peer, prompt)
        if not turn.is_warm_up:
            ms[turn.variant].append(found)
    own, other = median(ms["engine"]), median(ms["transformers"])
    print(f"  engine int8 {own:.2f} ms/token, transformers bf16 {other:.2f} ms/token")
    return [Bar("ms/token over transformers generate", own / other, 1 / 3, "x")]


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
    for n_staged in ttft:
        history = setting.words(n_staged - 20, n_staged)
        for i in range(4 * setting.repeats):
            branch = engine.branch(f"b{n_staged}-{i}", history)
            turn = setting.words(20, i)
            branch.stage(turn)
            drain(engine)
            done = reply_of(engine, branch, turn + setting.words(TAIL, i), 2)
            ttft[n_staged].append(done.timings.ttft_ms)
            branch.close()
    short, long = median(ttft[100]), median(ttft[1000])
    print(f"  TTFT after commit: {short:.2f} ms at 100 tokens, {long:.2f} ms at 1,000")
    return [
        Bar("TTFT after commit, 1,000 tokens staged, p50", long, 8.0),
        Bar("the same over 100 tokens staged (flat)", long / short, 1.5, "x"),
    ]


def batch(setting: Setting) -> list[Bar]:
    """Aggregate tokens/s of eight replies at once over the fastest single one."""
    engines = {quant: setting.engine(quant=quant) for quant in (None, "int8", "int4")}
    single = {}
    for quant, engine in engines.items():
        branch = engine.branch("one", setting.words(200, 1))
        drain(engine)
        gaps_ms = reply_of(engine, branch, [17, 18]).timings.token_gaps_ms
        single[quant] = 1e3 / median(gaps_ms)
        branch.close()
    rates = []
    for quant, engine in engines.items():
        branches = [engine.branch(f"b{i}", setting.words(200, i)) for i in range(8)]
        drain(engine)
        params = SamplingParams(max_tokens=N_REPLY, ignore_eos=True)
        for branch in branches:
            branch.commit([17, 18], params)
        done = [event for event in drain(engine) if isinstance(event, Done)]
        step_ms = median([gap for event in done for gap in event.timings.token_gaps_ms])
        rates.append(8e3 / step_ms)
        print(f"  {quant or 'bf16'}: {single[quant]:.0f} tokens/s alone, {rates[-1]:.0f} at 8")
    gain = max(rates) / max(single.values())
    return [Bar("batch 8 over the fastest batch 1, tokens/s", gain, 2.0, "x", at_least=True)]


def sharing(setting: Setting) -> list[Bar]:
    """TTFT of a second call with the same 1,000-token system prompt."""
    saved = []
    for i in range(setting.repeats):
        engine, prompt = setting.engine(), setting.words(1000, i)
        ttft = []
        for name in ("first", "second"):
            branch = engine.branch(name)
            ttft.append(reply_of(engine, branch, prompt + setting.words(24, 7), 2).timings.ttft_ms)
            branch.close()
        saved.append(100 * (1 - ttft[1] / ttft[0]))
    return [
        Bar("second call, same 1,000-token prompt: TTFT lower by", median(saved), 80, "%", True)
    ]


def under_speculation(setting: Setting) -> list[Bar]:
    """TTFT of a committed turn while eight branches draft, over TTFT with none drafting."""
    engine, prompt = setting.engine(), setting.words(300, 1)
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    ttft: dict[str, list[float]] = {"alone": [], "beside 8 drafts": []}
    for turn in interleaved(list(ttft), 3 * setting.repeats, warm_up=1):
        drafting = []
        if turn.variant != "alone":
            for i in range(8):
                drafting.append(engine.branch(f"d{turn.index}{turn.is_warm_up}-{i}", prompt))
                drafting[-1].stage(setting.words(10, i))
            drain(engine)
            for branch in drafting:
                branch.speculate([17, 18], params)
            for _ in range(4):
                engine.step()
        branch = engine.branch(f"{turn.variant}{turn.index}{turn.is_warm_up}", prompt)
        branch.commit(setting.words(10, 99) + [17, 18], SamplingParams(max_tokens=1))
        done = None
        while done is None:
            done = next((event for event in engine.step() if isinstance(event, Done)), None)
        if not turn.is_warm_up:
            ttft[turn.variant].append(done.timings.ttft_ms)
        for other in [branch, *drafting]:
            other.close()
    alone, beside = map(median, ttft.values())
    print(f"  TTFT {alone:.2f} ms alone, {beside:.2f} ms beside 8 drafts")
    return [Bar("committed TTFT beside 8 drafts over none", beside / alone, 1.1, "x")]


def drafting(setting: Setting) -> list[Bar]:
    """Speculative decoding as it is served, reported; it must not cost more than it gains."""
    variants: dict[str, dict[str, object]] = {
        "off": {},
        "ngram": {"ngram_draft": True},
        "early exit": {"self_draft_layers": 2},
    }
    draft_dir = embedded_model("draft")
    if setting.is_trained and draft_dir is not None:
        variants["draft model"] = {"draft_dir": draft_dir}
    engines = {name: setting.engine(**changes) for name, changes in variants.items()}
    ms: dict[str, list[float]] = {name: [] for name in variants}
    params = SamplingParams(max_tokens=2 * N_REPLY, ignore_eos=not setting.is_trained)
    for turn in interleaved(list(variants), 4 * setting.repeats, warm_up=1):
        engine = engines[turn.variant]
        branch = engine.branch(f"b{turn.index}{turn.is_warm_up}")
        branch.commit(setting.question(engine, turn.index), params)
        done = next(event for event in drain(engine) if isinstance(event, Done))
        branch.close()
        if not turn.is_warm_up and done.usage.output_tokens > 1:
            decode_ms = done.timings.total_ms - done.timings.ttft_ms
            ms[turn.variant].append(decode_ms / (done.usage.output_tokens - 1))
    for name, engine in engines.items():
        totals = engine.metrics()
        drafted, accepted = totals["drafted_tokens"], totals["accepted_tokens"]
        print(f"  {name}: {median(ms[name]):.2f} ms/token, {accepted:.0f} of {drafted:.0f} drafted")
    worst = max(median(values) for values in ms.values()) / median(ms["off"])
    return [Bar("ms/token with any drafter over none", worst, 1.1, "x")]


def served_exactness(setting: Setting) -> list[Bar]:
    """Speculation on against off in the served dtypes: where they part, was it a near tie?"""
    n_replies, n_parted, widest = 0, 0, 0.0
    for quant in (None, "int8"):
        plain = setting.engine(quant=quant)
        drafted = setting.engine(quant=quant, self_draft_layers=2)
        for _, length in drafted.speculation._drafters:
            length.choose = lambda branch_id: 4  # type: ignore[method-assign]
        for i in range(10 * setting.repeats):
            prompt = setting.question(plain, i)
            params = SamplingParams(
                max_tokens=N_REPLY, ignore_eos=not setting.is_trained, temperature=0.7 * (i % 2)
            )
            said = []
            for engine in (plain, drafted):
                branch = engine.branch(f"b{i}")
                branch.commit(prompt, params)
                drain(engine)
                said.append(branch.sequence.tokens[len(prompt) :])
                branch.close()
            n_replies += 1
            if said[0] != said[1]:
                n_parted += 1
                same = len(os.path.commonprefix(said))
                both = said[0][same], said[1][same]
                widest = max(widest, _margin(plain, prompt + said[0][:same], both, params, same))
    print(
        f"  {n_parted} of {n_replies} replies part, widest margin {widest:.4f} of the logit range"
    )
    return [Bar("divergence, served dtypes: widest top-2 margin / logit range", widest, 0.02, "")]


def _margin(
    engine: Engine, tokens: list[int], both: tuple[int, int], params: SamplingParams, index: int
) -> float:
    """How far apart the scores of two tokens are after `tokens`, over the range of the logits."""
    from engine.runner import Extension
    from engine.sequence import Sequence as EngineSequence

    sequence = EngineSequence(engine.pool, engine.tree, "margin")
    sequence.tokens = list(tokens)
    sequence.reserve(len(tokens))
    logits = engine.runner.run([Extension(sequence, len(tokens))])
    assert logits is not None
    sequence.release()
    spread = float(logits.max() - logits.min())
    scores = logits[0, list(both)].double().numpy()
    if params.temperature:
        noise = gumbel_noise(engine.config.seed, index, np.array(both))
        scores = scores + params.temperature * noise
    return float(abs(scores[0] - scores[1])) / spread


def llama_cpp(setting: Setting) -> list[Bar]:
    """ms per token beside llama.cpp q8_0 on a 28M-class model."""
    print("  not measured: expected llama-cpp-python and gguf installed, with a GGUF writer")
    return [Bar("ms/token over llama.cpp q8_0, 28M, one thread", None, 2.3, "x")]


def exactness(setting: Setting) -> list[Bar]:
    """The float64 oracle tests at length: every model family, drafting, the lives of branches."""
    tests = {
        "test_model.py": ("logits of every family against transformers: failures", 1),
        "test_speculative.py": ("1,000 drafted replies, drafters x k x sampling: failures", 1000),
        "test_branch_fuzz.py": ("10,000 random operations on branches: failures", 500),
    }
    bars = []
    for name, (title, n_examples) in tests.items():
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", f"tests/engine/{name}", "--timeout", "0"],
            env={**os.environ, "VOICELOOP_FUZZ_EXAMPLES": str(n_examples)},
            capture_output=True,
            text=True,
            check=False,
        )
        last = (run.stdout.strip().splitlines() or ["no output"])[-1]
        print(f"  {name}: {last}", flush=True)
        bars.append(Bar(title, float(run.returncode != 0), 0, ""))
    return bars


PARTS: dict[str, Callable[[Setting], list[Bar]]] = {
    "token_time": token_time,
    "after_commit": after_commit,
    "batch": batch,
    "sharing": sharing,
    "under_speculation": under_speculation,
    "drafting": drafting,
    "served_exactness": served_exactness,
    "exactness": exactness,
    "llama_cpp": llama_cpp,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="engine_bench", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar is missed")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this part")
    parser.add_argument("--model", type=Path, help="a model folder instead of the embedded one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as folder:
        model_dir = options.model or embedded_model()
        trained = model_dir is not None
        if model_dir is None:
            print("the embedded model is not trained yet: random weights of its shape instead")
            model_dir = write_random_model(Path(folder), SHAPES["12m"])
        setting = Setting(model_dir, trained, options.threads, options.repeats, options.seed)
        try:
            for name in options.part or PARTS:
                print(f"{name}:", flush=True)
                bars += PARTS[name](setting)
        except EngineError as error:
            print(error, file=sys.stderr)
            return 2
    data = results(
        "engine_bench",
        options.seed,
        {"threads": options.threads, "repeats": options.repeats, "trained": trained},
        bars,
    )
    path = write_results(data)
    print(json.dumps(data, indent=1) if options.json else f"{bar_table(bars)}\nresults: {path}")
    return 0 if all(bar.holds for bar in bars) or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
