"""The model that is trained: a Llama decoder in plain torch, and how it is saved.

Owns the architecture in its training form (packed rows, document mask, explicit positions) and a
small batched greedy decoder for evaluation. Parameter names are those of Hugging Face's
`LlamaForCausalLM`, so that saving is a plain dump of the state dict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


# Scales of the initial weights; see `AgentModel._initialize` and `prepare_copying`.
EMBEDDING_STD = 0.5
FINAL_NORM_GAIN = 0.05
PREVIOUS_TOKEN_SCORE = 60.0  # before the softmax, at distance one
MATCH_GAIN = 3.0
COPY_GAIN = 6.0

SIZES: dict[str, AgentConfig] = {
    "target": AgentConfig(),
    "draft": AgentConfig(intermediate_size=320, n_layers=3),  # as wide as its target: see `prune`
    "tiny": AgentConfig(hidden_size=64, intermediate_size=128, n_layers=4, n_heads=4, n_kv_heads=2),
    "tiny_draft": AgentConfig(
        hidden_size=64, intermediate_size=48, n_layers=2, n_heads=4, n_kv_heads=2
    ),
}


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
        mask: Tensor | None,
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
        if mask is None:
            if q.is_cpu:  # torch's bf16 kernel for CPUs is slower
                q, k, v = q.float(), k.float(), v.float()
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True).to(x.dtype)
        else:
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
        mask: Tensor | None,
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

    @torch.no_grad()
    def _initialize(self) -> None:
        """Wide embeddings, silent output projections, and the first two layers ready to copy.

        The residual stream starts as the token itself, large enough that no layer drowns it; each
        projection back into it starts at zero, so that a layer begins as the identity.
        """
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                nn.init.zeros_(parameter)
            elif "embed_tokens" in name:
                nn.init.normal_(parameter, std=EMBEDDING_STD)
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        nn.init.constant_(self.model.norm.weight, FINAL_NORM_GAIN)
        if self.config.n_layers > 1 and self.config.hidden_size > 2 * self.config.head_dim:
            prepare_copying(self)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return the final hidden states [rows, tokens, hidden]; see `logits`.

        mask: bool [rows or 1, 1, tokens, cached + tokens], True where attention is allowed; None:
        each row is one conversation, without a cache.
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


@torch.no_grad()
def prepare_copying(model: AgentModel) -> None:
    """Start the first two layers as an induction circuit: find what followed this token, say it.

    Answers from a prompt are copies. Left to chance the two heads that copying needs form after
    millions of tokens; here they are written down and training only refines them.
    Layer 0, head 0 attends to the previous token by rotary phase and writes it into a free
    subspace. Layer 1 compares the current token with that subspace in the slowly turning rotary
    dimensions and writes the token it finds.
    Source: Olsson et al., In-context Learning and Induction Heads, 2022, for the circuit.
    """
    config = model.config
    hidden, dim, half = config.hidden_size, config.head_dim, config.head_dim // 2
    basis, _ = torch.linalg.qr(torch.randn(hidden, hidden))
    constant, token, place, spoken = basis.T.split([1, dim, dim, hidden - 2 * dim - 1])
    spoken = torch.cat((token, spoken))[torch.randperm(hidden - dim - 1)[:dim]]
    # A direction all tokens share gives heads something that does not depend on content.
    model.model.embed_tokens.weight.add_(constant * EMBEDDING_STD * hidden**0.5)

    first, second = model.model.layers[0].self_attn, model.model.layers[1].self_attn
    sharp = min(12, half)  # the fastest pairs tell neighbours apart
    angle = model.frequencies[:sharp]
    query, key = torch.zeros(dim), torch.zeros(dim)
    query[:sharp] = 1.0
    key[:sharp], key[half : half + sharp] = angle.cos(), angle.sin()
    gain = (PREVIOUS_TOKEN_SCORE * dim**0.5 / sharp) ** 0.5 / (hidden / 2) ** 0.5
    first.q_proj.weight[:dim] = gain * query[:, None] * constant
    first.k_proj.weight[:dim] = gain * key[:, None] * constant
    first.v_proj.weight[:dim] = token
    first.o_proj.weight[:, :dim] = 1.5 * EMBEDDING_STD * place.T

    slow = half - max(1, half // 3)
    dims = torch.cat((torch.arange(slow, half), torch.arange(slow, half) + half))
    group = config.n_heads // config.n_kv_heads
    for head in range(config.n_kv_heads):
        part = torch.arange(len(dims)) + head * len(dims)
        part = part % dim
        query_rows, key_rows = dims + head * group * dim, dims + head * dim
        second.q_proj.weight[query_rows] = MATCH_GAIN * token[part]
        second.k_proj.weight[key_rows] = MATCH_GAIN * place[part]
        second.v_proj.weight[head * dim : (head + 1) * dim] = spoken
        columns = slice(head * group * dim, (head * group + 1) * dim)
        second.o_proj.weight[:, columns] = COPY_GAIN * EMBEDDING_STD * spoken.T


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

    @property
    def n_tokens(self) -> int:
        return self.keys[0].shape[2] if self.keys and self.keys[0] is not None else 0

    def first(self, n_tokens: int) -> KeyValueCache:
        """The cache of the first tokens alone."""
        cut = KeyValueCache(len(self.keys))
        cut.keys = [k if k is None else k[:, :, :n_tokens] for k in self.keys]
        cut.values = [v if v is None else v[:, :, :n_tokens] for v in self.values]
        return cut

    @classmethod
    def padded(cls, caches: Sequence[KeyValueCache], n_tokens: int) -> KeyValueCache:
        """One cache of a row each, filled up to `n_tokens` with zeros on the left."""
        joined = cls(len(caches[0].keys))

        def rows(parts: list[Tensor | None]) -> Tensor:
            found = [part for part in parts if part is not None]
            return torch.cat([F.pad(p, (0, 0, n_tokens - p.shape[2], 0)) for p in found])

        for layer in range(len(joined.keys)):
            joined.keys[layer] = rows([cache.keys[layer] for cache in caches])
            joined.values[layer] = rows([cache.values[layer] for cache in caches])
        return joined


def document_mask(documents: Tensor) -> Tensor:
    """Causal mask that stays inside a document. documents: [rows, tokens] ids -> bool mask."""
    n_tokens = documents.shape[1]
    causal = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=documents.device).tril()
    return ((documents[:, :, None] == documents[:, None, :]) & causal)[:, None]
