"""Adapters beside each other on one base: each says what it says merged, in any company."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import engine.adapters
from engine.engine import Engine
from engine.prefix_tree import PUBLIC
from engine.runner import Extension
from engine.sequence import Sequence
from engine.types import (
    CheckpointError,
    ConfigError,
    Done,
    EngineConfig,
    InvalidRequest,
    OutOfMemory,
    SamplingParams,
)
from tests.engine.families import reference
from tests.stepping import drain

WORDS = [5, 40, 77, 9, 30, 61, 12, 8, 90, 33, 21, 7, 18, 55, 60, 4, 71, 3]
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj",
       "gate_up_proj")  # fmt: skip
WriteAdapter = Callable[..., Path]


@pytest.fixture
def write_adapter(tmp_path: Path) -> WriteAdapter:
    """A folder as PEFT saves one, for a model's folder."""

    def write(model: Path, name: str, rank: int = 4, targets: tuple[str, ...] = ALL) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"}
        (folder / "adapter_config.json").write_text(json.dumps(settings))
        generator = torch.Generator().manual_seed(sum(map(ord, name)))
        tensors = {}
        weights = {k: v for path in model.glob("*.safetensors") for k, v in load_file(path).items()}
        for stored, weight in weights.items():
            if stored.split(".")[-2] in targets and weight.dim() == 2:
                base = f"base_model.model.{stored.removesuffix('.weight')}"
                for part, shape in (("A", (rank, weight.shape[1])), ("B", (len(weight), rank))):
                    drawn = torch.randn(shape, generator=generator) * 0.5 / shape[1] ** 0.5
                    tensors[f"{base}.lora_{part}.weight"] = drawn
        save_file(tensors, folder / "adapter_model.safetensors")
        return folder

    return write


def load(model: Path, *folders: Path, **changes: Any) -> Engine:
    config = {"dtype": "fp32", "kv_tokens": 2048, "poison": True, **changes}
    return Engine.load(model, EngineConfig(adapters=folders, **config))


def logits(engine: Engine, adapter: Path | None, chunks: tuple[int, ...] = (18,)) -> torch.Tensor:
    """Of all words, taken in by chunks."""
    taken = None if adapter is None else engine.adapters.take(str(adapter))  # type: ignore[union-attr]
    sequence = Sequence(engine.pool, engine.tree, adapter=taken)
    sequence.tokens, found = list(WORDS), []
    for n in chunks:
        sequence.reserve(n)
        found.append(engine.runner.run([Extension(sequence, n, n_logits=n)]).clone())  # type: ignore[union-attr]
        sequence.n_resident += n
    sequence.release()
    return torch.cat(found)


def replies(engine: Engine, adapters: list[str], n_tokens: int = 12) -> list[list[int]]:
    """To the same words, all at once: each of an adapter, or of none."""
    params = SamplingParams(max_tokens=n_tokens, ignore_eos=True)
    branches = [engine.branch(f"b{i}", adapter=one) for i, one in enumerate(adapters)]
    for branch in branches:
        branch.commit(WORDS, params)
    n_done = 0
    while engine.has_work():
        n_done += sum(isinstance(event, Done) for event in engine.step())
    assert n_done == len(adapters)
    said = [branch.sequence.tokens[len(WORDS) :][:n_tokens] for branch in branches]
    for branch in branches:
        branch.close()
    return said


DEVICES = {
    "torch": {"native": False},
    "reference": {"device": "reference"},
    "torch on the device": {"device": "reference", "kernels": False},
}


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_several_in_one_step_say_what_each_says_merged(
    tiny_model: Path, write_adapter: WriteAdapter, device: str
) -> None:
    if device == "reference":
        pytest.importorskip("triton", reason="the GPU path needs triton")
    changes = DEVICES[device]
    one = write_adapter(tiny_model, "one")
    two = write_adapter(tiny_model, "two", rank=2, targets=("q_proj", "v_proj"))
    engine = load(tiny_model, one, two, **changes)
    alone = [replies(load(tiny_model, **changes), [""])[0]]
    for folder in (one, two):
        merged = load(tiny_model, adapter_dir=folder, **changes)
        alone += replies(merged, [""])
    assert len(set(map(tuple, alone))) == 3
    names = ["", str(one), str(two)]
    assert replies(engine, names) == alone
    assert replies(engine, [names[2], names[0], names[1], names[2]]) == [
        alone[2], alone[0], alone[1], alone[2]
    ]  # fmt: skip
    assert [replies(engine, [name])[0] for name in names] == alone


@pytest.mark.parametrize("family", ["qwen2", "phi-4-mini", "granite", "gemma-3"])
def test_of_every_kind_of_layer_the_change_is_that_of_the_merged_weights(
    tmp_path: Path, write_adapter: WriteAdapter, tiny_model: Path, family: str
) -> None:
    """Fused, turned and scaled outputs; norms behind the products."""
    folder = tmp_path / family
    folder.mkdir()
    reference(family, folder, [1, 2, 3], vocab_size=400, eos_token_id=2)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tiny_model / name).read_bytes())
    adapter = write_adapter(folder, "adapter")
    found = logits(load(folder, adapter), adapter)
    merged = logits(load(folder, adapter_dir=adapter), None)
    plain = logits(load(folder), None)
    assert torch.allclose(found, merged, atol=1e-3 * float(merged.abs().max()))
    assert not torch.allclose(found, plain, atol=1e-2 * float(merged.abs().max()))


@pytest.mark.parametrize("quant", ["int8", "int4"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_librarys_rows_are_the_same_bits_in_any_company(
    tiny_model: Path, write_adapter: WriteAdapter, quant: str, threads: int
) -> None:
    one = write_adapter(tiny_model, "one")
    two = write_adapter(tiny_model, "two", rank=3, targets=("o_proj", "gate_proj"))
    engine = load(tiny_model, one, two, dtype="bf16", quant=quant, threads=threads)
    if not engine.runner.layers.startswith("native"):
        pytest.skip("there is no library here")
    exact = logits(load(tiny_model, adapter_dir=one), None)
    whole = logits(engine, one)
    plain_error = error_of(
        logits(engine, None), logits(load(tiny_model), None)
    )  # what rounding the base costs
    assert error_of(whole, exact) < 1.5 * plain_error
    for chunks in ((1,) * 18, (8, 1, 9), (2, 16)):
        assert torch.equal(logits(engine, one, chunks), whole), chunks
    names = ["", str(one), str(two), str(one)]
    alone = [replies(engine, [name])[0] for name in names]
    assert replies(engine, names) == alone
    assert len(set(map(tuple, alone))) == 3


def error_of(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def cached(engine: Engine, adapter: str, salt: str = "") -> int:
    """Tokens of a prompt that were there already."""
    branch = engine.branch(f"{adapter}{salt}", salt=salt, adapter=adapter)
    branch.commit(WORDS, SamplingParams(max_tokens=1))
    done = None
    while engine.has_work():
        done = next((e for e in engine.step() if isinstance(e, Done)), done)
    branch.close()
    assert done is not None
    return done.usage.cached_tokens


def test_a_prompt_is_shared_under_its_adapter_alone(
    tiny_model: Path, write_adapter: WriteAdapter
) -> None:
    one, two = (str(write_adapter(tiny_model, name)) for name in ("one", "two"))
    engine = load(tiny_model, Path(one), Path(two))
    engine.tree.public = WORDS
    operators = engine.branch("operator", WORDS, salt=PUBLIC)
    drain(engine)
    operators.close()
    assert cached(engine, "") == 16
    for name in (one, two):
        assert cached(engine, name) == 0
        assert cached(engine, name) == 16
        assert cached(engine, name, salt="another") == 0
    engine.check_integrity()


def test_of_more_adapters_than_slots_the_longest_unused_makes_room(
    tiny_model: Path, write_adapter: WriteAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.adapters, "MOST_SLOTS", 2)
    folders = [write_adapter(tiny_model, name) for name in ("one", "two", "three")]
    names = list(map(str, folders))
    found = load(tiny_model, *folders)
    alone = [replies(load(tiny_model, folder), [str(folder)])[0] for folder in folders]
    for _ in range(2):
        assert [replies(found, [name])[0] for name in names] == alone
    held = [found.branch(name, adapter=name) for name in names[:2]]
    with pytest.raises(OutOfMemory, match="at most 2 adapters in calls at once"):
        found.branch("b", adapter=names[2])
    held[0].close()
    assert replies(found, [names[2]]) == [alone[2]]
    with pytest.raises(OutOfMemory):  # those in use stay where they are
        for name in (names[2], names[0]):
            held.append(found.branch(f"again {name}", adapter=name))


def test_a_prompt_that_is_refused_holds_no_adapter(
    tiny_model: Path, write_adapter: WriteAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.adapters, "MOST_SLOTS", 1)
    one, two = (write_adapter(tiny_model, name) for name in ("one", "two"))
    found = load(tiny_model, one, two)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="token ids"):
            found.branch("b", [10**6], adapter=str(one))
    found.branch("b", adapter=str(two)).close()


def test_a_file_that_was_written_anew_is_another_adapter(
    tiny_model: Path, write_adapter: WriteAdapter
) -> None:
    one = write_adapter(tiny_model, "one")
    found = load(tiny_model, one)
    before = replies(found, [str(one)])
    path = one / "adapter_model.safetensors"
    save_file({name: -tensor for name, tensor in load_file(path).items()}, path)
    # (-B)(-A) is B A: of one of the two the sign is turned back.
    tensors = load_file(path)
    save_file({n: -t if "lora_A" in n else t for n, t in tensors.items()}, path)
    assert replies(found, [str(one)]) != before
    assert cached(found, str(one)) == 16  # of the new one


def test_a_file_written_anew_waits_for_the_calls_of_the_one_before(
    tiny_model: Path, write_adapter: WriteAdapter
) -> None:
    """Else new calls would be refused until the last of those is over."""
    one = write_adapter(tiny_model, "one")
    found = load(tiny_model, one)
    before = replies(found, [str(one)])
    held = found.branch("held", adapter=str(one))
    path = one / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file({n: -t if "lora_A" in n else t for n, t in tensors.items()}, path)
    assert replies(found, [str(one)]) == before
    held.close()
    assert replies(found, [str(one)]) != before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda folder: _set(folder, r=300), "expected r of 1 to 256, found 300"),
        (lambda folder: _set(folder, use_dora=True), "plain LoRA"),
        (lambda folder: _add(folder, "lm_head"), "the layers' products .* found .*lm_head"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "expected .*safetensors"),
    ],
)
def test_what_cannot_be_served_beside_others_is_named_at_the_start(
    tiny_model: Path, write_adapter: WriteAdapter, change: Callable[[Path], object], says: str
) -> None:
    one = write_adapter(tiny_model, "one")
    change(one)
    with pytest.raises(CheckpointError, match=f"adapters: .*{says}"):
        load(tiny_model, one)


def _set(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _add(folder: Path, layer: str) -> None:
    path = folder / "adapter_model.safetensors"
    more = {f"base_model.model.{layer}.lora_{part}.weight": torch.ones(4, 4) for part in "AB"}
    save_file({**load_file(path), **more}, path)


def test_an_adapter_of_a_larger_rank_than_at_the_start_ends_its_branch_alone(
    tiny_model: Path, write_adapter: WriteAdapter, tmp_path: Path
) -> None:
    one = write_adapter(tiny_model, "one")
    found = load(tiny_model, one)
    larger = write_adapter(tiny_model, "larger", rank=8)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (one / name).write_bytes((larger / name).read_bytes())
    with pytest.raises(InvalidRequest, match="rank of at most 4, as at the start, found 8"):
        found.branch("b", adapter=str(one))
    assert len(replies(found, [""])[0]) == 12


def test_names_that_the_start_did_not_give_are_refused(
    tiny_model: Path, write_adapter: WriteAdapter
) -> None:
    one = write_adapter(tiny_model, "one")
    with pytest.raises(InvalidRequest, match="one that the start named, found '/etc'"):
        load(tiny_model, one).branch("b", adapter="/etc")
    with pytest.raises(InvalidRequest, match="expected none of this model"):
        load(tiny_model).branch("b", adapter=str(one))
    with pytest.raises(ConfigError, match="no adapter_dir beside"):
        EngineConfig(adapters=(one,), adapter_dir=one)


def test_a_chat_template_that_all_share_is_the_models_and_several_are_refused(
    tiny_model: Path, write_adapter: WriteAdapter
) -> None:
    one, two = (write_adapter(tiny_model, name) for name in ("one", "two"))
    template = "{% for m in messages %}{{ m.content }};{% endfor %}"
    (one / "chat_template.jinja").write_text(template)
    assert load(tiny_model, one, two).text.template_source == template
    (two / "chat_template.jinja").write_text(template + "!")
    with pytest.raises(CheckpointError, match="adapters: expected one chat template"):
        load(tiny_model, one, two)
