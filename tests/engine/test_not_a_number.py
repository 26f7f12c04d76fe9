"""A row of NaN ends its own reply, and no other of the step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.engine import Engine
from engine.types import Done, EngineConfig, SamplingParams

SPOILT = 77  # a token whose embedding is no number
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
