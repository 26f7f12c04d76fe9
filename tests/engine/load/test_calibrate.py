"""The scale search for int4: the function stays, the error shrinks."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from engine.engine import Engine
from engine.load.assembly import read_model
from engine.load.calibrate import ScaledCheckpoint, calibrate, search_scale
from engine.load.loader import Checkpoint, FolderCheckpoint, read_config
from engine.load.packed import Int4Weight
from engine.load.quant import quantize_int4
from engine.model import Decoder
from engine.types import ConfigError, EngineConfig, UnsupportedQuantization
from tests.engine.load.gguf_files import write_gguf

TOKENS = [5 + (i * i * 7) % 90 for i in range(60)]


def test_scales_follow_the_inputs_that_matter() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(32, 64, generator=generator)
    inputs = torch.randn(200, 64, generator=generator)
    inputs[:, ::16] *= 50

    def error(scale: torch.Tensor) -> float:
        rounded = quantize_int4(weight * scale, 32).dense() / scale
        return float((inputs @ (rounded - weight).T).square().mean())

    scale = search_scale(weight, inputs, 32)
    assert error(scale) < 0.5 * error(torch.ones(64))
    assert scale[::16].min() > scale[1::16].max()


def test_folded_scales_change_nothing_but_rounding(tiny_model: Path) -> None:
    config, checkpoint = read_config(tiny_model), FolderCheckpoint(tiny_model)

    def decoder(source: Checkpoint) -> Decoder:
        return Decoder(source, config, dtype="fp32", quant=None, device="cpu", context_length=64)

    scales = calibrate(decoder(checkpoint), TOKENS, 32)
    assert not torch.allclose(scales[0].qkv, torch.ones_like(scales[0].qkv))
    plain = Engine(*text_and(tiny_model, decoder(checkpoint)))
    folded = Engine(*text_and(tiny_model, decoder(ScaledCheckpoint(checkpoint, scales))))
    from engine.recipes.quality import log_probabilities

    expected, found = (log_probabilities(engine, TOKENS) for engine in (plain, folded))
    assert torch.allclose(found, expected, atol=1e-3)


def text_and(folder: Path, decoder: Decoder):  # type: ignore[no-untyped-def]
    from engine.text.text import Text

    return Text.read(folder, (2,)), decoder, EngineConfig(dtype="fp32", kv_tokens=128)


def test_loading_with_a_calibration_text(tiny_model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("I would like to book a table for four on Friday evening, please.")
    config = EngineConfig(dtype="fp32", quant="int4", calibration_text=text, kv_tokens=128)
    assert Engine.load(tiny_model, config).text.vocab_size > 0


@pytest.mark.parametrize(("device", "group"), [("cpu", 32), ("reference", 128)])
def test_scales_are_searched_for_the_groups_that_are_served(
    write_checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, group: int
) -> None:
    pytest.importorskip("triton", reason="the GPU path needs triton")
    groups: dict[str, set[int]] = {"calibrate": set(), "quant": set()}
    for module, found in groups.items():

        def rounded(weight: torch.Tensor, n: int, found: set[int] = found) -> Int4Weight:
            found.add(n)
            return quantize_int4(weight, n)

        monkeypatch.setattr(f"engine.load.{module}.quantize_int4", rounded)
    text = tmp_path / "text.txt"
    text.write_text("I would like to book a table.")
    model = write_checkpoint(hidden_size=128, intermediate_size=256)
    config = EngineConfig(quant="int4", calibration_text=text, kv_tokens=128, device=device)
    read_model(model, config)
    assert groups == {"calibrate": {group}, "quant": {group}}


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\xff"])
def test_a_calibration_text_that_is_none_is_refused(
    tiny_model: Path, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="calibration_text: expected"):
        Engine.load(tiny_model, EngineConfig(quant="int4", calibration_text=path, kv_tokens=128))
    with pytest.raises(ConfigError, match="expected quant int4"):
        EngineConfig(quant="int8", calibration_text=path)


def test_a_file_of_four_bits_is_not_rounded_again_for_a_calibration_text(
    tiny_model: Path, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("I would like to book a table.")
    form = gguf.GGMLQuantizationType.Q4_1
    path = write_gguf(tiny_model, tmp_path / "m.gguf", form=form)
    config = EngineConfig(quant="int4", calibration_text=text, kv_tokens=128)
    with pytest.raises(UnsupportedQuantization, match="found a file of four bits"):
        Engine.load(path, config)
