"""What an engine says of itself at the start."""

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from engine.engine import Engine
from engine.load.description import describe, served_by
from engine.types import EngineConfig
from tests.engine.load.gguf_files import write_gguf


def test_formats_layers_drafters_and_room_are_told(tiny_model: Path, shallow_model: Path) -> None:
    config = EngineConfig(
        kv_format="int8", kv_tokens=1024, native=False, ngram_draft=True,
        draft_dir=shallow_model,
    )  # fmt: skip
    engine = Engine.load(tiny_model, config)
    assert served_by(engine) == {
        "weights": "bf16", "kv": "int8", "layers": "torch",
        "drafter": "grammars and n-grams and a draft model",
    }  # fmt: skip
    assert describe(engine) == (
        "bf16 weights, layers by torch, drafts by grammars and n-grams and a draft model, "
        "int8 KV for 1024 tokens: 2.0 callers of 512, "
        "0.1 MB of weights and at most 0.1 MB of keys and values"
    )


def test_a_long_context_is_told_in_calls_of_4096_tokens(
    write_checkpoint: Callable[..., Path],
) -> None:
    folder = write_checkpoint(max_position_embeddings=16384, tie_word_embeddings=True)
    config = EngineConfig(kv_tokens=40960, native=False, kv_format="int8")
    told = describe(Engine.load(folder, config))
    assert "int8 KV for 40960 tokens: 10.0 callers of 4096, " in told
    n_kv_bytes = 40960 * 2 * 2 * 2 * (8 + 2)  # layers, keys and values, heads; codes and a scale
    assert told.endswith(f" and at most {n_kv_bytes / 1e6:.1f} MB of keys and values")


def test_a_context_that_is_cut_to_the_models_own_is_told_beside_the_one_asked_for(
    tiny_model: Path,
) -> None:
    asked = EngineConfig(kv_tokens=1024, native=False, context_length=4096)
    assert "contexts of 512 tokens (4096 asked for)" in describe(Engine.load(tiny_model, asked))
    shorter = EngineConfig(kv_tokens=1024, native=False, context_length=256)
    assert "asked for" not in describe(Engine.load(tiny_model, shorter))


def test_what_runs_the_layers_of_a_gpu_is_one_word_for_a_label(tiny_model: Path) -> None:
    config = EngineConfig(device="reference", quant="int8", kv_tokens=512)
    assert served_by(Engine.load(tiny_model, config))["layers"] == "triton"


def test_an_engine_without_quantization_and_drafters_says_so(
    make_engine: Callable[..., Engine], tiny_model: Path
) -> None:
    config = EngineConfig(kv_tokens=512, native=False, ngram_draft=True, max_draft_tokens=0)
    told = describe(Engine.load(tiny_model, config))
    assert "bf16 weights" in told and "drafts by nobody" in told and "bf16 KV" in told
    plain = {"weights": "bf16", "kv": "bf16", "layers": "torch", "drafter": "none"}
    assert served_by(Engine.load(tiny_model, config)) == plain
    assert describe(make_engine(dtype="fp32")).startswith("fp32 weights")


@pytest.mark.parametrize(
    ("form", "quant", "native", "told"),
    [
        ("Q4_1", "int4", True, "int4"), ("Q8_0", "int4", True, "int8"),
        ("F16", "int4", True, "int4"), ("Q4_1", "int4", False, "bf16"),
        ("Q4_1", "int8", True, "int4"), ("F16", "int8", True, "int8"),
    ],
)  # fmt: skip
def test_weights_are_told_as_they_are_kept_whatever_was_asked(
    tiny_model: Path, tmp_path: Path, form: str, quant: str, told: str, native: bool
) -> None:
    path = write_gguf(tiny_model, tmp_path / "m.gguf", form=gguf.GGMLQuantizationType[form])
    engine = Engine.load(path, EngineConfig(kv_tokens=512, quant=quant, native=native))
    assert describe(engine).startswith(f"{told} weights, ")


def test_formats_that_differ_are_told_with_their_shares(tiny_model: Path) -> None:
    engine = Engine.load(tiny_model, EngineConfig(kv_tokens=512, native=False))
    for layer in engine.runner.decoder.layers:
        layer.down.kept = "int8"
    sizes = engine.runner.decoder.config
    down = sizes.hidden_size * sizes.intermediate_size
    heads, kv_heads = sizes.n_heads * sizes.head_dim, sizes.n_kv_heads * sizes.head_dim
    whole = 3 * down + sizes.hidden_size * (2 * heads + 2 * kv_heads)
    expected = f"{1 - down / whole:.0%} bf16 and {down / whole:.0%} int8 weights, "
    assert describe(engine).startswith(expected)
