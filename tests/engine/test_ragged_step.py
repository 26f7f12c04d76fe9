"""One pass for the rows of many sequences gives each what it would get alone, bit for bit."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the GPU path needs triton")

from engine.engine import Engine  # noqa: E402
from engine.runner import Draw, Extension, Outcome  # noqa: E402
from engine.sequence import Sequence  # noqa: E402
from engine.types import EngineConfig, SamplingParams, Staged  # noqa: E402

N_CASES = int(os.environ.get("VOICELOOP_FUZZ_EXAMPLES", "12"))
DRAWN = (
    SamplingParams(),
    SamplingParams(temperature=0.9, seed=4),
    SamplingParams(temperature=1.2, top_k=20, top_p=0.9),
    SamplingParams(temperature=0.7, presence_penalty=0.4, frequency_penalty=0.6),
    SamplingParams(temperature=0.5, frequency_penalty=0.3, logprobs=2),
)


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Engine:
    config = EngineConfig(
        dtype="fp32", device="reference", kv_tokens=8192, max_branches=40, step_tokens=200,
        share_steps=True, prefix_cache=False,
    )  # fmt: skip
    return Engine.load(tiny_model, config)


@pytest.fixture
def products_of_one_row(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row by row: torch's own product rounds a row otherwise where others stand beside it."""
    import engine.kernels.decoder as kernel_decoder

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.stack([torch.nn.functional.linear(row, weight, bias) for row in x])

    monkeypatch.setattr(kernel_decoder, "linear", linear)


def _mixture(engine: Engine, chance: random.Random) -> list[Callable[[], Extension]]:
    """Decoding, verifying, staged words, prompts, chunks of prompts: each made twice the same."""
    makers = []
    for number in range(chance.randrange(1, 30)):
        n_resident = chance.choice((0, 1, 15, 16, 33, 70))
        kind = chance.choice(("decode", "decode", "verify", "staged", "prompt", "chunk", "rows"))
        n_known = 1 if kind in ("decode", "verify") else chance.choice((1, 2, 5, 17, 40))
        tokens = [chance.randrange(3, 300) for _ in range(n_resident + n_known)]
        n_guesses = chance.choice((1, 3, 30)) if kind == "verify" else 0
        guesses = [chance.randrange(3, 300) for _ in range(n_guesses)]
        params, n_prompt = chance.choice(DRAWN), chance.randrange(1, n_resident + n_known + 1)

        def make(
            tokens: list[int] = tokens, n_resident: int = n_resident, n_known: int = n_known,
            kind: str = kind, guesses: list[int] = guesses, params: SamplingParams = params,
            number: int = number, n_prompt: int = n_prompt,
        ) -> Extension:  # fmt: skip
            sequence = Sequence(engine.pool, engine.tree)
            sequence.tokens = list(tokens)
            sequence.reserve(len(tokens) + len(guesses))
            if n_resident:
                engine.runner.run([Extension(sequence, n_resident, n_logits=0)])
                sequence.n_resident = n_resident
            if kind == "staged":
                return Extension(sequence, n_known, is_staged=True)
            if kind == "chunk":
                return Extension(sequence, n_known, n_logits=0)
            if kind == "rows":
                return Extension(sequence, n_known, n_logits=min(3, n_known))
            draw = Draw(params, params.seed or number, n_prompt)
            return Extension(sequence, n_known, guesses, 1 + len(guesses), draw, 5)

        makers.append(make)
    return makers


def _computed(engine: Engine, extension: Extension, outcome: Outcome) -> list[Any]:
    """What came of it: the outcome, and the keys and values behind the resident ones."""
    sequence, n = extension.sequence, extension.n_rows
    at = range(sequence.n_resident, sequence.n_resident + n)
    slots = torch.tensor([sequence.table[p // 16] * 16 + p % 16 for p in at])
    found = [layer[slots] for layer in engine.pool.slots]
    if outcome.logits is not None:
        found.append(outcome.logits)
    return [outcome.chosen, outcome.proposals, outcome.probability, *found]


def _rounds(runner: Any, extensions: list[Extension]) -> Iterator[tuple[Extension, Outcome]]:
    """What has no room in a step has it in a later one."""
    while extensions:
        outcomes = runner.step(extensions)
        yield from (
            (e, outcome) for e, outcome in zip(extensions, outcomes, strict=True) if outcome
        )
        extensions = [e for e, outcome in zip(extensions, outcomes, strict=True) if not outcome]


@pytest.mark.usefixtures("products_of_one_row")
def test_a_mixture_gives_each_sequence_what_it_gets_alone(engine: Engine) -> None:
    chance = random.Random(7)
    runner: Any = engine.runner
    for case in range(N_CASES):
        makers = _mixture(engine, chance)
        extensions = [make() for make in makers]
        together = {id(e): _computed(engine, e, o) for e, o in _rounds(runner, extensions)}
        for i, (make, extension) in enumerate(zip(makers, extensions, strict=True)):
            alone = make()
            ((_, outcome),) = _rounds(runner, [alone])
            expected = _computed(engine, alone, outcome)
            found = together[id(extension)]
            assert len(found) == len(expected)
            for a, b in zip(found, expected, strict=True):
                is_same = a.equal(b) if isinstance(a, torch.Tensor) else a == b
                assert is_same, f"case {case}, sequence {i}"
            for one in (alone, extension):
                one.sequence.release()
    engine.check_integrity()


def test_whatever_stands_beside_replies_their_steps_are_one_pass_launched_ahead(
    engine: Engine,
) -> None:
    runner: Any = engine.runner
    replies = [engine.branch(f"reply{i}") for i in range(16)]
    for i, branch in enumerate(replies):
        params = SamplingParams(40, ignore_eos=True, presence_penalty=0.2 * (i % 3))
        branch.commit([5 + i] * (3 + i), params)
    speakers = [engine.branch(f"speaker{i}") for i in range(4)]
    n_launches, n_ahead = runner.n_launches, runner.n_ahead_used
    said = n_told = 0
    while any(branch.reply is not None for branch in replies):
        for i, speaker in enumerate(speakers):
            if said % (2 + i) == 0:
                speaker.stage([7 + i, *range(20, 23 + said)])
        said += 1
        n_told += sum(isinstance(event, Staged) for event in engine.step())
    n_steps = engine.metrics()["steps"]
    assert runner.n_launches - n_launches <= n_steps + 1
    assert runner.n_ahead_used - n_ahead >= 0.95 * n_steps
    assert n_told > 30, "expected words that were staged beside replies to be told of"
    for branch in [*replies, *speakers]:
        branch.close()
