"""Bad model folders are refused with a sentence that names what is wrong."""

import json
import shutil
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.engine import Engine
from engine.types import (
    CheckpointError,
    ConfigError,
    EngineConfig,
    MissingTensor,
    UnsupportedArchitecture,
    WrongShape,
)

CONFIG = EngineConfig(dtype="fp32", kv_tokens=256)


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=rf"expected .*{name}.* found n"):
        Engine.load(folder, CONFIG)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a model folder at .*nowhere, found none"):
        Engine.load(tmp_path / "nowhere", CONFIG)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    change_tensors(folder, lambda tensors: tensors.pop(name))
    with pytest.raises(MissingTensor, match=name):
        Engine.load(folder, CONFIG)


def test_a_wrong_shape_is_named_with_both_shapes(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(5)}))
    with pytest.raises(WrongShape, match=r"model\.norm\.weight of shape \[32\], found \[5\]"):
        Engine.load(folder, CONFIG)


def test_a_truncated_file_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="expected safetensors"):
        Engine.load(folder, CONFIG)


def test_a_missing_shard_is_named(folder: Path) -> None:
    index = {"weight_map": {"model.embed_tokens.weight": "model-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="expected shard model-00002.safetensors"):
        Engine.load(folder, CONFIG)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "dynamic"),
    ],
)
def test_what_the_engine_cannot_run_is_refused_by_name(
    folder: Path, changes: dict[str, Any], found: str
) -> None:
    change_config(folder, **changes)
    with pytest.raises(UnsupportedArchitecture, match=f"found {found}"):
        Engine.load(folder, CONFIG)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"hidden_size": "big"}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"vocab_size": 1.5}, "vocab_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"vocab_size": 100}, "at most 100 tokens"),
        ({"num_hidden_layers": nan}, "num_hidden_layers"),
        ({"num_hidden_layers": inf}, "num_hidden_layers"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps"),
        ({"head_dim": 1 << 20}, "head_dim up to 1024"),
        ({"rope_theta": "x"}, "rope_theta"),
        ({"rope_scaling": "linear"}, "rope parameters, found 'linear'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"sliding_window": "x"}, "sliding_window"),
        ({"architectures": [["LlamaForCausalLM"]]}, "architecture"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(
    folder: Path, changes: dict[str, Any], key: str
) -> None:
    change_config(folder, **changes)
    with pytest.raises(CheckpointError, match=key):
        Engine.load(folder, CONFIG)


def test_a_config_that_is_no_json_is_refused(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: expected JSON"):
        Engine.load(folder, CONFIG)


@pytest.mark.parametrize(
    "wrong",
    [
        {"dtype": "fp16"},
        {"quant": "int3"},
        {"kv_format": "int2"},
        {"kv_tokens": 1},
        {"threads": 0},
        {"max_draft_tokens": -1},
    ],
)
def test_engine_settings_out_of_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        EngineConfig(**wrong)
