"""Owns one decoder layer's parts: its weights, its norms, and the angles of its positions."""

import math

import torch
from torch import Tensor

from .attention import Plan
from .kv_cache import KvPool
from .linear import Linear, MakeLinear
from .load.loader import Checkpoint, ModelConfig, RopeConfig
from .load.packed import read_weight
from .load.quant import join


def rope_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Angle per position of each rotated pair: fp64 [head_dim / 2].

    Source: the Llama 3.1 release notes for "llama3"; linear is position interpolation
    (arXiv:2306.15595).
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequency = 1.0 / rope.theta**exponent
    if rope.divisors:
        frequency /= torch.tensor(rope.divisors, dtype=torch.float64)
    if rope.kind == "linear":
        return frequency / rope.factor
    if rope.kind == "llama3":
        turns = rope.original_context * frequency / (2 * math.pi)  # over the trained context
        span = rope.high_freq_factor - rope.low_freq_factor
        smooth = ((turns - rope.low_freq_factor) / span).clamp(0, 1)
        return smooth * frequency + (1 - smooth) * frequency / rope.factor
    return frequency


class Rope:
    """Tables of the rotary embedding for every position of the context."""

    def __init__(
        self, rope: RopeConfig, head_dim: int, n_positions: int, dtype: torch.dtype, device: str
    ) -> None:
        angles = torch.outer(
            torch.arange(n_positions, dtype=torch.float64), rope_frequencies(rope, head_dim)
        )
        cos, sin = angles.cos(), angles.sin()
        # The first half of a head takes -sin of its partner, the second half +sin.
        self.cos = torch.cat((cos, cos), -1).to(device=device, dtype=dtype)[:, None]
        self.sin = torch.cat((-sin, sin), -1).to(device=device, dtype=dtype)[:, None]


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """In place; x: [rows, heads, head_dim] with halves as partners (the Hugging Face layout)."""
    torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin, out=x)


class Norm:
    """RMSNorm over the last dimension, from the residual's precision into `dtype`.

    Five small operations; torch's own takes a dozen on a CPU and thrice the time for one row.
    """

    def __init__(self, weight: Tensor, eps: float, dtype: torch.dtype) -> None:
        self.weight = weight.to(residual_dtype(dtype))
        self.eps = torch.tensor(eps, dtype=self.weight.dtype, device=weight.device)
        self.inverse_size, self.dtype = 1 / weight.shape[-1], dtype

    def __call__(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, 2, -1, True, dtype=self.weight.dtype)
        scale = torch.addcmul(self.eps, length, length, value=self.inverse_size).rsqrt_()
        return (x * scale).mul_(self.weight).to(self.dtype)


def residual_dtype(dtype: torch.dtype) -> torch.dtype:
    """Residuals and norms are kept in fp32 even where the products are bf16."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


class Layer:
    """The weights of one decoder layer, with q, k, v and gate, up merged."""

    def __init__(
        self, checkpoint: Checkpoint, config: ModelConfig, prefix: str, quant: str | None,
        dtype: torch.dtype, device: str, make_linear: MakeLinear, *, window: int = 0,
        n_inputs: int | None = None,
    ) -> None:  # fmt: skip
        """prefix: of its tensors' names. n_inputs: of attention, where not the hidden size."""
        hidden, heads = config.hidden_size, config.n_heads * config.head_dim
        kv_heads, inner = config.n_kv_heads * config.head_dim, config.intermediate_size

        def linear(names: list[str], sizes: list[int], n_in: int, bias: bool) -> Linear:
            weights = [
                read_weight(checkpoint, prefix + name, (size, n_in), config.quantization, quant)
                for name, size in zip(names, sizes, strict=True)
            ]
            biases = [
                checkpoint.tensor(f"{prefix}{name}.bias", (size,))
                for name, size in zip(names, sizes, strict=True)
                if bias
            ]
            return make_linear(
                join(weights), torch.cat(biases) if bias else None,
                dtype=dtype, quant=quant, device=device,
            )  # fmt: skip

        def norm(name: str, size: int) -> Norm:
            weight = checkpoint.tensor(f"{prefix}{name}.weight", (size,))
            return Norm(weight.to(device), config.norm_eps, dtype)

        self.window, self.n_heads, self.n_kv_heads = window, config.n_heads, config.n_kv_heads
        self.input_norm = norm("input_layernorm", hidden)
        self.post_norm = norm("post_attention_layernorm", hidden)
        attention = [f"self_attn.{name}_proj" for name in "qkv"]
        n_in = n_inputs or hidden
        self.qkv = linear(attention, [heads, kv_heads, kv_heads], n_in, config.qkv_bias)
        self.output = linear(["self_attn.o_proj"], [hidden], heads, config.output_bias)
        self.gate_up = linear(
            ["mlp.gate_proj", "mlp.up_proj"], [inner, inner], hidden, config.mlp_bias
        )
        self.down = linear(["mlp.down_proj"], [hidden], inner, config.mlp_bias)
        self.q_norm = norm("self_attn.q_norm", config.head_dim) if config.qk_norm else None
        self.k_norm = norm("self_attn.k_norm", config.head_dim) if config.qk_norm else None

    def products(self) -> list[Linear]:
        return [self.qkv, self.output, self.gate_up, self.down]

    def project(
        self, index: int, x: Tensor, cos: Tensor, sin: Tensor, plan: Plan, pool: KvPool
    ) -> Tensor:
        """Queries [rows, heads, head_dim]; keys and values go into the pool's layer `index`."""
        n_q, n_kv = self.n_heads, self.n_kv_heads
        qkv = self.qkv(x).view(x.shape[0], n_q + 2 * n_kv, -1)
        queries_keys = qkv[:, : n_q + n_kv]
        if self.q_norm is not None and self.k_norm is not None:
            queries_keys[:, :n_q] = self.q_norm(queries_keys[:, :n_q])
            queries_keys[:, n_q:] = self.k_norm(queries_keys[:, n_q:])
        rotate_(queries_keys, cos, sin)
        pool.write(index, plan.slots, qkv[:, n_q:].unflatten(1, (2, n_kv)))
        return qkv[:, :n_q]
