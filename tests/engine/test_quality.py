"""The quality gate: what it measures and what it refuses."""

import math
from pathlib import Path

import pytest
import torch

from engine.engine import Engine
from engine.quality import (
    FP32,
    Format,
    Passage,
    Reference,
    log_probabilities,
)
from engine.types import EngineConfig

TOKENS = [5 + (i * i * 7) % 90 for i in range(300)]


def whole(tokens: list[int]) -> Passage:
    return Passage(tokens, torch.ones(len(tokens), dtype=torch.bool))


def load(model: Path, one: Format, kv_tokens: int = 512) -> Engine:
    return Engine.load(model, one.config(EngineConfig(kv_tokens=kv_tokens)))


def test_a_model_equals_itself(tiny_model: Path, tmp_path: Path) -> None:
    engine = load(tiny_model, FP32)
    quality = Reference(engine, [whole(TOKENS)], tmp_path).compare(engine)
    assert quality.n_tokens == 299
    assert quality.perplexity_change == pytest.approx(0)
    assert (quality.kl_nats, quality.top1_agreement) == (pytest.approx(0), 1.0)


def test_perplexity_and_divergence_are_those_of_whole_passes(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window is read some rows at a time; what comes out is as of one pass over it."""
    monkeypatch.setattr("engine.quality.LOGIT_ROWS", 7)
    plain, rounded = load(tiny_model, FP32), load(tiny_model, Format("int4", dtype="fp32"))
    found = Reference(plain, [whole(TOKENS)], tmp_path).compare(rounded)
    wanted, other = (log_probabilities(one, TOKENS[:-1]).double() for one in (plain, rounded))
    nats = -sum(float(other[i, token]) for i, token in enumerate(TOKENS[1:])) / 299
    assert found.perplexity == pytest.approx(math.exp(nats), rel=1e-5)
    assert found.kl_nats == pytest.approx(
        float((wanted.exp() * (wanted - other)).sum()) / 299, rel=1e-3
    )
    agreed = (wanted.argmax(-1) == other.argmax(-1)).double().mean()
    assert found.top1_agreement == pytest.approx(float(agreed))
