"""EAGLE-3 heads of tiny models, written as their authors publish them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.engine.conftest import SIZES, random_tensors

Tensors = dict[str, torch.Tensor]
TAPS = [-1, 0, 1]  # of a model of two layers: its embedding, and what each layer gave


def config_of(n_vocab: int, **changes: Any) -> dict[str, Any]:
    return {
        **SIZES,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "vocab_size": n_vocab,
        "draft_vocab_size": 200,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": TAPS, "use_aux_hidden_state": True},
        **changes,
    }


def random_head(config: dict[str, Any], seed: int = 3) -> Tensors:
    """Knows every token behind the first hundred, as far as it has numbers."""
    sizes = {**config, "vocab_size": config["draft_vocab_size"]}
    generator = torch.Generator().manual_seed(seed)
    hidden, n_drafted = config["hidden_size"], config["draft_vocab_size"]
    layer, head = "model.layers.0.", Tensors()
    for name, weight in random_tensors(sizes, seed).items():
        if name.startswith(layer):
            wide = any(name.endswith(f"{part}_proj.weight") for part in "qkv")
            head[f"midlayer.{name[len(layer) :]}"] = torch.cat([weight] * 2, 1) if wide else weight
    head["midlayer.hidden_norm.weight"] = torch.ones(hidden)
    head["fc.weight"] = torch.randn(hidden, 3 * hidden, generator=generator) / hidden
    head["norm.weight"] = torch.ones(hidden)
    head["lm_head.weight"] = torch.randn(n_drafted, hidden, generator=generator)
    n_skipped = min(100, config["vocab_size"] - n_drafted)
    head["d2t"] = torch.full((n_drafted,), n_skipped)
    head["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool)
    return head


def write_head(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def random_head_of(model: Path, folder: Path) -> Path:
    """Of a tiny model on disk: it errs nearly always."""
    config = config_of(json.loads((model / "config.json").read_text())["vocab_size"])
    return write_head(folder, config, random_head(config))


def counting_model(n_vocab: int, config: dict[str, Any]) -> Tensors:
    """Behind token n it says n + 1: its layers give nothing, its head is its embedding moved on."""
    tensors = random_tensors(config, 0)
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = torch.zeros_like(tensors[name])
    embedding = torch.zeros(n_vocab, config["hidden_size"])
    names = torch.randn(n_vocab, 15, generator=torch.Generator().manual_seed(1))
    embedding[:, 1:16] = 3 * names / names.norm(dim=1, keepdim=True)
    embedding[:, 0] = 1
    tensors["model.embed_tokens.weight"] = embedding
    tensors["lm_head.weight"] = embedding.roll(1, 0)
    return tensors


def counting_head(model: Tensors, config: dict[str, Any]) -> Tensors:
    """Knows what follows from the token it reads, which it finds by attending to itself alone."""
    head = random_head(config)
    hidden = config["hidden_size"]
    attention = "midlayer.self_attn."
    for name in ("q_proj", "k_proj"):
        weight = torch.zeros_like(head[f"{attention}{name}.weight"])
        weight[:, 0] = 20.0  # the same everywhere: RoPE then tells how far apart two places are
        head[f"{attention}{name}.weight"] = weight
    values = torch.zeros_like(head[f"{attention}v_proj.weight"])
    values[:, :16] = torch.eye(16)
    head[f"{attention}v_proj.weight"] = values
    output = torch.zeros(hidden, hidden)
    output[:8, :8] = output[8:16, 16:24] = 1e5 * torch.eye(8)  # the first of each pair of heads
    head[f"{attention}o_proj.weight"] = output
    head["midlayer.mlp.down_proj.weight"] = torch.zeros_like(head["midlayer.mlp.down_proj.weight"])
    head["norm.weight"] = model["model.norm.weight"]
    first = int(head["d2t"][0])
    head["lm_head.weight"] = model["lm_head.weight"][first : first + config["draft_vocab_size"]]
    return {name: tensor.contiguous() for name, tensor in head.items()}
