"""The quality gate: what it measures and what it refuses."""

from pathlib import Path

import pytest

from engine.engine import Engine
from engine.quality import BOUNDS, Quality, main, measure, violations
from engine.types import EngineConfig

TOKENS = [5 + (i * i * 7) % 90 for i in range(300)]


def test_a_model_equals_itself(tiny_model: Path) -> None:
    engine = Engine.load(tiny_model, EngineConfig(dtype="fp32", kv_tokens=512))
    quality = measure(engine, engine, TOKENS)
    assert quality.n_tokens == 299
    assert quality.perplexity_change == pytest.approx(0)
    assert (quality.kl_nats, quality.top1_agreement) == (pytest.approx(0), 1.0)
    assert violations(quality, BOUNDS["int8"]) == []


def test_fewer_bits_are_further_from_the_model(tiny_model: Path) -> None:
    reference = Engine.load(tiny_model, EngineConfig(dtype="fp32", kv_tokens=512))
    kl = []
    for quant in ("int8", "int4"):
        engine = Engine.load(tiny_model, EngineConfig(dtype="fp32", quant=quant, kv_tokens=512))
        kl.append(measure(reference, engine, TOKENS).kl_nats)
    assert 0 < kl[0] < kl[1]


def test_what_is_over_its_bound_is_named() -> None:
    bad = Quality(100, 9.0, perplexity_change=0.02, kl_nats=0.01, top1_agreement=0.9)
    sentences = violations(bad, BOUNDS["int8"])
    assert [sentence.split(",")[0] for sentence in sentences] == [
        "expected perplexity up by at most 0.1%",
        "expected KL of at most 0.002 nats",
        "expected the likeliest token to agree in 99.5% of places",
    ]


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
