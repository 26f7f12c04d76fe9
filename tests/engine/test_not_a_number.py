"""A row of NaN ends its own reply, and no other of the step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.engine import Engine
from engine.types import Done, EngineConfig, SamplingParams

SPOILT, PREFIX = 77, [11] * 32  # a token whose embedding is no number
PROMPTS = ([5, 6, 7] * 3, [9, SPOILT, 20, 21], [30] * 20)


def make(folder: Path, device: str) -> Engine:
    config = EngineConfig(
        dtype="fp32", device=device, kv_tokens=1024, max_branches=4, share_steps=True,
        ngram_draft=True,
    )  # fmt: skip
    return Engine.load(folder, config)


def answers(engine: Engine, params: SamplingParams) -> tuple[list[list[int]], list[Done]]:
    """What follows each prompt, and how each reply ended."""
    branches = [engine.branch(f"b{i}") for i in range(len(PROMPTS))]
    for branch, prompt in zip(branches, PROMPTS, strict=True):
        branch.commit(list(prompt), params)
    done: dict[str, Done] = {}
    while engine.has_work():
        done |= {event.branch_id: event for event in engine.step() if isinstance(event, Done)}
    said = [b.sequence.tokens[len(p) :] for b, p in zip(branches, PROMPTS, strict=True)]
    ended = [done[branch.branch_id] for branch in branches]
    for branch in branches:
        branch.close()
    return said, ended


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("drawn", [{}, {"temperature": 0.9, "seed": 3, "top_p": 0.8}])
def test_a_row_of_nan_ends_that_reply_alone(
    write_checkpoint: Callable[..., Path], device: str, drawn: dict[str, Any]
) -> None:
    if device == "reference":
        pytest.importorskip("triton", reason="the GPU path needs triton")
    params = SamplingParams(max_tokens=20, ignore_eos=True, **drawn)
    engine = make(write_checkpoint(), device)
    sound, ended = answers(engine, params)
    assert all(one.finish_reason == "length" for one in ended)
    embedding = engine.runner.decoder.embedding
    known = embedding[SPOILT].clone()
    embedding[SPOILT] = torch.nan
    found, ended = answers(engine, params)
    assert [one.finish_reason for one in ended] == ["length", "error", "length"]
    assert ended[1].error == "expected numbers for the next token, found NaN or infinity"
    assert found[1] == [] and [found[0], found[2]] == [sound[0], sound[2]]
    embedding[SPOILT] = known  # and nobody shares what it has left
    assert answers(engine, params)[0] == sound


@pytest.mark.parametrize("kv_format", ["plain", "int8"])
def test_what_a_spoilt_block_shares_is_found_by_nobody_and_cleared_once_nobody_has_it(
    write_checkpoint: Callable[..., Path], kv_format: str
) -> None:
    config = EngineConfig(dtype="fp32", kv_tokens=1024, max_branches=4, kv_format=kv_format)
    engine = Engine.load(write_checkpoint(), config)

    def ended(*branches: Any) -> list[str]:
        """Of replies to the shared prefix, and some words behind it."""
        for branch in branches:
            branch.commit([5, 6, 7], SamplingParams(max_tokens=4, ignore_eos=True))
        found: dict[str, str] = {}
        while engine.has_work():
            events = engine.step()
            found |= {e.branch_id: e.finish_reason for e in events if isinstance(e, Done)}
        return [found[branch.branch_id] for branch in branches]

    first = engine.branch("first", PREFIX)
    assert ended(first) == ["length"]
    sharing = [engine.branch(name, PREFIX) for name in ("second", "third")]
    shared = first.sequence.table[:2]
    assert all(branch.sequence.table[:2] == shared for branch in sharing)
    store = engine.pool.scale_blocks if kv_format == "int8" else engine.pool.blocks
    store[1][shared[1]] = torch.nan
    assert ended(*sharing) == ["error", "error"]
    new = engine.branch("new", PREFIX)
    assert ended(new) == ["length"]  # beside one that still has the spoilt block
    assert new.sequence.table[1] != shared[1]
    first.close()
    assert not engine.pool.spoilt and torch.isfinite(store[1]).all()
    for branch in [*sharing, new]:
        branch.close()
    engine.check_integrity()


def test_keys_with_biases_are_kept_as_they_are(write_checkpoint: Callable[..., Path]) -> None:
    for name, kept in (("Qwen2ForCausalLM", "plain"), ("LlamaForCausalLM", "int8")):
        folder = write_checkpoint(architectures=[name])
        tensors = load_file(folder / "model.safetensors")
        for layer in range(2):
            for part, n_out in (("q", 32), ("k", 16), ("v", 16)):
                tensors[f"model.layers.{layer}.self_attn.{part}_proj.bias"] = torch.ones(n_out)
        save_file(tensors, folder / "model.safetensors")
        engine = Engine.load(folder, EngineConfig(dtype="fp32", kv_tokens=512, kv_format="int8"))
        assert engine.config.kv_format == kept
        assert engine.pool.format.is_scaled is (kept == "int8")
