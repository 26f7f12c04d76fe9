"""Weights are quantized some outputs at a time, and a tied head is held once."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.load import quant
from engine.load.quant import quantize


@pytest.mark.parametrize("int8_group", [None, 32])
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_slices_give_the_codes_of_the_whole(
    name: str, int8_group: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(37, 64).bfloat16()
    whole = quantize(weight, name, 32, int8_group)
    monkeypatch.setattr(quant, "SLICE_NUMBERS", 5 * 64)
    sliced = quantize(weight, name, 32, int8_group)
    assert not isinstance(whole, torch.Tensor) and type(sliced) is type(whole)
    for field in ("codes", "scale", "zero")[: 3 if name == "int4" else 2]:
        found, expected = getattr(sliced, field), getattr(whole, field)
        assert found.dtype == expected.dtype and found.float().equal(expected.float())


def test_no_more_than_a_slice_is_there_in_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quant, "SLICE_NUMBERS", 4 * 64)
    seen, rounded = list[int](), quant.quantize_int8

    def noted(some: torch.Tensor, group: int | None) -> quant.ScaledWeight:
        seen.append(some.numel())
        return rounded(some, group)

    monkeypatch.setattr(quant, "quantize_int8", noted)
    quantize(torch.ones(10, 64), "int8", 32)
    assert seen == [256, 256, 128]


def test_a_tied_head_in_the_compute_dtype_is_the_embedding_itself(
    write_checkpoint: Callable[..., Path],
) -> None:
    pytest.importorskip("triton", reason="the GPU path needs triton")
    from engine.engine import Engine
    from engine.types import EngineConfig

    folder = write_checkpoint(tie_word_embeddings=True)
    engine = Engine.load(folder, EngineConfig(device="reference", kv_tokens=512, max_branches=1))
    decoder = engine.runner.decoder
    head = decoder.head
    assert head.packed.data_ptr() == decoder.embedding.data_ptr()  # type: ignore[attr-defined]
