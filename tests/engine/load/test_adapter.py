"""An adapter's low-rank change is merged when a model is loaded; what is not plain LoRA is not."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.engine import Engine
from engine.load.packed import FinerWeight, Int4Weight, dense, read_weight
from engine.load.source import adapted, open_source
from engine.quality import log_probabilities
from engine.types import CheckpointError, EngineConfig, WrongShape
from tests.engine.load.gguf_files import write_gguf
from tests.tables import each_row

LAYER = "model.layers.1.mlp.up_proj"
SETTINGS = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none"}
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(SETTINGS))
    generator = torch.Generator().manual_seed(1)
    tensors = {
        f"base_model.model.{LAYER}.lora_A.weight": torch.randn(4, 32, generator=generator),
        f"base_model.model.{LAYER}.lora_B.weight": torch.randn(64, 4, generator=generator),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def test_a_weight_changes_by_the_scaled_product_and_the_others_stay(
    tiny_model: Path, adapter: Path
) -> None:
    base = open_source(tiny_model)
    found = adapted(base, adapter).checkpoint
    down, up = load_file(adapter / "adapter_model.safetensors").values()
    weight = base.checkpoint.tensor(f"{LAYER}.weight")
    assert torch.allclose(found.tensor(f"{LAYER}.weight", (64, 32)), weight + 2 * up @ down)
    other = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(found.tensor(other), base.checkpoint.tensor(other))


def test_one_that_names_no_weights_is_told_of_and_bound_by_the_line_that_is_told(
    tiny_model: Path, adapter: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base, path = open_source(tiny_model), adapter / "adapter_config.json"
    adapted(base, adapter)
    key, value = re.findall(r'"(base_fingerprint)": "([0-9a-f]{64})"', caplog.text)[0]
    caplog.clear()
    path.write_text(json.dumps(SETTINGS | {key: value}))
    adapted(base, adapter)
    assert not caplog.text
    path.write_text(json.dumps(SETTINGS | {key: "0" * 64}))
    with pytest.raises(CheckpointError, match="found another model"):
        adapted(base, adapter)


def test_beside_it_a_four_bit_file_stays_in_its_own_bits(
    tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    form = gguf.GGMLQuantizationType.Q4_1
    base = open_source(write_gguf(tiny_model, tmp_path / "m.gguf", form=form))
    found = adapted(base, adapter).checkpoint
    other = "model.layers.0.mlp.up_proj"
    kept = read_weight(found, other, (64, 32), {}, "int4")
    assert isinstance(kept, Int4Weight)
    assert torch.equal(
        kept.codes,
        read_weight(base.checkpoint, other, (64, 32), {}, "int4").codes,  # type: ignore[union-attr]
    )
    merged = read_weight(found, LAYER, (64, 32), {}, "int4")  # more than four bits: not rounded
    assert isinstance(merged, FinerWeight)
    assert torch.equal(dense(merged), found.tensor(f"{LAYER}.weight"))
    # A folder's dense weights are rounded as asked, merged or not.
    of_folder = adapted(open_source(tiny_model), adapter).checkpoint
    assert isinstance(read_weight(of_folder, LAYER, (64, 32), {}, "int4"), torch.Tensor)
    assert isinstance(read_weight(of_folder, other, (64, 32), {}, "int4"), torch.Tensor)


def test_rank_stabilized_scale_is_by_the_root(tiny_model: Path, adapter: Path) -> None:
    (adapter / "adapter_config.json").write_text(json.dumps({**SETTINGS, "use_rslora": True}))
    base = open_source(tiny_model)
    down, up = load_file(adapter / "adapter_model.safetensors").values()
    expected = base.checkpoint.tensor(f"{LAYER}.weight") + 4 * up @ down
    assert torch.allclose(adapted(base, adapter).checkpoint.tensor(f"{LAYER}.weight"), expected)


def test_an_engine_with_an_adapter_is_one_of_the_merged_folder(
    tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    merged = Path(shutil.copytree(tiny_model, tmp_path / "merged"))
    tensors = load_file(merged / "model.safetensors")
    down, up = load_file(adapter / "adapter_model.safetensors").values()
    tensors[f"{LAYER}.weight"] = tensors[f"{LAYER}.weight"] + 2 * up @ down
    save_file(tensors, merged / "model.safetensors")

    def logits(folder: Path, **changes: Any) -> torch.Tensor:
        engine = Engine.load(folder, EngineConfig(dtype="fp32", kv_tokens=256, **changes))
        return log_probabilities(engine, [5, 40, 77, 9])

    found = logits(tiny_model, adapter_dir=adapter)
    assert torch.allclose(found, logits(merged), atol=1e-4)
    assert not torch.allclose(found, logits(tiny_model), atol=1e-2)


def test_its_chat_template_takes_the_models_place(tiny_model: Path, adapter: Path) -> None:
    base = open_source(tiny_model)
    assert adapted(base, adapter).text == base.text
    (adapter / "chat_template.jinja").write_text("{{ messages }}")
    assert adapted(base, adapter).text.template == "{{ messages }}"


def test_only_its_own_end_of_turn_head_is_read(
    tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    head = {
        "inner.weight": torch.zeros(3, 32),
        "inner.bias": torch.zeros(3),
        "outer.weight": torch.zeros(1, 3),
        "outer.bias": torch.zeros(1),
    }
    save_file(head, folder / "end_of_turn.safetensors")
    config = EngineConfig(dtype="fp32", kv_tokens=256)
    assert Engine.load(folder, config).runner.decoder.end_head is not None
    with_adapter = EngineConfig(dtype="fp32", kv_tokens=256, adapter_dir=adapter)
    assert Engine.load(folder, with_adapter).runner.decoder.end_head is None
    save_file(head, adapter / "end_of_turn.safetensors")
    assert Engine.load(folder, with_adapter).runner.decoder.end_head is not None


@each_row(
    ("changes", "says"),
    [
        ({"r": 0}, "r of 1 to 1024, found 0"),
        ({"r": 1 << 40}, "r of 1 to 1024"),
        ({"lora_alpha": "much"}, "positive lora_alpha"),
        ({"use_dora": True}, "plain LoRA .* found use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"bias": "all"}, "bias all"),
        ({"peft_type": "IA3"}, "IA3"),
    ],
)
def test_settings_of_another_kind_are_named(
    tiny_model: Path, adapter: Path, changes: dict[str, Any], says: str
) -> None:
    (adapter / "adapter_config.json").write_text(json.dumps({**SETTINGS, **changes}))
    with pytest.raises(CheckpointError, match=says):
        adapted(open_source(tiny_model), adapter)


def test_a_stray_or_half_layer_is_named(tiny_model: Path, adapter: Path) -> None:
    path = adapter / "adapter_model.safetensors"
    whole = load_file(path)
    down = f"base_model.model.{LAYER}.lora_A.weight"
    save_file({down: whole[down]}, path)
    with pytest.raises(CheckpointError, match=f"found {down}"):
        adapted(open_source(tiny_model), adapter)
    save_file({name.replace("layers.1", "layers.9"): t for name, t in whole.items()}, path)
    with pytest.raises(CheckpointError, match=r"layers\.9"):
        adapted(open_source(tiny_model), adapter)
    save_file({**whole, "base_model.model.lm_head.weight": torch.ones(2)}, path)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight"):
        adapted(open_source(tiny_model), adapter)


def test_a_change_of_another_shape_is_named(tiny_model: Path, adapter: Path) -> None:
    path = adapter / "adapter_model.safetensors"
    whole = load_file(path)
    save_file({name: tensor[:, :3].contiguous() for name, tensor in whole.items()}, path)
    with pytest.raises(WrongShape, match="lora_A"):
        adapted(open_source(tiny_model), adapter).checkpoint.tensor(f"{LAYER}.weight")


@pytest.mark.parametrize("part", ["lora_A", "lora_B"])
def test_a_change_that_is_no_number_is_named(tiny_model: Path, adapter: Path, part: str) -> None:
    path = adapter / "adapter_model.safetensors"
    whole = load_file(path)
    whole[f"base_model.model.{LAYER}.{part}.weight"][0, 0] = torch.nan
    save_file(whole, path)
    with pytest.raises(CheckpointError, match=f"finite numbers for {LAYER}"):
        Engine.load(tiny_model, EngineConfig(kv_tokens=256, adapter_dir=adapter))


def test_a_folder_without_an_adapter_is_named(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"adapter_config\.json"):
        adapted(open_source(tiny_model), tmp_path)
