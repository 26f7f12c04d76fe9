"""The engine on a real GPU: neither batches nor drafts nor noise change a token. Else skipped."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.engine import Engine
from engine.types import EngineConfig, SamplingParams

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PROMPTS = ([5, 6, 7] * 2, [9, 8, 20, 21], [30] * 7, [11, 12])
WEIGHTS = [("int8", "plain"), ("int4", "int8"), ("fp8", "fp8"), ("int8", "int4")]


def _engine(folder: Path, device: str, quant: str | None, kv_format: str, **changes) -> Engine:
    config = EngineConfig(
        device=device, quant=quant, kv_format=kv_format, kv_tokens=4096, max_branches=8,
        context_length=400, share_steps=True, **changes,
    )  # fmt: skip
    return Engine.load(folder, config)


def _replies(engine: Engine, prompts, **params) -> list[list[int]]:
    branches = [engine.branch(f"b{i}") for i in range(len(prompts))]
    for branch, prompt in zip(branches, prompts, strict=True):
        branch.commit(list(prompt), SamplingParams(max_tokens=24, ignore_eos=True, **params))
    while engine.has_work():
        engine.step()
    found = [b.sequence.tokens[len(p) :] for b, p in zip(branches, prompts, strict=True)]
    for branch in branches:
        branch.close()
    engine.check_integrity()
    return found


@pytest.fixture
def folder(write_checkpoint: Callable[..., Path]) -> Path:
    return write_checkpoint(hidden_size=128, intermediate_size=256, num_hidden_layers=2)


@pytest.mark.parametrize(("quant", "kv_format"), WEIGHTS)
@pytest.mark.parametrize("params", [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 3}])
def test_a_reply_is_the_same_alone_and_in_a_batch(folder, quant, kv_format, params) -> None:
    engine = _engine(folder, "cuda", quant, kv_format)
    alone = [_replies(engine, [prompt], **params)[0] for prompt in PROMPTS]
    assert _replies(engine, PROMPTS, **params) == alone


@pytest.mark.parametrize(("quant", "kv_format"), WEIGHTS)
def test_drafting_in_the_graph_changes_no_token(folder, quant, kv_format) -> None:
    plain = _replies(_engine(folder, "cuda", quant, kv_format), PROMPTS)
    engine = _engine(folder, "cuda", quant, kv_format, ngram_draft=True, max_draft_tokens=7)
    assert _replies(engine, PROMPTS) == plain


@pytest.mark.parametrize(("quant", "kv_format"), [(None, "plain"), *WEIGHTS])
def test_a_gpu_starts_as_its_references_do(folder, quant, kv_format) -> None:
    """Roundings differ, so replies may part in time; most first tokens agree."""
    found, expected = (
        _replies(_engine(folder, device, quant, kv_format), PROMPTS)
        for device in ("cuda", "reference")
    )
    n_alike = sum(a[0] == b[0] for a, b in zip(found, expected, strict=True))
    assert n_alike >= len(PROMPTS) - 1


def test_nothing_is_allocated_or_waited_for_once_ready(folder) -> None:
    engine = _engine(folder, "cuda", "int8", "int8", ngram_draft=True)
    torch.cuda.set_sync_debug_mode("error")
    try:
        _replies(engine, PROMPTS, temperature=0.7)
        _replies(engine, [[5 + i % 40 for i in range(150)]])
        engine.runner.check_sealed()
    finally:
        torch.cuda.set_sync_debug_mode("default")
