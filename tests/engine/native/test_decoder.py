"""Whole layers of the library: the same bits for any number of rows, and close to exact ones."""

import random
from typing import Any

import pytest
import torch

import engine.model
from engine.load.loader import ModelConfig, RopeConfig
from engine.model import Abandoned, Interrupted
from engine.native.build import levels
from engine.runner import Extension
from engine.types import IntegrityError
from tests.engine.native.conftest import VOCAB, Bench, Libraries, MakeBench, model_config

# Layers of models as they are, and what none of them has together.
SHAPES: dict[str, dict[str, Any]] = {
    "embedded-13m": {
        "hidden_size": 384, "intermediate_size": 896, "n_heads": 6, "head_dim": 64,
    },
    "smollm2-135m": {
        "hidden_size": 576, "intermediate_size": 1536, "n_heads": 9, "n_kv_heads": 3,
        "head_dim": 64,
    },
    "qwen3-0.6b": {
        "hidden_size": 1024, "intermediate_size": 3072, "n_heads": 16, "n_kv_heads": 8,
        "head_dim": 128, "qk_norm": True, "n_layers": 1,
    },
    "qwen2-biases": {"qkv_bias": True, "tied_head": False},
    "llama-biases": {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "windowed": {"windows": (5, 0)},
    "odd": {
        "hidden_size": 50, "intermediate_size": 37, "n_heads": 3, "n_kv_heads": 1, "head_dim": 10,
        "vocab_size": 131,
    },
    "one-head": {"n_heads": 1, "n_kv_heads": 1, "head_dim": 256},
    "gemma-3": {
        "qk_norm": True, "is_sandwiched": True, "norms_from_one": True, "windows": (5, 0),
        "activation": "gelu_pytorch_tanh", "embedding_scale": 8.0, "logit_cap": 20.0,
        "layer_ropes": (RopeConfig(500.0), RopeConfig(5000.0, "linear", 8.0)),
    },
    "phi-4-mini": {
        "is_fused": True, "rope": RopeConfig(500.0, rotated=12, scale=1.1, divisors=(1.5,) * 6),
    },
    "smollm3": {"layer_ropes": (RopeConfig(500.0), RopeConfig(kind="none"))},
    "granite": {"residual_scale": 0.7, "logit_scale": 0.125, "attention_scale": 0.125},
    "llama3-rope": {"rope": RopeConfig(500.0, "llama3", 8.0, original_context=32)},
}  # fmt: skip
TOKENS = [int(t) for t in torch.randint(131, (45,), generator=torch.Generator().manual_seed(3))]


def shape(name: str) -> ModelConfig:
    return model_config(**SHAPES[name])


def chunks_of(n: int, chance: random.Random, most: int = 8) -> list[int]:
    chunks = []
    while sum(chunks) < n:
        chunks.append(min(chance.randint(1, most), n - sum(chunks)))
    return chunks


# Not of "odd" in int4: no group of 32 divides 50 inputs, and such a weight stays dense.
@pytest.mark.parametrize(
    ("name", "quant"),
    [*((name, "int8") for name in SHAPES), ("embedded-13m", "int4"), ("windowed", "int4")],
)
def test_any_number_of_rows_gives_the_same_bits(
    make_bench: MakeBench, name: str, quant: str
) -> None:
    bench = make_bench(shape(name), quant=quant)
    whole = bench.logits(TOKENS, [len(TOKENS)])
    assert whole.isfinite().all()
    chance = random.Random(1)
    for chunks in ([1] * 45, [8] * 5 + [5], chunks_of(45, chance)):
        assert torch.equal(bench.logits(TOKENS, chunks), whole), f"in chunks {chunks}"


@pytest.mark.parametrize("level", [*levels(), "plain"])
@pytest.mark.parametrize(("name", "quant"), [("windowed", "int8"), ("windowed", "int4")])
def test_so_it_does_with_every_instruction_set(
    make_bench: MakeBench, libraries: Libraries, monkeypatch: pytest.MonkeyPatch,
    level: str, name: str, quant: str,
) -> None:  # fmt: skip
    if level not in libraries:
        pytest.skip(f"this CPU has no {level}")
    best = make_bench(shape(name), quant=quant).logits(TOKENS, [45])
    monkeypatch.setattr("engine.device.native_library", lambda: libraries[level])
    bench = make_bench(shape(name), quant=quant)
    assert bench.runner.layers == f"native ({level})"
    whole = bench.logits(TOKENS, [45])
    assert error_of(whole, best) < 1e-2
    for chunks in ([1] * 45, [2, 3, 4, 5, 6, 7, 8, 10]):
        assert torch.equal(bench.logits(TOKENS, chunks), whole), f"in chunks {chunks}"


@pytest.mark.parametrize("n_guesses", [1, 5])
def test_guesses_are_what_greedy_steps_one_by_one_say(
    make_bench: MakeBench, n_guesses: int
) -> None:
    bench = make_bench(shape("embedded-13m"))
    expected, logits = list(TOKENS), bench.logits(TOKENS, [45])[-1]
    for _ in range(n_guesses):
        expected.append(int(logits.argmax()))
        logits = bench.logits(expected, [len(expected)])[-1]
    sequence = bench.sequence(TOKENS)
    bench.extend((sequence, 42))  # three are pending
    assert bench.runner.guess(sequence, n_guesses) == expected[45:]
    assert sequence.tokens == expected and sequence.n_pending == 1
    assert torch.equal(bench.extend((sequence, 1))[0][0], logits)


@pytest.mark.parametrize(("name", "quant"), [("qwen3-0.6b", "int8"), ("embedded-13m", "int4")])
def test_threads_give_the_same_bits_as_one(make_bench: MakeBench, name: str, quant: str) -> None:
    alone = make_bench(shape(name), quant=quant).logits(TOKENS, [40, 1, 4])
    for threads in (2, 5):
        bench = make_bench(shape(name), quant=quant, threads=threads)
        for _ in range(3):
            assert torch.equal(bench.logits(TOKENS, [40, 1, 4]), alone)


def error_of(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).square().mean().sqrt() / exact.square().mean().sqrt())


@pytest.mark.parametrize("name", SHAPES)
def test_int8_strays_as_little_from_the_weights_as_they_are_as_torch_does(
    make_bench: MakeBench, name: str
) -> None:
    config = shape(name)
    exact = make_bench(config, quant=None, is_native=False, dtype="fp32").logits(TOKENS, [45])
    error = error_of(make_bench(config).logits(TOKENS, [45]), exact)
    torch_error = error_of(make_bench(config, is_native=False).logits(TOKENS, [45]), exact)
    # Rows are rounded more than in bf16, weights less: a scale for each group, not each output.
    assert error <= 1.2 * torch_error, f"{error:.4f} beside {torch_error:.4f}"


@pytest.mark.parametrize("name", ["llama3-rope", "odd"])
def test_quantized_kv_costs_what_it_costs_in_torch(make_bench: MakeBench, name: str) -> None:
    config = shape(name)
    exact = make_bench(config, quant=None, is_native=False, dtype="fp32").logits(TOKENS, [45])
    errors = [
        error_of(bench.logits(TOKENS, [20, 25]), exact)
        for bench in (
            make_bench(config, kv_format="int8"),
            make_bench(config, kv_format="int8", is_native=False),
        )
    ]
    assert errors[0] <= 1.2 * errors[1], f"{errors[0]:.4f} beside {errors[1]:.4f}"


def test_sequences_in_one_step_do_not_touch_each_other(make_bench: MakeBench) -> None:
    bench = make_bench(shape("qwen3-0.6b"))
    alone = bench.logits(TOKENS, [30, 1, 4])
    first, second = bench.sequence(TOKENS), bench.sequence(TOKENS[::-1])
    parts = []
    for n_first, n_second in ((30, 17), (1, 8), (4, 1)):
        parts.append(bench.extend((second, n_second), (first, n_first))[1])
    assert torch.equal(torch.cat(parts), alone)


def test_taking_back_and_going_on_elsewhere_gives_the_same_bits(make_bench: MakeBench) -> None:
    bench = make_bench(shape("embedded-13m"))
    whole = bench.logits(TOKENS, [len(TOKENS)])
    sequence = bench.sequence(TOKENS[:20] + [7] * 12)
    bench.extend((sequence, 32))
    sequence.truncate(20)  # leaves the KV of other tokens behind
    sequence.tokens += TOKENS[20:]
    found = bench.extend((sequence, 25))[0]
    assert torch.equal(found, whole[20:])


def test_what_is_not_the_sequences_own_is_never_read(make_bench: MakeBench) -> None:
    """Free blocks hold NaN, and so does here what lies behind the rows in the last block."""
    for name in ("embedded-13m", "windowed", "odd"):
        bench = make_bench(shape(name))
        whole = bench.logits(TOKENS, [len(TOKENS)])
        sequence = bench.sequence(TOKENS)
        bench.extend((sequence, 19))
        for layer in bench.runner.pool.blocks:
            layer[sequence.table[-1], 3:] = torch.nan
        assert torch.equal(bench.extend((sequence, 1))[0], whole[19:20])


def test_a_long_context_is_read_to_its_beginning(make_bench: MakeBench) -> None:
    """The first token decides what a row 200 tokens later says; with a window it does not."""
    for windows, differs in (((0, 0), True), ((40, 40), False)):
        bench = make_bench(model_config(windows=windows))
        tokens = (TOKENS * 5)[:200]
        other = [(tokens[0] + 1) % VOCAB, *tokens[1:]]
        last = [bench.logits(words, [150, 50])[-1] for words in (tokens, other)]
        assert torch.equal(*last) != differs


@pytest.mark.parametrize("quant", ["int8", "int4"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_the_likeliest_logits_are_those_of_the_embedding(
    make_bench: MakeBench, is_tied: bool, quant: str
) -> None:
    bench = make_bench(model_config(tied_head=is_tied), quant=quant)
    states = 20 * torch.randn(7, 64, generator=torch.Generator().manual_seed(3))
    decoder = bench.runner.decoder
    truth = states @ decoder.embedding.float().T
    found = bench.runner.logits(states)
    unrefined = decoder.head(states).float()
    assert decoder.head.kept == ("int4" if is_tied and quant == "int4" else "int8")
    likely = unrefined.topk(decoder.n_refined or 8).indices
    error = (found - truth).abs().gather(1, likely).max()
    assert (error < 1e-4) == is_tied
    rest = torch.ones_like(found).scatter_(1, likely, 0).bool()
    assert torch.allclose(found[rest], unrefined[rest], rtol=0.01)


def interrupt_after(n_questions: int) -> Interrupted:
    asked = 0

    def interrupted() -> bool:
        nonlocal asked
        asked += 1
        return asked > n_questions

    return interrupted


def test_more_refined_logits_than_the_library_has_room_for_are_refused(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.model, "N_REFINED_INT4", 65)
    with pytest.raises(IntegrityError, match="expected at most 64 refined logits, found 65"):
        make_bench(model_config(tied_head=True), quant="int4")


def test_a_step_can_be_given_up_before_every_layer(make_bench: MakeBench) -> None:
    bench = make_bench(shape("embedded-13m"))
    whole = bench.logits(TOKENS, [len(TOKENS)])
    sequence = bench.sequence(TOKENS)
    sequence.reserve(45)
    extension = Extension(sequence, 45, n_logits=45)
    for n_questions in range(3):
        with pytest.raises(Abandoned):
            bench.runner.step([extension], interrupt_after(n_questions))
    outcome = bench.runner.step([extension], interrupt_after(99))[0]
    assert outcome.logits is not None and torch.equal(outcome.logits, whole)


def test_a_step_beyond_model_or_pool_is_refused(make_bench: MakeBench) -> None:
    def step(bench: Bench, change: str) -> None:
        sequence = bench.sequence(TOKENS)
        sequence.reserve(45)
        match change:
            case "token":
                sequence.tokens[3] = VOCAB
            case "a token below 0":
                sequence.tokens[3] = -1
            case "block":
                sequence.table[1] = 24
            case "sequence or block table":
                del sequence.table[-1]
            case "position":
                sequence.tokens = TOKENS * 7
                sequence.n_resident, sequence.table = 280, [0] * 30
        bench.runner.run([Extension(sequence, 1 if change == "position" else 45)])

    for change in ("token", "a token below 0", "block", "sequence or block table", "position"):
        found = change.removeprefix("a ").removesuffix(" below 0")
        with pytest.raises(IntegrityError, match=f"found another {found}"):
            step(make_bench(model_config(context_length=200)), change)
