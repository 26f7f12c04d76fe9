"""Low-rank adapters on the linear layers of a frozen model, and the folder they are saved in.

The folder is one of PEFT's, so that other runtimes read it too; beside it lies the chat template
that the adapter was trained with.
Source: Hu et al., LoRA, arXiv:2106.09685.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .agent_model import AgentModel

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RANK = 16  # of all linear layers of SmolLM2-135M: 4.9M parameters, 9.8 MB in bf16
ALPHA = 32
_PREFIX = "base_model.model."


class LoraLinear(nn.Module):
    """y = W x + alpha / rank B A x. base: frozen; A [rank, in] and B [out, rank] in fp32."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.uniform_(self.lora_A, -(base.in_features**-0.5), base.in_features**-0.5)
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        low: Tensor = F.linear(x, self.lora_A.to(x.dtype)) * self.scale
        return self.base(x) + F.linear(low, self.lora_B.to(x.dtype))


def adapt(model: AgentModel, rank: int = RANK, alpha: float = ALPHA) -> dict[str, nn.Parameter]:
    """Freeze a model, put adapters on its linear layers; returns their parameters by PEFT's names.

    A new adapter changes nothing yet: B is zero.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    found = {}
    for path, module in list(model.named_modules()):
        for target in TARGETS:
            if isinstance(base := getattr(module, target, None), nn.Linear):
                layer = LoraLinear(base, rank, alpha)
                setattr(module, target, layer)
                found[f"{_PREFIX}{path}.{target}.lora_A.weight"] = layer.lora_A
                found[f"{_PREFIX}{path}.{target}.lora_B.weight"] = layer.lora_B
    return found


def read_adapter(folder: Path, adapter: dict[str, nn.Parameter]) -> None:
    """Fill the parameters of `adapt` from an exported folder.

    Raises:
        ValueError: the folder's adapter is of another shape.
    """
    stored = load_file(folder / "adapter_model.safetensors")
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    if shapes != {name: parameter.shape for name, parameter in adapter.items()}:
        raise ValueError(f"expected an adapter of the same layers and rank in {folder}")
    with torch.no_grad():
        for name, parameter in adapter.items():
            parameter.copy_(stored[name])


def save_adapter(
    folder: Path, weights: dict[str, Tensor], template: str, rank: int = RANK, alpha: float = ALPHA
) -> None:
    """Write a PEFT folder in bf16, with the chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    half = {name: tensor.detach().to("cpu", torch.bfloat16) for name, tensor in weights.items()}
    path = folder / "adapter_model.safetensors"
    save_file(half, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors writes files that only their owner can read
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(TARGETS),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(template)
