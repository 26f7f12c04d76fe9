"""The engine's exactness: oracles and fuzz in float64, and quantization's price."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.engine.formats import measure, row
from benchmarks.engine.setting import Setting
from benchmarks.harness.harness import Bar
from engine.engine import Engine
from engine.quality import BOUND, FP32, Format, Passage, Quality
from engine.recipes.passages import passage

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


def fuzz(name: str, setting: Setting) -> list[Bar]:
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
