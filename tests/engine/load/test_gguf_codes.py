"""Four bits of a GGUF file stay what they are: no code is rounded a second time."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from engine.engine import Engine
from engine.load.gguf_codes import FOUR_BITS, int4_weight
from engine.load.packed import FinerWeight, Int4Weight, ScaledWeight, dense, read_weight
from engine.load.quant import join, quantize
from engine.load.source import open_source
from engine.quality import log_probabilities
from engine.types import EngineConfig
from tests.engine.conftest import WriteCheckpoint
from tests.engine.load.gguf_files import write_gguf

TOKENS = [5, 40, 77, 300, 12, 9]
Q4_1 = gguf.GGMLQuantizationType.Q4_1


@pytest.mark.parametrize("name", FOUR_BITS)
def test_codes_are_the_numbers_that_dequantization_gives(name: str) -> None:
    form = gguf.GGMLQuantizationType[name]
    n_inputs, n_bytes = gguf.GGML_QUANT_SIZES[form]
    chance = np.random.default_rng(3)
    raw = chance.integers(0, 256, (6, n_bytes), np.uint8)
    for first in (0,) if name == "Q4_0" else (0, 2):  # scales of usual sizes
        halves = chance.uniform(-0.1, 0.1, 6).astype(np.float16)
        raw[:, first : first + 2] = halves.view(np.uint8).reshape(6, 2)
    weight = int4_weight(name, raw, (3, 2 * n_inputs))
    expected = torch.from_numpy(gguf.quants.dequantize(raw.reshape(3, -1), form))
    assert torch.allclose(weight.dense(), expected, atol=1e-6)
    assert weight.codes.dtype == torch.int32 and int(weight.codes.max()) == 15
    assert weight.scale.shape == (3, 2 * n_inputs // 32)


def test_rows_of_q_and_k_come_in_the_engines_order(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    checkpoint = open_source(
        write_gguf(write_checkpoint(), tmp_path / "m.gguf", form=Q4_1)
    ).checkpoint
    for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj"):
        full = f"model.layers.1.{name}"
        plain = checkpoint.tensor(f"{full}.weight")
        for quant in ("int4", "int8"):
            codes = read_weight(checkpoint, full, tuple(plain.shape), {}, quant)  # type: ignore[arg-type]
            assert isinstance(codes, Int4Weight)
            assert torch.allclose(dense(codes), plain, atol=1e-6)
        # Whoever asks for another format gets the numbers, to round them as asked.
        assert isinstance(
            read_weight(checkpoint, full, tuple(plain.shape), {}, "fp8"), torch.Tensor
        )  # type: ignore[arg-type]


@pytest.mark.parametrize("quant", ["int4", "int8"])
@pytest.mark.parametrize("native", [True, False])
def test_a_four_bit_file_is_served_as_the_file(
    write_checkpoint: WriteCheckpoint, tmp_path: Path, native: bool, quant: str
) -> None:
    """As near to its numbers as bf16 is; the same numbers rounded anew, from a folder, are not."""
    path = write_gguf(write_checkpoint(), tmp_path / "m.gguf", form=Q4_1)

    def said(**how: object) -> torch.Tensor:
        config = EngineConfig(kv_tokens=512, native=native, **how)  # type: ignore[arg-type]
        return log_probabilities(Engine.load(path, config), TOKENS)

    exact = said(dtype="fp32")
    apart = {one: float((said(quant=one) - exact).abs().max()) for one in (None, quant)}
    assert apart[quant] < 3 * apart[None]


@pytest.mark.parametrize("name", ["Q5_0", "Q5_1", "Q8_0"])
def test_more_bits_than_four_become_eight(
    write_checkpoint: WriteCheckpoint, tmp_path: Path, name: str
) -> None:
    form = gguf.GGMLQuantizationType[name]
    checkpoint = open_source(
        write_gguf(write_checkpoint(), tmp_path / "m.gguf", form=form)
    ).checkpoint
    shape = tuple(checkpoint.tensor("model.layers.0.mlp.up_proj.weight").shape)
    weight = read_weight(checkpoint, "model.layers.0.mlp.up_proj", shape, {}, "int4")  # type: ignore[arg-type]
    assert isinstance(weight, FinerWeight)
    plain = checkpoint.tensor("model.layers.0.mlp.up_proj.weight")
    assert torch.equal(dense(weight), plain)
    rounded = quantize(weight, "int4", 32, int8_group=32)  # as the device asks
    assert isinstance(rounded, ScaledWeight) and rounded.scale.shape == (shape[0], shape[1] // 32)
    assert torch.equal(dense(rounded), dense(quantize(plain, "int8", 32, int8_group=32)))


def test_four_and_eight_bits_meet_in_eight() -> None:
    codes = torch.randint(0, 16, (4, 32), dtype=torch.int32)
    int4 = Int4Weight(codes, torch.full((4, 1), 0.01), torch.zeros(4, 1))
    int8 = ScaledWeight(torch.randint(-127, 128, (2, 32)).to(torch.int8), torch.full((2,), 0.001))
    both = join([int4, int8])
    assert isinstance(both, ScaledWeight) and both.codes.shape == (6, 32)
    expected = torch.cat([int4.dense(), int8.dense()])
    assert torch.allclose(dense(both), expected, atol=0.006 * float(expected.abs().max()))


@pytest.mark.parametrize("other", [FinerWeight(torch.randn(2, 32)), torch.randn(2, 32)])
def test_four_bits_and_finer_numbers_are_not_rounded_to_four_again(
    other: torch.Tensor | FinerWeight,
) -> None:
    codes = torch.randint(0, 16, (4, 32), dtype=torch.int32)
    int4 = Int4Weight(codes, torch.full((4, 1), 0.01), torch.zeros(4, 1))
    both = join([int4, other])
    assert torch.equal(dense(both), torch.cat([int4.dense(), dense(other)]))
    assert isinstance(quantize(both, "int4", 32), ScaledWeight)
    assert isinstance(quantize(both, None, 32), torch.Tensor)
