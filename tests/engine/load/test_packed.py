"""Quantized checkpoints give the logits of the dense weights they stand for."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.engine import Engine
from engine.load.packed import FinerWeight, ScaledWeight, dense, read_weight
from engine.load.quant import quantize
from engine.types import (
    CheckpointError,
    EngineConfig,
    MissingTensor,
    UnsupportedQuantization,
    WrongShape,
)
from tests.engine.families import ROWS, reference, write_text

GROUP = 16
TOKENS = [5, 9, 30, 31, 70, 8]
Packed = dict[str, torch.Tensor]
Pack = Callable[[torch.Tensor], tuple[Packed, torch.Tensor]]
"""A float weight [out, in] -> the stored tensors by suffix, and the weight they stand for."""


def words(values: torch.Tensor, bits: int = 4) -> torch.Tensor:
    """[n, 32 / bits * m] integers -> int32 [n, m], lowest bits first."""
    rows = []
    for row in values.tolist():
        packed = []
        for start in range(0, len(row), 32 // bits):
            word = sum(v << (bits * i) for i, v in enumerate(row[start : start + 32 // bits]))
            packed.append(word - (1 << 32) if word >= 1 << 31 else word)
        rows.append(packed)
    return torch.tensor(rows, dtype=torch.int32)


def codes_of(
    weight: torch.Tensor, bits: int = 4
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [out, in], scale and zero code [out, groups], and the weight they stand for."""
    grouped = weight.view(weight.shape[0], -1, GROUP)
    top = (1 << bits) - 1
    low, high = grouped.amin(-1), grouped.amax(-1)
    scale = ((high - low) / top).half()
    zero = (-low / scale.float()).round().clamp(1, top).int()
    codes = (grouped / scale.float()[..., None]).round().int() + zero[..., None]
    codes = codes.clamp(0, top)
    meant = (codes - zero[..., None]) * scale.float()[..., None]
    return codes.view_as(weight), scale, zero, meant.view_as(weight)


def pack_awq(weight: torch.Tensor) -> tuple[Packed, torch.Tensor]:
    codes, scale, zero, meant = codes_of(weight)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # the packer's order, as AutoAWQ writes it

    def pack(values: torch.Tensor) -> torch.Tensor:
        return words(values.T.reshape(values.shape[1], -1, 8)[..., order].flatten(1))

    return {"qweight": pack(codes), "qzeros": pack(zero), "scales": scale.T.contiguous()}, meant


def pack_gptq(weight: torch.Tensor, bits: int = 4) -> tuple[Packed, torch.Tensor]:
    codes, scale, zero, meant = codes_of(weight, bits)
    stored = {
        "qweight": words(codes, bits).T.contiguous(),
        "qzeros": words((zero - 1).T, bits),
        "scales": scale.T.contiguous(),
        "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // GROUP,
    }
    return stored, meant


def pack_gptq_act_order(weight: torch.Tensor) -> tuple[Packed, torch.Tensor]:
    """Inputs were sorted before grouping: their groups are interleaved."""
    order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(1))
    codes, scale, zero, meant = codes_of(weight[:, order].contiguous())
    back = order.argsort()
    stored = {
        "qweight": words(codes[:, back]).T.contiguous(),
        "qzeros": words((zero - 1).T),
        "scales": scale.T.contiguous(),
        "g_idx": (back // GROUP).int(),
    }
    return stored, meant[:, back]


def pack_compressed_int4(weight: torch.Tensor) -> tuple[Packed, torch.Tensor]:
    codes, scale, zero, meant = codes_of(weight)
    shape = torch.tensor(weight.shape)
    stored = {
        "weight_packed": words(codes),
        "weight_scale": scale,
        "weight_zero_point": words(zero.T).T.contiguous(),
        "weight_shape": shape,
    }
    return stored, meant


def pack_compressed_int8(weight: torch.Tensor) -> tuple[Packed, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 127
    codes = (weight / scale).round().to(torch.int8)
    return {"weight": codes, "weight_scale": scale}, codes * scale


def pack_compressed_fp8(weight: torch.Tensor) -> tuple[Packed, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale}, codes.float() * scale


BLOCK = [24, 16]  # no divisor of the sizes: the last blocks are smaller


def pack_fp8_blocks(
    weight: torch.Tensor, block: Sequence[int] = BLOCK
) -> tuple[Packed, torch.Tensor]:
    rows, columns = (-(-n // size) for n, size in zip(weight.shape, block, strict=True))
    padded = torch.zeros(rows * block[0], columns * block[1])
    padded[: weight.shape[0], : weight.shape[1]] = weight
    blocks = padded.view(rows, block[0], columns, block[1])
    scale = (blocks.abs().amax((1, 3)) / 448).bfloat16()
    codes = (blocks / scale.float()[:, None, :, None]).to(torch.float8_e4m3fn)
    meant = (codes.float() * scale.float()[:, None, :, None]).view_as(padded)
    inside = tuple(slice(n) for n in weight.shape)
    stored = {"weight": codes.view_as(padded)[inside].contiguous(), "weight_scale_inv": scale}
    return stored, meant[inside]


def pack_fp8_whole(weight: torch.Tensor) -> tuple[Packed, torch.Tensor]:
    scale = weight.abs().max() / 448
    codes = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scale}, codes.float() * scale


def pack_compressed_blocks(weight: torch.Tensor) -> tuple[Packed, torch.Tensor]:
    stored, meant = pack_fp8_blocks(weight)
    return {"weight": stored["weight"], "weight_scale": stored["weight_scale_inv"]}, meant


def pack_compressed_act_order(weight: torch.Tensor) -> tuple[Packed, torch.Tensor]:
    order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(1))
    stored, meant = pack_compressed_int4(weight[:, order].contiguous())
    back = order.argsort()
    codes = codes_of(weight[:, order].contiguous())[0][:, back]
    index = {"weight_packed": words(codes), "weight_g_idx": (back // GROUP).int()}
    return stored | index, meant[:, back]


BLOCKS = {"group_0": {"weights": {"strategy": "block", "block_structure": BLOCK}}}
FORMATS: dict[str, tuple[dict[str, Any], Pack]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, pack_awq),
    "gptq-4bit": ({"quant_method": "gptq", "bits": 4}, pack_gptq),
    "gptq-8bit": ({"quant_method": "gptq", "bits": 8}, lambda weight: pack_gptq(weight, 8)),
    "gptq-act-order": ({"quant_method": "gptq", "bits": 4}, pack_gptq_act_order),
    "compressed-int4": ({"quant_method": "compressed-tensors"}, pack_compressed_int4),
    "compressed-int8": ({"quant_method": "compressed-tensors"}, pack_compressed_int8),
    "compressed-fp8": ({"quant_method": "compressed-tensors"}, pack_compressed_fp8),
    "compressed-act-order": ({"quant_method": "compressed-tensors"}, pack_compressed_act_order),
    "compressed-fp8-blocks": (
        {"quant_method": "compressed-tensors", "config_groups": BLOCKS}, pack_compressed_blocks,
    ),
    "fp8-blocks": ({"quant_method": "fp8", "weight_block_size": BLOCK}, pack_fp8_blocks),
    "fp8": ({"quant_method": "fp8", "weight_block_size": None}, pack_fp8_whole),
}  # fmt: skip


class _Tensors:
    """A checkpoint of these tensors."""

    source = Path("here")

    def __init__(self, tensors: Packed) -> None:
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        return self._tensors[name]


def write(source: Path, folder: Path, tensors: Packed, quantization: dict[str, Any] | None) -> None:
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    if quantization is not None:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        folder / "model.safetensors",
    )


def split(tensors: Packed) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Name without ".weight", tensor, and whether quantizers touch it."""
    for name, tensor in tensors.items():
        yield name.removesuffix(".weight"), tensor, "_proj" in name


def logits(folder: Path) -> torch.Tensor:
    from engine.runner import Extension
    from engine.sequence import Sequence

    engine = Engine.load(folder, EngineConfig(dtype="fp32", kv_tokens=64))
    sequence = Sequence(engine.pool, engine.tree)
    sequence.tokens = list(TOKENS)
    sequence.reserve(6)
    found = engine.runner.run([Extension(sequence, 6, n_logits=6)])
    assert found is not None
    return found


def write_both(source: Path, folder: Path, quantization: dict[str, Any], pack: Pack) -> None:
    """The model in the format, as `stored` there, and in the numbers that this stands for."""
    stored: Packed = {}
    meant: Packed = {}
    for name, tensor, is_quantized in split(load_file(source / "model.safetensors")):
        if not is_quantized or name.endswith(".bias"):
            whole = name if name.endswith(".bias") else f"{name}.weight"
            stored[whole] = meant[whole] = tensor
            continue
        packed, dense = pack(tensor)
        stored |= {f"{name}.{suffix}": part for suffix, part in packed.items()}
        meant[f"{name}.weight"] = dense
    write(source, folder / "stored", stored, quantization)
    write(source, folder / "meant", meant, None)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_quantized_checkpoint_means_its_dense_weights(
    tiny_model: Path, tmp_path: Path, format_name: str
) -> None:
    write_both(tiny_model, tmp_path, *FORMATS[format_name])
    expected, found = logits(tmp_path / "meant"), logits(tmp_path / "stored")
    assert (found - expected).abs().max() / expected.abs().max() < 1e-4


@pytest.mark.parametrize(
    ("family", "quantization", "pack"),
    [
        (
            "Qwen3",
            {"quant_method": "fp8", "weight_block_size": [16, 16]},
            lambda weight: pack_fp8_blocks(weight, [16, 16]),
        ),
        ("Qwen2", *FORMATS["gptq-act-order"]),
        ("Qwen2", *FORMATS["awq"]),
    ],
)
def test_a_family_as_it_is_published_says_what_transformers_says(
    tmp_path: Path, family: str, quantization: dict[str, Any], pack: Pack
) -> None:
    """Of its numbers; of FP8 by transformers' own reader too, which on a CPU unpacks it."""
    from transformers import AutoModelForCausalLM

    row = next(row for row in ROWS if row.name == family)
    source = tmp_path / "source"
    source.mkdir()
    n_vocab = write_text(row, source)
    reference(row.model, source, TOKENS, vocab_size=n_vocab)
    write_both(source, tmp_path, quantization, pack)
    found = logits(tmp_path / "stored")
    for name in ("meant", "stored") if quantization["quant_method"] == "fp8" else ("meant",):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32)
        with torch.inference_mode():
            truth = model(torch.tensor([TOKENS])).logits[0]
        assert (found - truth).abs().max() / truth.abs().max() < 1e-4


@pytest.mark.parametrize(
    ("quantization", "found"),
    [
        ({"quant_method": "bitsandbytes"}, "found bitsandbytes"),
        ({"quant_method": "awq", "bits": 4, "version": "marlin"}, "found marlin"),
        ({"quant_method": "gptq", "bits": 3}, "found 3"),
    ],
)
def test_an_unknown_quantization_is_refused_by_name(
    tiny_model: Path, tmp_path: Path, quantization: dict[str, Any], found: str
) -> None:
    tensors = load_file(tiny_model / "model.safetensors")
    stored = {
        f"{name}.qweight" if is_quantized else f"{name}.weight": tensor
        for name, tensor, is_quantized in split(tensors)
    }
    write(tiny_model, tmp_path / "stored", stored, quantization)
    with pytest.raises(UnsupportedQuantization, match=found):
        Engine.load(tmp_path / "stored", EngineConfig(dtype="fp32", kv_tokens=64))


@pytest.mark.parametrize("format_name", ["gptq-act-order", "gptq-8bit", "fp8-blocks"])
def test_what_no_four_bits_hold_is_read_as_it_is_and_kept_in_eight(format_name: str) -> None:
    """Rounded to four again, a file of four bits would be no file of four bits any more."""
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(2))
    quantization, pack = FORMATS[format_name]
    packed, meant = pack(weight)
    named = {f"a.{suffix}": part for suffix, part in packed.items()}
    found = read_weight(_Tensors(named), "a", (64, 64), quantization, "int4")
    assert isinstance(found, FinerWeight)
    assert torch.allclose(dense(found), meant, atol=1e-6)
    kept = quantize(found, "int4", 32, int8_group=32)
    assert isinstance(kept, ScaledWeight)
    assert (dense(kept) - meant).abs().max() < meant.abs().max() / 250


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"g_idx": torch.full((64,), 9)}, "groups of inputs from 0 to 3"),
        ({"g_idx": torch.zeros(3, dtype=torch.int32)}, "expected 64 groups"),
        ({"scales": torch.ones(0, 64)}, "expected 1 to 64 groups of inputs, found 0"),
        ({"scales": torch.ones(65, 64)}, "expected 1 to 64 groups of inputs, found 65"),
    ],
)
def test_an_order_of_inputs_that_leads_outside_is_refused(changed: Packed, says: str) -> None:
    packed, _ = pack_gptq(torch.randn(64, 64))
    named = {f"a.{suffix}": part for suffix, part in (packed | changed).items()}
    with pytest.raises(WrongShape, match=says):
        read_weight(_Tensors(named), "a", (64, 64), FORMATS["gptq-4bit"][0])


@pytest.mark.parametrize("block", [None, [128], [0, 128], ["a", 1], [64, 64]])
def test_blocks_that_are_none_of_its_own_are_refused(block: Any) -> None:
    packed, _ = pack_fp8_blocks(torch.randn(64, 64))
    named = {f"a.{suffix}": part for suffix, part in packed.items()}
    quantization = {"quant_method": "fp8", "weight_block_size": block}
    with pytest.raises(CheckpointError, match="by blocks of two sizes|the scales of a"):
        read_weight(_Tensors(named), "a", (64, 64), quantization)


def test_as_many_blocks_as_outputs_are_no_scales_of_outputs() -> None:
    """So it is where a layer of 128 x 128 blocks has 16,384 inputs."""
    codes = torch.randn(8, 16).to(torch.float8_e4m3fn)
    scale = torch.arange(1, 9).float().view(2, 4)
    groups = {"a": {"weights": {"block_structure": [4, 4]}}}
    quantization = {"quant_method": "compressed-tensors", "config_groups": groups}
    named = {"a.weight": codes, "a.weight_scale": scale}
    found = read_weight(_Tensors(named), "a", (8, 16), quantization)
    meant = codes.float() * scale.repeat_interleave(4, 0).repeat_interleave(4, 1)
    assert torch.equal(dense(found), meant)


@pytest.mark.parametrize("groups", [[1], {"a": None}, {"a": {}}, {"a": {"weights": None}}])
def test_groups_that_name_no_blocks_are_refused_by_name(groups: Any) -> None:
    packed, _ = pack_compressed_blocks(torch.randn(64, 64))
    named = {f"a.{suffix}": part for suffix, part in packed.items()}
    quantization = {"quant_method": "compressed-tensors", "config_groups": groups}
    with pytest.raises(UnsupportedQuantization, match="fp8 with one per block, found"):
        read_weight(_Tensors(named), "a", (64, 64), quantization)


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_missing_part_of_a_quantized_weight_is_named(
    tiny_model: Path, tmp_path: Path, format_name: str
) -> None:
    quantization, pack = FORMATS[format_name]
    stored: Packed = {}
    for name, tensor, is_quantized in split(load_file(tiny_model / "model.safetensors")):
        packed = pack(tensor)[0] if is_quantized else {"weight": tensor}
        stored |= {f"{name}.{suffix}": part for suffix, part in packed.items()}
    gone = next(name for name in stored if name.endswith(("scales", "weight_scale", "scale_inv")))
    del stored[gone]
    write(tiny_model, tmp_path / "stored", stored, quantization)
    with pytest.raises(MissingTensor, match=gone):
        Engine.load(tmp_path / "stored", EngineConfig(dtype="fp32", kv_tokens=64))
