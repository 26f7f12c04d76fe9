"""Depth for a trained model: two layers whose heads start with a purpose.

`agent_model.prepare_copying` lets a fresh model continue after the last token it has seen before.
Lists of prices need more: after "latte $" the digit to copy is the one that followed "latte $",
not the one behind some other "$". `insert_matching_layers` adds a layer whose heads look two and
three tokens back, and one that compares the last tokens with those before every earlier token.
Training has to sharpen the comparison; in a trained model other features drown the tokens.
"""

from __future__ import annotations

import re
from dataclasses import replace

import torch
from torch import Tensor

from .agent_model import AgentConfig, AgentModel, document_mask

N_INSERTED = 2
_SHARP_PAIRS = 12  # fast rotary pairs that tell neighbouring positions apart
_SLOW_FROM = 21 / 32  # share of the pairs that turn too fast to compare content over a prompt
_POSITION_SCORE = 60.0
_MATCH_SCORE = 10.0


@torch.no_grad()
def insert_matching_layers(
    model: AgentModel, tokens: Tensor, documents: Tensor, write_gain: float, copy_gain: float
) -> AgentModel:
    """A model with two more layers, behind the first and behind the second.

    tokens, documents: [rows, tokens], a sample on which scales are measured.
    write_gain, copy_gain: size of what the new layers write, against the residual stream's.
    """
    half = model.config.n_layers
    grown = AgentModel(replace(model.config, n_layers=half + N_INSERTED))
    grown.load_state_dict(_moved(model.state_dict(), grown.state_dict()))
    residual = _residuals(model, tokens, documents)
    _look_back(model, grown, residual[1], write_gain)
    residual = _residuals(grown, tokens, documents)
    _match_and_copy(model, grown, residual[3], copy_gain)
    return grown


@torch.no_grad()
def insert_silent_layers(model: AgentModel) -> AgentModel:
    """A model with two more layers that compute the same: copies whose outputs are zeroed.

    One goes behind the middle layer, one behind the last but one. Copies rather than fresh
    weights: their queries, keys and gates already read features that exist.
    Source: net2net's identity layers (Chen et al., 2016, arXiv:1511.05641).
    """
    depth = model.config.n_layers
    sources = list(range(depth))
    for after in (depth - 2, depth // 2 - 1):
        sources.insert(after + 1, after)
    grown = AgentModel(replace(model.config, n_layers=depth + N_INSERTED))
    kept = {n: t for n, t in model.state_dict().items() if ".layers." not in n}
    grown.load_state_dict(kept, strict=False)
    for index, source in enumerate(sources):
        layer = grown.model.layers[index]
        layer.load_state_dict(model.model.layers[source].state_dict())
        if index and source == sources[index - 1]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return grown


def _moved(weights: dict[str, Tensor], fresh: dict[str, Tensor]) -> dict[str, Tensor]:
    """Old layers 0, 1, 2.. become 0, 2, 4, 5..; the new ones start silent."""
    moved = {name: tensor.clone() for name, tensor in fresh.items()}
    for name, tensor in weights.items():
        found = re.match(r"(model\.layers\.)(\d+)(\..*)", name)
        if found is None:
            moved[name] = tensor.clone()
        else:
            old = int(found[2])
            moved[f"{found[1]}{old + min(old, N_INSERTED)}{found[3]}"] = tensor.clone()
    for index in (1, 3):
        for part in ("self_attn.o_proj", "mlp.down_proj"):
            moved[f"model.layers.{index}.{part}.weight"].zero_()
    return moved


def _residuals(model: AgentModel, tokens: Tensor, documents: Tensor) -> list[Tensor]:
    """The residual stream before each layer, one row per real token."""
    found: list[Tensor] = []
    real = documents.flatten() >= 0
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, inputs: found.append(inputs[0].flatten(0, 1)[real].clone())
        )
        for layer in model.model.layers
    ]
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    model(tokens, positions, document_mask(documents))
    for hook in hooks:
        hook.remove()
    return found


def _normalized(x: Tensor) -> Tensor:
    return x / x.pow(2).mean(1, keepdim=True).sqrt()


def _centered(reader: Tensor, x: Tensor) -> Tensor:
    """A reader [codes, hidden] that ignores the mean of x and gives codes of unit variance."""
    mean = x.mean(0)
    reader = reader - (reader @ mean)[:, None] * mean / mean.dot(mean)
    return reader / (x @ reader.T).std(0).clamp(min=1e-6)[:, None]


def _token_reader(model: AgentModel) -> Tensor:
    """Return what the first layer's value projection knows of the current token."""
    first = model.model.layers[0]
    dim = model.config.head_dim
    return first.self_attn.v_proj.weight[:dim] * first.input_layernorm.weight


def _look_back(model: AgentModel, grown: AgentModel, residual: Tensor, gain: float) -> None:
    """New layer 1: heads that write the token two and three places back."""
    config: AgentConfig = grown.config
    dim, half = config.head_dim, config.head_dim // 2
    x = _normalized(residual)
    mean = x.mean(0)
    size = float(mean.norm())
    layer = grown.model.layers[1].self_attn
    sharp = min(_SHARP_PAIRS, half)
    score = (_POSITION_SCORE * dim**0.5 / sharp) ** 0.5 / size
    angle = grown.frequencies[:sharp]
    key = torch.zeros(dim)
    key[:sharp] = 1.0
    layer.k_proj.weight[:dim] = score * key[:, None] * mean / size
    layer.v_proj.weight[:dim] = _centered(_token_reader(model), x)
    free, _ = torch.linalg.qr(torch.randn(config.hidden_size, 2 * dim))
    scale = gain * float(residual.norm(dim=1).mean()) / dim**0.5
    for head, distance in ((0, 2), (1, 3)):
        query = torch.zeros(dim)
        query[:sharp] = (angle * distance).cos()
        query[half : half + sharp] = -(angle * distance).sin()
        rows = slice(head * dim, (head + 1) * dim)
        layer.q_proj.weight[rows] = score * query[:, None] * mean / size
        layer.o_proj.weight[:, rows] = scale * free[:, rows]


def _match_and_copy(model: AgentModel, grown: AgentModel, residual: Tensor, gain: float) -> None:
    """New layer 3: compares the last two (three) tokens with those before every earlier one."""
    config: AgentConfig = grown.config
    dim, half = config.head_dim, config.head_dim // 2
    x = _normalized(residual)
    previous = torch.linalg.pinv(model.model.layers[0].self_attn.o_proj.weight[:, :dim])
    back = grown.model.layers[1].self_attn.o_proj.weight
    two, three = torch.linalg.pinv(back[:, :dim]), torch.linalg.pinv(back[:, dim : 2 * dim])
    codes = [_centered(reader, x) for reader in (_token_reader(model), previous, two, three)]
    slow = torch.arange(int(half * _SLOW_FROM), half)
    dims = torch.cat((slow, slow + half))
    layer = grown.model.layers[3].self_attn
    group = config.n_heads // config.n_kv_heads
    mix, _ = torch.linalg.qr(torch.randn(dim, dim))
    spoken, _ = torch.linalg.qr(torch.randn(config.hidden_size, config.n_kv_heads * dim))
    scale = gain * float(residual.norm(dim=1).mean()) / dim**0.5
    for head in range(config.n_kv_heads):
        n_tokens = 2 + head % 2
        shares = torch.tensor_split(dims, n_tokens)
        strength = (_MATCH_SCORE * dim**0.5 / len(dims)) ** 0.5
        first_row = head * group * dim
        layer.q_proj.weight[first_row : first_row + dim] = 0.0
        layer.k_proj.weight[head * dim : (head + 1) * dim] = 0.0
        at = 0
        for back_by, rows in enumerate(shares):
            part = mix[at : at + len(rows)]
            at += len(rows)
            layer.q_proj.weight[first_row + rows] = strength * part @ codes[back_by]
            layer.k_proj.weight[head * dim + rows] = strength * part @ codes[back_by + 1]
        voice = spoken[:, head * dim : (head + 1) * dim]
        layer.v_proj.weight[head * dim : (head + 1) * dim] = _centered(voice.T, x)
        layer.o_proj.weight[:, first_row : first_row + dim] = scale * voice
