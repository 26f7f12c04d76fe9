"""The engine's exactness: oracles and fuzz in float64, the served dtypes, quantization's price."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.engine.models import embedded_model
from benchmarks.engine.setting import N_REPLY, Setting, drain
from benchmarks.harness.harness import Bar
from engine.engine import Engine
from engine.quality import BOUND, FP32, Format, Passage, Quality, measure, row
from engine.recipes.passages import passage
from engine.runner import Extension
from engine.sampler import gumbel_noise
from engine.sequence import borrowed
from engine.types import SamplingParams

# Of a reply, the places before a divergence at which the kernels' own error is measured, and the
# rows at a time: one as in decoding, some as in verifying, all as in a prompt.
ERROR_PLACES = 32
ERROR_ROWS = (1, 5, ERROR_PLACES)
REPLIES_PART = 5.0  # per cent, by near ties: 3 were found, 11 where bf16 ties likely tokens
# Held-out conversations of the quality gate: agreement is then known to 0.05 % (one standard error,
# places taken as independent).
N_CALLS = 240

# Test file, what the bar says, and VOICELOOP_FUZZ_EXAMPLES of the long run.
FUZZED = {
    "families": ("test_model.py", "logits of every family against transformers: failures", 1),
    "speculation": ("test_speculative.py", "drafted replies, 2 x 1,000 cases: failures", 1000),
    "branches": ("test_branch_fuzz.py", "10,000 operations against a dense oracle: failures", 500),
    "graphs": ("test_graph_runner.py", "steps as graphs against the CPU path: failures", 60),
    "revisions": ("test_revisions.py", "10,000 revised transcripts against cold: failures", 10000),
}


def fuzz(setting: Setting, name: str) -> list[Bar]:
    """One of the oracle tests at length."""
    file, title, n_examples = FUZZED[name]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", f"tests/engine/{file}", "--timeout", "0"],
        env={
            **os.environ,
            "VOICELOOP_FUZZ_EXAMPLES": str(n_examples),
            "OMP_NUM_THREADS": "1",
            "TRITON_INTERPRET": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    last = (run.stdout.strip().splitlines() or ["no output"])[-1]
    setting.tell(f"{file}: {last}")
    return [Bar(title, float(run.returncode != 0), 0, "")]


def families(setting: Setting) -> list[Bar]:
    """Every model family against transformers in fp32, relative error at most 1e-4."""
    return fuzz(setting, "families")


def speculation(setting: Setting) -> list[Bar]:
    """Drafting on against off in float64: drafters x k x sampling, and x batch x cancel."""
    return fuzz(setting, "speculation")


def branches(setting: Setting) -> list[Bar]:
    """Random lives of branches against a dense-cache oracle, freed blocks poisoned."""
    return fuzz(setting, "branches")


def revisions(setting: Setting) -> list[Bar]:
    """Staged, revised and committed transcripts against cold prompts, float64."""
    return fuzz(setting, "revisions")


def graphs(setting: Setting) -> list[Bar]:
    """The GPU path's logic with torch references for kernels, against the CPU path."""
    return fuzz(setting, "graphs")


def served(setting: Setting) -> list[Bar]:
    """Speculation on against off in the served dtypes: where they part, was it a near tie?

    A tie is a gap, on the same weights in fp32, below what the kernels' own error does to such a
    margin there: the kernel for one row, and those for more; see `margin_error`. Guesses come
    from the conversation and a draft model; a random model drafts for itself.
    """
    n_replies, n_parted, widest = 0, 0, 0.0
    draft_dir = (embedded_model("draft") if setting.is_trained else None) or setting.model_dir
    drafters: dict[str, object] = {"ngram_draft": True, "draft_dir": draft_dir}
    for quant in (None, "int8"):
        exact = setting.engine(quant=quant, dtype="fp32")
        plain = setting.engine(quant=quant)
        drafted = setting.engine(quant=quant, **drafters)
        for _, length in drafted.speculation._drafters:
            length.choose = lambda *_: 4  # type: ignore[method-assign]
        for i in range(10 * setting.repeats):
            prompt = setting.question(plain, i)
            params = SamplingParams(
                max_tokens=N_REPLY,
                ignore_eos=not setting.is_trained,
                temperature=0.7 * (i % 2),
                seed=i,
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
                tokens = prompt + said[0][:same]
                widest = max(widest, _gap_over_error(exact, plain, tokens, both, params, same))
        totals = drafted.metrics()
        n_drafted, n_accepted = totals["drafted_tokens"], totals["accepted_tokens"]
        setting.tell(f"{quant or 'bf16'}: {n_accepted:.0f} of {n_drafted:.0f} drafted accepted")
    setting.tell(f"{n_parted} of {n_replies} replies part")
    share = 100 * n_parted / n_replies
    return [
        Bar("served dtypes: replies that part", share, REPLIES_PART, "%", n=n_replies),
        Bar("served dtypes: widest gap where replies part, in kernel errors", widest, 1.0, "x"),
    ]


def margin_error(truth: torch.Tensor, served: torch.Tensor, both: tuple[int, int]) -> float:
    """How far logits `served` move a margin of `truth`, at most; both [places, vocab].

    Asked of the two likeliest tokens of every place, and of `both` at the last.
    """
    pairs = torch.cat((truth.topk(2).indices, torch.tensor([both])))
    wrong = served - truth
    moved = torch.cat((wrong, wrong[-1:])).gather(1, pairs)
    return float((moved[:, 0] - moved[:, 1]).abs().max())


def _gap_over_error(
    exact: Engine,
    served: Engine,
    tokens: list[int],
    both: tuple[int, int],
    params: SamplingParams,
    index: int,
) -> float:
    """How far apart two tokens' scores are after `tokens`, over the kernels' error in that."""
    truth = _last_logits(exact, tokens, ERROR_PLACES)
    error = max(
        margin_error(truth, _last_logits(served, tokens, n_rows), both) for n_rows in ERROR_ROWS
    )
    scores = truth[-1, list(both)].double().numpy()
    if params.temperature:
        assert params.seed is not None
        noise = gumbel_noise(params.seed, index, np.array(both))
        scores = scores + params.temperature * noise
    return float(abs(scores[0] - scores[1])) / error


def _last_logits(engine: Engine, tokens: list[int], n_rows: int) -> torch.Tensor:
    """The logits of the last places of `tokens`, without any cache, so many rows at a time."""
    n_before = max(0, len(tokens) - ERROR_PLACES)
    logits = []
    with borrowed(engine.pool, engine.tree, tokens) as sequence:
        while sequence.n_pending:
            n = min(n_rows, sequence.n_pending) if sequence.n_resident else n_before or n_rows
            logits.append(engine.runner.run([Extension(sequence, n, n_logits=n)]))
            sequence.n_resident += n
    return torch.cat(logits)[n_before:]


# int8 is served; the others for the record.
FORMATS = (FP32, Format("int8"), Format("int8", "int8"), Format("int4"))


def quality(setting: Setting) -> list[Bar]:
    """What int8 weights cost on held-out calls, where the agent speaks; the others for the record.

    The text is made by the embedded agent's own generator; it needs the shared dialogues.
    """

    def bars(found: Quality | None = None) -> list[Bar]:
        kl = found.kl_nats if found else None
        agreement = 100 * found.top1_agreement if found else None
        return [
            Bar("int8: KL from bf16", kl, BOUND.kl_nats, "nats"),
            Bar(
                "int8: likeliest token as bf16's", agreement, 100 * BOUND.top1_agreement, "%", True
            ),
        ]

    if not setting.is_trained:
        setting.tell("not measured: random weights cannot tell")
        return bars()
    from engine.recipes.conversations.calls import generate_call
    from engine.recipes.conversations.dialogues import data_directory
    from engine.recipes.model.chat_format import render_chat
    from engine.recipes.training.corpus import Corpus

    try:
        folder = data_directory(None)
        trained, test = Corpus(folder), Corpus(folder, "test")
    except FileNotFoundError as error:
        setting.tell(f"not measured: {error}")
        return bars()

    def passages(engine: Engine) -> Iterator[Passage]:
        for i in range(N_CALLS):
            name = f"quality/{setting.seed}/{i}"
            call = generate_call(name, trained.noise, test.chatter, held_out=True)
            written = render_chat(call.messages, call.tools)
            yield passage(engine.text, engine.text.encode(written))

    def load(one: Format) -> Engine:
        return setting.engine(quant=one.weights, kv_format=one.kv, dtype=one.dtype)

    found: dict[Format, Quality] = {}
    for one, runs, its in measure(load, FORMATS, passages):
        found[one] = its
        setting.tell(row(one.name, its))
        setting.tell(f"  {runs}")
    return bars(found[Format("int8")])
