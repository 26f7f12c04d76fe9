"""The quality gate: what it measures and what it refuses."""

import dataclasses
from pathlib import Path

import pytest

from engine.engine import Engine
from engine.recipes.quality import (
    BOUNDS,
    Quality,
    log_probabilities,
    main,
    measure,
    reply_places,
    violations,
)
from engine.runner import Extension
from engine.types import EngineConfig, OutOfMemory

TOKENS = [5 + (i * i * 7) % 90 for i in range(300)]


def test_a_model_equals_itself(tiny_model: Path) -> None:
    engine = Engine.load(tiny_model, EngineConfig(dtype="fp32", kv_tokens=512))
    quality = measure(engine, engine, engine, [TOKENS])
    assert quality.n_tokens == 299
    assert quality.perplexity_change == pytest.approx(0)
    assert (quality.kl_nats, quality.top1_agreement) == (pytest.approx(0), 1.0)
    assert (quality.bf16_agreement, quality.decided_agreement) == (1.0, 1.0)
    assert violations(quality, BOUNDS["int8"]) == []


def test_fewer_bits_are_further_from_the_model(tiny_model: Path) -> None:
    reference = Engine.load(tiny_model, EngineConfig(dtype="fp32", kv_tokens=512))
    kl = []
    for quant in ("int8", "int4"):
        engine = Engine.load(tiny_model, EngineConfig(dtype="fp32", quant=quant, kv_tokens=512))
        kl.append(measure(reference, reference, engine, [TOKENS]).kl_nats)
    assert 0 < kl[0] < kl[1]


def test_only_what_the_assistant_says_counts_in_a_chat(tiny_model: Path) -> None:
    text = Engine.load(tiny_model, EngineConfig(kv_tokens=512)).text
    turns = [{"role": "user", "content": "a table"}, {"role": "assistant", "content": "yes"}]
    tokens = text.encode_chat(turns * 2)
    spoken = [token for token, kept in zip(tokens, reply_places(text, tokens), strict=True) if kept]
    assert text.decode(spoken) == "yesyes"
    assert spoken.count(text.end_of_turn_id) == 2
    assert reply_places(text, text.encode("no chat at all")).all()


def test_agreement_is_asked_only_where_bf16_decides(tiny_model: Path) -> None:
    """A difference as small as bf16's own error is a tie, not a disagreement."""
    exact = Engine.load(tiny_model, EngineConfig(dtype="fp32", kv_tokens=512))
    rounded = Engine.load(tiny_model, EngineConfig(kv_tokens=512))
    quality = measure(exact, rounded, rounded, [TOKENS])
    assert quality.decided_agreement >= quality.bf16_agreement
    assert quality.decided_agreement == 1.0


def test_a_measurement_that_fails_gives_its_room_back(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.load(tiny_model, EngineConfig(kv_tokens=128))

    def fails(extensions: list[Extension]) -> None:
        assert engine.pool.n_free < engine.pool.n_blocks
        raise RuntimeError("the machine gave out")

    monkeypatch.setattr(engine.runner, "run", fails)
    with pytest.raises(RuntimeError, match="gave out"):
        log_probabilities(engine, [5] * 40)
    assert engine.pool.n_free == engine.pool.n_blocks
    with pytest.raises(OutOfMemory):
        log_probabilities(engine, [5] * 400)
    assert engine.pool.n_free == engine.pool.n_blocks
    engine.check_integrity()


def test_what_is_over_its_bound_is_named() -> None:
    bad = Quality(
        100,
        9.0,
        perplexity_change=0.02,
        kl_nats=0.01,
        top1_agreement=0.9,
        bf16_agreement=0.99,
        decided_agreement=0.98,
        decided_share=0.8,
    )
    sentences = violations(bad, BOUNDS["int8"])
    assert [sentence.split(",")[0] for sentence in sentences] == [
        "expected perplexity up by at most 0.1%",
        "expected KL of at most 0.002 nats",
        "expected the likeliest token to agree in 99.5% of decided places",
    ]
    undecided = dataclasses.replace(bad, decided_agreement=1.0, decided_share=0.0)
    assert "found none" in violations(undecided, BOUNDS["int8"])[-1]


def test_the_command_refuses_and_tells_why(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("I would like to book a table for four on Friday evening, please. " * 4)
    assert main([str(tiny_model), "--quant", "int4", "--text", str(text)]) == 1
    assert "refused: expected" in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["model", "text"])
def test_the_command_names_what_is_missing(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    text = tmp_path / "text.txt"
    if missing == "model":
        text.write_text("words")
    model_dir = tmp_path / "nowhere" if missing == "model" else tiny_model
    assert main([str(model_dir), "--text", str(text)]) == 2
    assert ("nowhere" if missing == "model" else "text.txt") in capsys.readouterr().err
