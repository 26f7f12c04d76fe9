"""Replies of the shipped agent as the server has them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.recipes.measuring import measures
from engine.recipes.measuring.served_agent import ServedAgent

pytest.importorskip("llguidance", reason="the optional package llguidance is not installed")

EMBEDDED = Path(__file__).parents[3] / "engine" / "embedded"


def tool(name: str, **properties: dict[str, object]) -> dict[str, object]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": "Price of one item.", "parameters": parameters}
    return {"type": "function", "function": function}


def test_a_call_is_bound_to_the_tool_and_what_is_said_is_said() -> None:
    served = ServedAgent(EMBEDDED / "agent", EMBEDDED / "draft")
    system = {"role": "system", "content": "You are Ava at Juniper Cafe. We are closed on Sunday."}
    tools = [tool("get_price", commodity={"enum": ["latte", "muffin"]})]
    asked = [system, {"role": "user", "content": "how much is a latte"}]
    call = measures.parse_tool_call(served.reply(asked, tools))
    assert call == {"name": "get_price", "arguments": {"commodity": "latte"}}
    said = served.reply([system, {"role": "user", "content": "are you open on sunday"}], [])
    assert "closed" in said


def adapter(folder: Path, scale: float) -> Path:
    """A low-rank change of one layer of the shipped agent; of scale 0 it changes nothing."""
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    generator = torch.Generator().manual_seed(1)
    name = "base_model.model.model.layers.0.mlp.down_proj"
    tensors = {
        f"{name}.lora_A.weight": torch.randn(2, 896, generator=generator),
        f"{name}.lora_B.weight": scale * torch.randn(384, 2, generator=generator),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def test_an_adapter_replies_as_it_is_served_too(tmp_path: Path) -> None:
    asked = [{"role": "system", "content": "You are Ava."}, {"role": "user", "content": "hello"}]
    model, draft = EMBEDDED / "agent", EMBEDDED / "draft"
    plain = ServedAgent(model, draft).reply(asked, [])
    assert ServedAgent(model, draft, adapter(tmp_path / "none", 0.0)).reply(asked, []) == plain
    assert ServedAgent(model, draft, adapter(tmp_path / "much", 5.0)).reply(asked, []) != plain
