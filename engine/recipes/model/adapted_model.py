"""A frozen decoder with adapters, as it is trained: rows of conversations that share beginnings.

Owns the forward in bf16 and the hand-written gradients of what torch does slowly on a CPU. Its
adapters are merged into the weights once a step (`merge`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .agent_model import AgentModel, Layer
from .lora import ALPHA, RANK, AdaptedLinear
from .shared_attention import Segment, shared_attention


class _Norm(torch.autograd.Function):
    """RMS norm; the scale is frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, eps: float) -> Tensor:
        wide = x.float()
        root = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, scale, root)
        return (wide * root).to(x.dtype) * scale

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, root = ctx.saved_tensors
        unit = x.float() * root
        wide = (dy * scale).float()
        wide.sub_(unit.mul_((wide * unit).mean(-1, keepdim=True))).mul_(root)
        return wide.to(x.dtype), None, None


class _GatedUnit(torch.autograd.Function):
    """silu(gate) * up of [tokens, gate and up]."""

    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        ctx.save_for_backward(both)
        gate, up = both.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (both,) = ctx.saved_tensors
        gate, up = both.chunk(2, dim=-1)
        d_both = torch.empty_like(both)
        d_gate, d_up = d_both.chunk(2, dim=-1)
        torch.mul(F.silu(gate), dy, out=d_up)
        d_gate.copy_(torch.ops.aten.silu_backward(dy * up, gate))
        return d_both


class _Rotation(torch.autograd.Function):
    """Rotary positions of [tokens, heads, dim] in Hugging Face's half-split layout."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _rotated(dy, cos, -sin), None, None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    out = torch.empty_like(x)
    half = first.shape[-1]
    torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out[..., half:]).addcmul_(first, sin)
    return out


class AdaptedLayer(nn.Module):
    """One layer of a frozen decoder: its seven linear layers in four products."""

    def __init__(self, layer: Layer, prefix: str, rank: int, alpha: float) -> None:
        super().__init__()
        at, mlp = layer.self_attn, layer.mlp
        self.n_heads, self.n_groups, self.dim = at.n_heads, at.n_kv_heads, at.head_dim
        self.eps = layer.input_layernorm.eps

        def adapted(of: nn.Module, path: str, *names: str) -> AdaptedLinear:
            linears = [(f"{prefix}.{path}.{name}", getattr(of, name)) for name in names]
            return AdaptedLinear(linears, rank, alpha)

        self.qkv = adapted(at, "self_attn", "q_proj", "k_proj", "v_proj")
        self.o = adapted(at, "self_attn", "o_proj")
        self.gate_up = adapted(mlp, "mlp", "gate_proj", "up_proj")
        self.down = adapted(mlp, "mlp", "down_proj")
        for name in ("input_layernorm", "post_attention_layernorm"):
            scale = getattr(layer, name).weight.detach().to(torch.bfloat16)
            self.register_buffer(name, scale, persistent=False)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], segments: Sequence[Segment]
    ) -> Tensor:
        n_tokens, n_rotated = len(x), self.n_heads + self.n_groups
        heads = self.qkv(_Norm.apply(x, self.input_layernorm, self.eps))
        heads = heads.view(n_tokens, n_rotated + self.n_groups, self.dim)
        rotated = _Rotation.apply(heads[:, :n_rotated], *rope).transpose(0, 1)
        mixed = shared_attention(
            rotated[: self.n_heads].contiguous(),
            rotated[self.n_heads :].contiguous(),
            heads[:, n_rotated:].transpose(0, 1).contiguous(),
            segments,
        )
        x = x + self.o(mixed.transpose(0, 1).reshape(n_tokens, -1))
        unit = self.gate_up(_Norm.apply(x, self.post_attention_layernorm, self.eps))
        return x + self.down(_GatedUnit.apply(unit))


class AdaptedModel(nn.Module):
    """The decoder of a base model, its parameters those of the adapters alone."""

    def __init__(self, base: AgentModel, rank: int = RANK, alpha: float = ALPHA) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            AdaptedLayer(layer, f"model.layers.{index}", rank, alpha)
            for index, layer in enumerate(base.model.layers)
        )
        self.eps = base.model.norm.eps
        for name, tensor in (
            ("embedding", base.model.embed_tokens.weight),
            ("norm", base.model.norm.weight),
            ("frequencies", base.frequencies),
        ):
            wanted = torch.float32 if name == "frequencies" else torch.bfloat16
            self.register_buffer(name, tensor.detach().to(wanted), persistent=False)

    @property
    def adapters(self) -> list[AdaptedLinear]:
        return [module for module in self.modules() if isinstance(module, AdaptedLinear)]

    def merge(self) -> None:
        """Bring the weights up to the adapters' present values."""
        for adapter in self.adapters:
            adapter.merge()

    def forward(self, tokens: Tensor, positions: Tensor, segments: Sequence[Segment]) -> Tensor:
        """Final hidden states [tokens, hidden] of one row; see `logits`."""
        angles = positions[:, None, None].float() * self.frequencies
        x = F.embedding(tokens, self.embedding)
        rope = (angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        for layer in self.layers:
            x = layer(x, rope, segments)
        normed: Tensor = _Norm.apply(x, self.norm, self.eps)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.embedding.t()
