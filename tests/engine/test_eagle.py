"""A head on the target's own states drafts: the same replies, guesses that stand, nothing stale."""

import json
import os
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.branch import Branch
from engine.engine import Engine
from engine.load.description import describe
from engine.sequence import Sequence
from engine.types import (
    CheckpointError,
    ConfigError,
    Done,
    EngineConfig,
    MissingTensor,
    SamplingParams,
    UnsupportedArchitecture,
    WrongShape,
)
from tests.engine.conftest import SIZES, write_tokenizer
from tests.engine.eagle_heads import (
    config_of,
    counting_head,
    counting_model,
    random_head_of,
    write_head,
)
from tests.tables import each_row

pytest.importorskip("triton", reason="the GPU path needs triton")

N_CASES = int(os.environ.get("VOICELOOP_FUZZ_EXAMPLES", "4"))
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8, "seed": 4},
    {"temperature": 1.3, "top_k": 30, "top_p": 0.9, "seed": -3},
    {"temperature": 0.6, "frequency_penalty": 0.4, "presence_penalty": 0.3},
    {"temperature": 0.9, "logprobs": 2},
    {"stop": ("e",)},
)
SETTINGS: dict[str, Any] = {
    "dtype": "fp32", "kv_tokens": 1024, "poison": True, "max_branches": 5, "step_tokens": 48,
    "background_tokens": 24, "share_steps": True, "device": "reference",
}  # fmt: skip


def load(model: Path, head: Path | None, **changes: Any) -> Engine:
    settings = {**SETTINGS, "eagle_dir": head, **changes}
    engine = Engine.load(model, EngineConfig(**settings))
    engine.notation = None
    return engine


def draft(engine: Engine, n_guesses: int) -> None:
    """So many tokens, whatever it costs."""
    runner: Any = engine.runner
    runner.length.choose = lambda *_: n_guesses


def drain(engine: Engine) -> dict[str, Done]:
    done = {}
    while engine.has_work():
        done |= {event.branch_id: event for event in engine.step() if isinstance(event, Done)}
    return done


@pytest.fixture(scope="module")
def head(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the tiny model, its weights random: it errs nearly always."""
    return random_head_of(tiny_model, tmp_path_factory.mktemp("head"))


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that counts on from the last token, and a head that knows all its tokens."""
    folder = tmp_path_factory.mktemp("counting")
    n_vocab = write_tokenizer(folder)
    config = {**SIZES, "vocab_size": n_vocab, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = counting_model(n_vocab, config)
    save_file(tensors, folder / "model.safetensors")
    own = config_of(n_vocab, draft_vocab_size=n_vocab, norm_before_residual=True)
    return folder, write_head(folder / "head", own, counting_head(tensors, own))


Asked = list[tuple[list[int], SamplingParams]]


def converse(engine: Engine, asked: Asked, chance: random.Random) -> list[tuple[list[int], bool]]:
    """Replies beside each other, words staged and revised beside them, one taken back midway.

    Of each its tokens, and whether they are all.
    """
    speaker = engine.branch("speaker", [40, 41, 42])
    said = [chance.randrange(3, 60) for _ in range(30)]
    branches: list[Branch] = []
    n_steps, cancelled_at = 0, chance.randrange(2, 9)
    done: dict[str, Done] = {}
    while len(done) < len(asked):
        if len(branches) < len(asked):
            prompt, params = asked[len(branches)]
            branches.append(engine.branch(f"b{len(branches)}"))
            branches[-1].stage(prompt[: 1 + len(prompt) // 2])
            branches[-1].commit(prompt, params)
        if n_steps % 3 == 0:
            speaker.stage([*said[: 4 + n_steps % 20], 7 + n_steps % 2])
        if n_steps == cancelled_at and len(asked) > 1:
            branches[0].cancel()
        done |= {event.branch_id: event for event in engine.step() if isinstance(event, Done)}
        n_steps += 1
    drain(engine)
    found = []
    for branch, (prompt, _) in zip(branches, asked, strict=True):
        is_whole = done[branch.branch_id].finish_reason != "cancelled"
        found.append((branch.sequence.tokens[len(prompt) :], is_whole))
    for branch in [*branches, speaker]:
        branch.close()
    return found


@pytest.mark.timeout(300 if N_CASES < 100 else 0)
@pytest.mark.parametrize("drafter", ["head", "n-grams"])
def test_replies_are_those_without_a_drafter(
    tiny_model: Path, head: Path, counting: tuple[Path, Path], drafter: str
) -> None:
    """Few cases by default; VOICELOOP_FUZZ_EXAMPLES gives the number of a long run.

    n-grams stand where a model that counts on is given the beginning of what it was given before.
    """
    has_head = drafter == "head"
    model = tiny_model if has_head else counting[0]
    plain = load(model, None)
    drafted = load(model, head if has_head else None, ngram_draft=not has_head)
    chance = random.Random(11)
    schema = json.dumps({"type": "string", "maxLength": 6})
    for case in range(N_CASES):
        asked = []
        for i in range(1 + case % 4):
            words = [chance.randrange(3, 60) for _ in range(chance.randrange(1, 25))]
            kind = {**SAMPLINGS[(case + i) % len(SAMPLINGS)], "ignore_eos": case % 3 > 0}
            if (case + i) % 7 == 6 and _has_grammars():
                kind = {"json_schema": schema, "temperature": 0.7}
            params = SamplingParams(max_tokens=chance.randrange(2, 18), **kind)
            prompt = words * chance.randrange(1, 3)
            if not has_head:
                first = chance.randrange(60, 120)
                words = list(range(first, first + len(prompt)))
                prompt = words + words[: len(words) // 2]
            asked.append((prompt, params))
        seed = chance.randrange(1000)
        expected = converse(plain, asked, random.Random(seed))
        draft(drafted, 5 * case % 9)
        found = converse(drafted, asked, random.Random(seed))
        for (tokens, is_whole), (others, are_whole) in zip(found, expected, strict=True):
            # How far a reply had come when it was taken back is a matter of speed.
            n = min(len(tokens) if not is_whole else 99, len(others) if not are_whole else 99)
            assert tokens[:n] == others[:n], f"case {case}"
    for engine in (plain, drafted):
        engine.check_integrity()
    assert drafted.metrics()["drafted_tokens"] > 0


def _has_grammars() -> bool:
    try:
        import llguidance  # noqa: F401
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("temperature", [0.0, 3.0], ids=["greedy", "seeded"])
def test_guesses_of_a_head_that_knows_stand(
    counting: tuple[Path, Path], temperature: float
) -> None:
    """With noise too: it draws with the reply's own, of the target's tokens."""
    params = SamplingParams(40, ignore_eos=True, temperature=temperature, seed=5)
    said = []
    for folder in (None, counting[1]):
        engine = load(counting[0], folder)
        if folder is not None:
            draft(engine, 4)
        branches = [engine.branch(f"b{i}") for i in range(3)]
        for i, branch in enumerate(branches):
            branch.commit([110 + 40 * i + n for n in range(3 + 8 * i)], params)
        done = drain(engine)
        said.append([branch.sequence.tokens for branch in branches])
    assert said[0] == said[1]
    pairs = [pair for tokens in said[0] for pair in pairwise(tokens[-40:])]
    n_counted = sum(b == a + 1 for a, b in pairs)
    assert n_counted == 117 if temperature == 0 else n_counted < 100
    for one in done.values():
        assert one.usage.guessed_tokens >= 30
        assert one.usage.confirmed_tokens >= 0.9 * one.usage.guessed_tokens
    assert engine.metrics()["steps"] < 16, "expected 120 tokens of three replies in steps of five"


def test_a_head_keeps_its_part_in_int8(counting: tuple[Path, Path]) -> None:
    engine = load(*counting, dtype="bf16", kv_format="int8", quant="int8")
    draft(engine, 4)
    engine.branch("b").commit([120, 121], SamplingParams(30, ignore_eos=True))
    usage = drain(engine)["b"].usage
    assert usage.confirmed_tokens >= 0.9 * usage.guessed_tokens > 0


def head_entries(engine: Engine, sequence: Sequence) -> torch.Tensor:
    """What the pool holds of the head, of all resident tokens but the first, whom nobody sees."""
    decoder: Any = engine.runner.decoder
    at = range(1, sequence.n_resident)
    slots = torch.tensor([sequence.table[p // 16] * 16 + p % 16 for p in at])
    layers = range(decoder.eagle.index, decoder.eagle.index + decoder.eagle.n_pool_layers)
    return torch.cat([engine.pool.vectors(layer, slots).flatten(1) for layer in layers], 1)


def test_what_a_head_keeps_depends_on_the_tokens_alone(tiny_model: Path, head: Path) -> None:
    """Staged in pieces, revised, shared, forked, drafted and rolled back, or read at once."""
    engine = load(tiny_model, head)
    draft(engine, 3)
    history = [5 + i % 40 for i in range(37)]
    first = engine.branch("first")
    first.commit(history, SamplingParams(5, ignore_eos=True))
    drain(engine)
    first.close()
    branch = engine.branch("b", history)
    for words in ([7, 8, 9], [7, 8, 9, 10, 11], [7, 8, 12]):
        branch.stage(words)
        drain(engine)
    params = SamplingParams(21, ignore_eos=True, temperature=0.8, seed=1)
    attempt = branch.begin_preemptive([13], params)
    drain(engine)
    branch.commit([7, 8, 14, 13], params, attempt)
    while branch.reply is not None:
        engine.step()
    assert branch.sequence.n_resident >= 60
    cold = load(tiny_model, head, prefix_cache=False)
    other = cold.branch("c")
    other.stage(branch.sequence.tokens[: branch.sequence.n_resident])
    drain(cold)
    found, expected = head_entries(engine, branch.sequence), head_entries(cold, other.sequence)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_no_guess_is_made_in_a_step_that_verifies_none(tiny_model: Path, head: Path) -> None:
    engine = load(tiny_model, head)
    runner: Any = engine.runner
    n_guesses = [0]

    def counted(guess: Callable[[], None]) -> Callable[[], None]:
        def one() -> None:
            n_guesses[0] += 1
            guess()

        return one

    runner._chains = {n: (begin, counted(guess)) for n, (begin, guess) in runner._chains.items()}
    for k, expected in ((0, False), (2, True)):
        draft(engine, k)
        branch = engine.branch("b")
        branch.commit([5, 6, 7], SamplingParams(12, ignore_eos=True))
        drain(engine)
        branch.close()
        assert (n_guesses[0] > 0) is expected


@pytest.mark.parametrize("n_most", [1, 2, 7])
def test_a_chain_that_is_captured_makes_guesses_for_nobody(
    tiny_model: Path, head: Path, n_most: int
) -> None:
    """A capture runs it three times, however few guesses there is room for."""
    runner: Any = load(tiny_model, head, max_draft_tokens=n_most).runner
    for _ in range(3):
        for begin, guess in runner._chains.values():
            with torch.inference_mode():
                begin()
                for _ in range(3):
                    guess()
    assert not runner._shared.places.n_guesses.any()


def test_a_head_is_read_where_tokens_are_drafted_alone(tiny_model: Path, head: Path) -> None:
    plain = load(tiny_model, None)
    off = load(tiny_model, head, max_draft_tokens=0)
    on = load(tiny_model, head)
    assert off.pool.block_bytes == plain.pool.block_bytes < on.pool.block_bytes


def test_its_memory_and_its_price_are_told(tiny_model: Path, head: Path) -> None:
    told = describe(load(tiny_model, head, dtype="bf16"))
    assert "drafts by grammars and an EAGLE-3 head of 0.0 MB" in told


def rewritten(head: Path, folder: Path, tensors: dict[str, Any], **changes: Any) -> Path:
    """The head with some tensors changed (None: left out) and some of its configuration."""
    config = {**json.loads((head / "config.json").read_text()), **changes}
    found = {**load_file(head / "model.safetensors"), **tensors}
    return write_head(folder, config, {k: v for k, v in found.items() if v is not None})


@each_row(
    ("tensors", "changes", "error", "sentence"),
    [
        ({}, {"hidden_size": 64}, CheckpointError, "hidden_size 32, to fit the target, found 64"),
        ({}, {"target_hidden_size": 48}, CheckpointError, "hidden_size 32, .* found 48"),
        ({}, {"vocab_size": 999}, CheckpointError, "vocabulary .* found 999"),
        ({}, {"num_hidden_layers": 2}, CheckpointError, "layers 1, .* found 2"),
        ({}, {"num_key_value_heads": 4}, CheckpointError, "key-value heads 2, .* found 4"),
        ({}, {"architectures": ["T5"]}, UnsupportedArchitecture, "expected an EAGLE-3 .* found T5"),
        ({}, {"norm_before_fc": True}, UnsupportedArchitecture, "with norm_before_fc"),
        ({}, {"eagle_config": {}}, CheckpointError, r"3 places between 2 layers, found \[2, 1, -1"),
        (
            {},
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}},
            CheckpointError,
            r"found \[1, 2, 3\]",
        ),
        (
            {},
            {"eagle_config": {}, "eagle_aux_hidden_state_layer_ids": 5},
            CheckpointError,
            "found 5",
        ),
        ({}, {"eagle_config": [1]}, CheckpointError, r"an object at 'eagle_config', found \[1\]"),
        (
            {},
            {"transformer_layer_config": "llama"},
            CheckpointError,
            "an object at .*found 'llama'",
        ),
        ({}, {"architectures": {"0": "T5"}}, UnsupportedArchitecture, "found {'0': 'T5'}"),
        ({"fc.weight": None}, {}, MissingTensor, "fc.weight, found none"),
        ({"fc.weight": torch.zeros(32, 64)}, {}, WrongShape, r"\[32, 96\], found \[32, 64\]"),
        ({"d2t": torch.full((200,), 300)}, {}, CheckpointError, "d2t to name 200 of the target's"),
        ({"fc_norm.weight": torch.ones(96)}, {}, UnsupportedArchitecture, "found fc_norm.weight"),
    ],
)
def test_a_head_that_does_not_fit_is_refused_by_what_is_wrong(
    tiny_model: Path, head: Path, tmp_path: Path, tensors: dict[str, Any],
    changes: dict[str, Any], error: type[Exception], sentence: str,
) -> None:  # fmt: skip
    with pytest.raises(error, match=sentence):
        load(tiny_model, rewritten(head, tmp_path / "head", tensors, **changes))


def test_other_drafters_beside_a_head_are_refused(head: Path) -> None:
    with pytest.raises(ConfigError, match="no other drafter beside it"):
        EngineConfig(device="reference", eagle_dir=head, ngram_draft=True)


def test_a_head_on_a_cpu_is_refused(head: Path) -> None:
    with pytest.raises(ConfigError, match="eagle_dir: expected a GPU beside it, found device cpu"):
        EngineConfig(eagle_dir=head)


def test_a_speculators_folder_says_the_same(tiny_model: Path, head: Path, tmp_path: Path) -> None:
    """Other names, the layer's sizes apart, and layers named by what goes into them."""
    config = json.loads((head / "config.json").read_text())
    own = {key: config.pop(key) for key in ("draft_vocab_size", "eagle_config")}
    named = [i + 1 for i in own["eagle_config"]["eagle_aux_hidden_state_layer_ids"]]
    speculator = {
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": own["draft_vocab_size"],
        "eagle_aux_hidden_state_layer_ids": named,
        "norm_before_residual": False,
        "transformer_layer_config": config,
    }
    tensors = {
        name.replace("midlayer.", "layers.0."): tensor
        for name, tensor in load_file(head / "model.safetensors").items()
    }
    tensors["embed_tokens.weight"] = load_file(tiny_model / "model.safetensors")[
        "model.embed_tokens.weight"
    ]
    other = write_head(tmp_path / "other", speculator, tensors)
    guesses = []
    for folder in (head, other):
        engine = load(tiny_model, folder)
        runner: Any = engine.runner
        head_read = runner.decoder.eagle
        assert head_read.embedding is runner.decoder.embedding, "expected one copy of it"
        seen: list[list[int]] = []
        runner._chains = {
            n: (begin, _recorded(guess, runner._shared.places, seen))
            for n, (begin, guess) in runner._chains.items()
        }
        draft(engine, 3)
        engine.branch("b").commit([5, 6, 7, 8], SamplingParams(9, ignore_eos=True))
        drain(engine)
        guesses.append(seen)
    assert guesses[0] == guesses[1] and guesses[0]


def _recorded(guess: Callable[[], None], places: Any, seen: list[list[int]]) -> Callable[[], None]:
    def recorded() -> None:
        guess()
        seen.append(places.guesses.flatten().tolist())

    return recorded
