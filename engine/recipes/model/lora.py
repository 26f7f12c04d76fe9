"""Low-rank adapters on the linear layers of a frozen model, and the folder they are saved in.

The folder is one of PEFT's, so that other runtimes read it too; beside it lies the chat template
that the adapter was trained with.
Source: Hu et al., LoRA, arXiv:2106.09685.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.load.adapter import BASE_KEY

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RANK = 16  # of all linear layers of SmolLM2-135M: 4.9M parameters, 9.8 MB in bf16
ALPHA = 32


@dataclass(frozen=True, slots=True)
class Part:
    """One of the model's linear layers in a group: its name and its rows of the group's weight."""

    name: str
    rows: slice


class AdaptedLinear(nn.Module):
    """Linear layers of one input, frozen, with an adapter each: y = (W + alpha / rank B A) x.

    weight: [out of all, in], frozen, bf16; lora_A [parts * rank, in] and lora_B [out of all, rank]
    in fp32. What is multiplied is the merged weight, made once a step: one product where
    there were three and a sum, forward and for the gradient of x. It is how the adapter is served.
    """

    def __init__(
        self, layers: Sequence[tuple[str, nn.Linear]], rank: int = RANK, alpha: float = ALPHA
    ) -> None:
        """layers: by their names in the checkpoint. A new adapter changes nothing: B is zero."""
        super().__init__()
        weight = torch.cat([layer.weight.detach() for _, layer in layers]).to(torch.bfloat16)
        n_out, n_in = weight.shape
        self.rank, self.scale = rank, alpha / rank
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("merged", weight.clone(), persistent=False)
        self.lora_A = nn.Parameter(torch.empty(len(layers) * rank, n_in))
        self.lora_B = nn.Parameter(torch.zeros(n_out, rank))
        nn.init.uniform_(self.lora_A, -(n_in**-0.5), n_in**-0.5)
        self.parts, first = [], 0
        for name, layer in layers:
            self.parts.append(Part(name, slice(first, first + layer.out_features)))
            first += layer.out_features

    def ranks(self, index: int) -> slice:
        """The rows of lora_A that belong to one part."""
        return slice(index * self.rank, (index + 1) * self.rank)

    @torch.no_grad()
    def merge(self) -> None:
        """Bring the merged weight up to the adapter's present values."""
        down, up = self.lora_A.to(self.weight.dtype), self.lora_B.to(self.weight.dtype)
        for index, part in enumerate(self.parts):
            torch.addmm(
                self.weight[part.rows], up[part.rows], down[self.ranks(index)], alpha=self.scale,
                out=self.merged[part.rows],
            )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """x: [tokens, in] in bf16; returns [tokens, out of all]."""
        y: Tensor = _MergedProduct.apply(x, self.lora_A, self.lora_B, self)
        return y

    def tensors(self) -> Iterator[tuple[str, slice, bool]]:
        """For each of PEFT's tensors its name, its rows, and whether it is of lora_A."""
        for index, part in enumerate(self.parts):
            yield f"base_model.model.{part.name}.lora_A.weight", self.ranks(index), True
            yield f"base_model.model.{part.name}.lora_B.weight", part.rows, False


class _MergedProduct(torch.autograd.Function):
    """x W' with the gradients of x, A and B. W' = W + scale B A was merged before."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, down: Tensor, up: Tensor, layer: AdaptedLinear) -> Tensor:
        ctx.save_for_backward(x, down, up)
        ctx.layer = layer
        return x @ layer.merged.t()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, down, up = ctx.saved_tensors
        layer: AdaptedLinear = ctx.layer
        up = up.to(dy.dtype)
        low = x @ down.to(x.dtype).t()  # [tokens, parts * rank]
        d_low = torch.empty_like(low)
        d_up = torch.empty_like(up)
        for index, part in enumerate(layer.parts):
            of_part, ranks = dy[:, part.rows], layer.ranks(index)
            d_low[:, ranks] = of_part @ up[part.rows]
            d_up[part.rows] = of_part.t() @ low[:, ranks]
        d_down = d_low.t() @ x
        dx = dy @ layer.merged if ctx.needs_input_grad[0] else None
        return dx, d_down.float() * layer.scale, d_up.float() * layer.scale, None


def exported(layers: Sequence[AdaptedLinear], values: Sequence[Tensor]) -> dict[str, Tensor]:
    """An adapter by PEFT's names. values: lora_A and lora_B of each layer, one after the other."""
    found: dict[str, Tensor] = {}
    for index, layer in enumerate(layers):
        for name, rows, is_down in layer.tensors():
            found[name] = values[2 * index + (not is_down)][rows]
    return found


def read_adapter(folder: Path, layers: Sequence[AdaptedLinear]) -> None:
    """Fill the adapters of `layers` from an exported folder; ranks that it lacks add nothing yet.

    Raises:
        ValueError: the folder's adapter is of other layers, a higher rank or another scale.
    """
    stored = load_file(folder / "adapter_model.safetensors")
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    rank = config["r"]
    parameters = [tensor for layer in layers for tensor in (layer.lora_A, layer.lora_B)]
    ours = exported(layers, [parameter.detach() for parameter in parameters])
    places = {
        name: rows[:rank] if name.endswith("lora_A.weight") else rows[:, :rank]
        for name, rows in ours.items()
    }
    is_same = {name: t.shape for name, t in stored.items()} == {
        name: t.shape for name, t in places.items()
    }
    if not is_same or any(config["lora_alpha"] / rank != layer.scale for layer in layers):
        raise ValueError(f"expected an adapter of the same layers and scale, no wider, in {folder}")
    for name, rows in ours.items():
        if name.endswith("lora_B.weight"):
            rows.zero_()
        places[name].copy_(stored[name])


def save_adapter(
    folder: Path,
    weights: dict[str, Tensor],
    template: str,
    base: str,
    rank: int = RANK,
    alpha: float = ALPHA,
) -> None:
    """Write a PEFT folder in bf16, with the chat template. base: the base model's fingerprint."""
    folder.mkdir(parents=True, exist_ok=True)
    half = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in weights.items()
    }
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
        BASE_KEY: base,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(template)
