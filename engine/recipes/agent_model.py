"""The model that is trained: a Llama decoder in plain torch, and how it is saved.

Owns the architecture in its training form (packed rows, document mask, explicit positions) and a
small batched greedy decoder for evaluation. Parameter names are those of Hugging Face's
`LlamaForCausalLM`, so that saving is a plain dump of the state dict.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Sizes of a Llama decoder with tied embeddings and grouped-query attention."""

    vocab_size: int = 4096
    hidden_size: int = 384
    intermediate_size: int = 896
    n_layers: int = 8
    n_heads: int = 6
    n_kv_heads: int = 2
    max_positions: int = 2048
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.n_heads


SIZES: dict[str, AgentConfig] = {
    "target": AgentConfig(),
    "draft": AgentConfig(
        hidden_size=192, intermediate_size=512, n_layers=3, n_heads=3, n_kv_heads=1
    ),
    "tiny": AgentConfig(hidden_size=64, intermediate_size=128, n_layers=2, n_heads=2, n_kv_heads=1),
}


def config_to_dict(config: AgentConfig) -> dict[str, float | int]:
    """Return the config as plain numbers, as it is kept in a checkpoint."""
    return asdict(config)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    def __init__(self, config: AgentConfig) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        self.n_heads, self.n_kv_heads, self.head_dim = config.n_heads, config.n_kv_heads, dim
        self.q_proj = nn.Linear(hidden, config.n_heads * dim, bias=False)
        self.k_proj = nn.Linear(hidden, config.n_kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(hidden, config.n_kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.n_heads * dim, hidden, bias=False)

    def forward(
        self,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        mask: Tensor,
        cache: KeyValueCache | None,
        layer: int,
    ) -> Tensor:
        n_rows, n_tokens, _ = x.shape
        q = self.q_proj(x).view(n_rows, n_tokens, self.n_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(n_rows, n_tokens, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(n_rows, n_tokens, self.n_kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, rope), rotate(k, rope)
        if cache is not None:
            k, v = cache.append(layer, k, v)
        groups = self.n_heads // self.n_kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).reshape(n_rows, n_tokens, -1))


class MLP(nn.Module):
    def __init__(self, config: AgentConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: AgentConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = MLP(config)

    def forward(
        self,
        x: Tensor,
        rope: tuple[Tensor, Tensor],
        mask: Tensor,
        cache: KeyValueCache | None,
        layer: int,
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, mask, cache, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class Backbone(nn.Module):
    def __init__(self, config: AgentConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class AgentModel(nn.Module):
    """A Llama decoder. Shapes: tokens and positions [rows, tokens] int64; logits float."""

    def __init__(self, config: AgentConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        half = config.head_dim // 2
        frequencies = config.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self._initialize()

    def _initialize(self) -> None:
        """Small normal weights; projections into the residual stream start at zero.

        Zero output projections let each layer begin as the identity, which helps short runs.
        """
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(parameter)
            elif "embed_tokens" in name:
                nn.init.normal_(parameter, std=0.02)
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return the final hidden states [rows, tokens, hidden]; see `logits`.

        mask: bool [rows or 1, 1, tokens, cached + tokens], True where attention is allowed.
        """
        angles = positions[:, None, :, None].float() * self.frequencies
        x = self.model.embed_tokens(tokens)
        if torch.is_autocast_enabled(x.device.type):
            # Keep the residual stream in bf16: the row-wise work is bound by memory.
            x = x.to(torch.bfloat16)
        rope = (angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        for index, layer in enumerate(self.model.layers):
            x = layer(x, rope, mask, cache, index)
        return self.model.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype))

    def n_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary positions in Hugging Face's half-split layout. x: [rows, heads, tokens, dim]."""
    cos, sin = rope
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class KeyValueCache:
    """Keys and values of every layer for a batch that is decoded together."""

    def __init__(self, n_layers: int) -> None:
        self.keys: list[Tensor | None] = [None] * n_layers
        self.values: list[Tensor | None] = [None] * n_layers

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        old_k, old_v = self.keys[layer], self.values[layer]
        if old_k is not None and old_v is not None:
            k, v = torch.cat((old_k, k), dim=2), torch.cat((old_v, v), dim=2)
        self.keys[layer], self.values[layer] = k, v
        return k, v


def document_mask(documents: Tensor) -> Tensor:
    """Causal mask that stays inside a document. documents: [rows, tokens] ids -> bool mask."""
    n_tokens = documents.shape[1]
    causal = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=documents.device).tril()
    return ((documents[:, :, None] == documents[:, None, :]) & causal)[:, None]
