"""Owns one decoder layer's parts: its weights, its norms, and the angles of its positions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from .attention import Plan
from .kv_cache import KvPool
from .linear import Linear, MakeLinear
from .load.loader import NO_ROPE, Checkpoint, ModelConfig, RopeConfig
from .load.packed import Stored, read_weight
from .load.quant import join, with_rows


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parts of a product: weights by their names, one below the other, and their outputs; then
    the order of all outputs, and what each is times, where it is not as stored.
    """

    names: list[str]
    sizes: list[int]
    n_in: int
    order: list[int] | None
    scale: Tensor | None


PRODUCTS = ("qkv", "output", "gate_up", "down")  # of a layer, in the order of `Layer.products`
NOTHING: Mapping[str, Linear] = {}


def rope_frequencies(rope: RopeConfig, head_dim: int, context_length: int = 0) -> Tensor:
    """Angle per position of each rotated pair: fp64 [head_dim / 2]; 0 of pairs that are not.

    context_length: that is served; beyond the original one "longrope" has other divisors, for all
    positions, so that keys stay as they were written.
    Source: the Llama 3.1 release notes for "llama3"; linear is position interpolation
    (arXiv:2306.15595), yarn arXiv:2309.00071.
    """
    n = rope.rotated or head_dim
    frequency = torch.zeros(head_dim // 2, dtype=torch.float64)
    if rope.kind == NO_ROPE:
        return frequency
    turned = 1.0 / rope.theta ** (torch.arange(0, n, 2, dtype=torch.float64) / n)
    divisors = rope.divisors
    if rope.long_divisors and context_length > rope.original_context:
        divisors = rope.long_divisors
    if divisors:
        turned /= torch.tensor(divisors, dtype=torch.float64)
    if rope.kind == "linear":
        turned /= rope.factor
    if rope.kind == "llama3":
        turns = rope.original_context * turned / (2 * math.pi)  # over the trained context
        span = rope.high_freq_factor - rope.low_freq_factor
        smooth = ((turns - rope.low_freq_factor) / span).clamp(0, 1)
        turned = smooth * turned + (1 - smooth) * turned / rope.factor
    if rope.kind == "yarn":
        ramp = _yarn_ramp(rope, n)
        turned = turned / rope.factor * ramp + turned * (1 - ramp)
    frequency[: n // 2] = turned
    return frequency


def _yarn_ramp(rope: RopeConfig, n: int) -> Tensor:
    """How far each pair is interpolated, 0 to 1: fp64 [n / 2]."""

    def pair_of(n_turns: float) -> float:  # that turns so often over the trained context
        angle = rope.original_context / (n_turns * 2 * math.pi)
        return n * math.log(angle) / (2 * math.log(rope.theta))

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncates:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n - 1)
    span = high - low if high != low else 0.001
    return ((torch.arange(n // 2, dtype=torch.float64) - low) / span).clamp(0, 1)


def head_order(rope: RopeConfig, head_dim: int) -> list[int] | None:
    """Return the order of a head's entries, so that halves are partners where only the first
    `rotated` are turned.

    None where they are. Queries and keys in the same order have the same products.
    """
    half, turned = head_dim // 2, rope.rotated // 2
    if not turned:
        return None
    rest = list(range(2 * turned, head_dim))
    n_first = half - turned
    return [
        *range(turned), *rest[:n_first], *range(turned, 2 * turned), *rest[n_first:],
    ]  # fmt: skip


class Rope:
    """Tables of the rotary embedding for every position of the context."""

    def __init__(
        self, rope: RopeConfig, head_dim: int, n_positions: int, dtype: torch.dtype, device: str,
        context_length: int = 0,
    ) -> None:  # fmt: skip
        frequencies = rope_frequencies(rope, head_dim, context_length)
        angles = torch.outer(torch.arange(n_positions, dtype=torch.float64), frequencies)
        scale = torch.where(frequencies > 0, rope.scale, 1.0)
        cos, sin = angles.cos() * scale, angles.sin() * scale
        # The first half of a head takes -sin of its partner, the second half +sin.
        self.cos = torch.cat((cos, cos), -1).to(device=device, dtype=dtype)[:, None]
        self.sin = torch.cat((-sin, sin), -1).to(device=device, dtype=dtype)[:, None]


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate in place; x: [rows, heads, head_dim] with halves as partners (the Hugging Face
    layout).
    """
    torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin, out=x)


def _order_of_heads(config: ModelConfig, order: list[int] | None) -> list[int] | None:
    """The order of all outputs of the product for queries, keys and values."""
    if order is None:
        return None
    n_turned, n = config.n_heads + config.n_kv_heads, config.head_dim
    whole = [head * n + entry for head in range(n_turned) for entry in order]
    return whole + list(range(n_turned * n, (n_turned + config.n_kv_heads) * n))


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
        n_inputs: int | None = None, made: Mapping[str, Linear] = NOTHING,
    ) -> None:  # fmt: skip
        """prefix: of its tensors' names. n_inputs: of attention, where not the hidden size. made:
        products by prefix and one of `PRODUCTS`, where they were made before.
        """
        hidden, heads = config.hidden_size, config.n_heads * config.head_dim
        kv_heads, inner = config.n_kv_heads * config.head_dim, config.intermediate_size

        def linear(
            own: str, names: list[str], sizes: list[int], n_in: int, bias: bool,
            order: list[int] | None = None, scale: Tensor | None = None,
        ) -> Linear:  # fmt: skip
            """own: of `PRODUCTS`. order, scale: of the outputs, where they are not as stored."""
            whole = [f"{prefix}{name}.weight" for name in names]
            self.recipes[own] = Recipe(whole, sizes, n_in, order, scale)
            if prefix + own in made:
                return made[prefix + own]
            weights = [
                read_weight(checkpoint, prefix + name, (size, n_in), config.quantization, quant)
                for name, size in zip(names, sizes, strict=True)
            ]
            biases = [
                checkpoint.tensor(f"{prefix}{name}.bias", (size,))
                for name, size in zip(names, sizes, strict=True)
                if bias
            ]
            weight: Stored = with_rows(join(weights), order, scale)
            own_bias = None
            if bias:
                own_bias = torch.cat(biases)
                own_bias = own_bias if order is None else own_bias[order]
                own_bias = own_bias if scale is None else own_bias.float() * scale
            return make_linear(weight, own_bias, dtype=dtype, quant=quant, device=device)

        def norm(name: str, size: int, order: list[int] | None = None, by: float = 1.0) -> Norm:
            weight = checkpoint.tensor(f"{prefix}{name}.weight", (size,)).to(device)
            if config.norms_from_one:
                weight = weight.float() + 1
            if order is not None or by != 1:
                weight = (weight if order is None else weight[order]).float() * by
            return Norm(weight, config.norm_eps, dtype)

        def fused(name: str, parts: list[str], sizes: list[int]) -> tuple[list[str], list[int]]:
            return ([name], [sum(sizes)]) if config.is_fused else (parts, sizes)

        self.recipes = dict[str, Recipe]()
        self.window, self.n_heads, self.n_kv_heads = window, config.n_heads, config.n_kv_heads
        self.activation = config.activation
        after = ("post_attention_layernorm", "post_feedforward_layernorm")
        self.output_norm = norm(after[0], hidden) if config.is_sandwiched else None
        self.down_norm = norm(after[1], hidden) if config.is_sandwiched else None
        self.input_norm = norm("input_layernorm", hidden)
        before_mlp = "pre_feedforward_layernorm" if config.is_sandwiched else after[0]
        self.post_norm = norm(before_mlp, hidden)
        names, sizes = fused(
            "self_attn.qkv_proj", [f"self_attn.{name}_proj" for name in "qkv"],
            [heads, kv_heads, kv_heads],
        )  # fmt: skip
        # Attention divides by the root of head_dim: whatever else is asked goes into the queries.
        by = config.attention_scale * config.head_dim**0.5 if config.attention_scale else 1.0
        is_scaled = by != 1 and not config.qk_norm
        scale = torch.ones(heads + 2 * kv_heads)
        scale[:heads] = by
        order = head_order(config.rope, config.head_dim)
        self.qkv = linear(
            "qkv", names, sizes, n_inputs or hidden, config.qkv_bias,
            _order_of_heads(config, order), scale if is_scaled else None,
        )  # fmt: skip
        residual = torch.full((hidden,), config.residual_scale)
        scaled = None if config.residual_scale == 1 else residual
        self.output = linear(
            "output", ["self_attn.o_proj"], [hidden], heads, config.output_bias, scale=scaled
        )
        names, sizes = fused("mlp.gate_up_proj", ["mlp.gate_proj", "mlp.up_proj"], [inner, inner])
        self.gate_up = linear("gate_up", names, sizes, hidden, config.mlp_bias)
        self.down = linear(
            "down", ["mlp.down_proj"], [hidden], inner, config.mlp_bias, scale=scaled
        )
        self.q_norm = self.k_norm = None
        if config.qk_norm:
            self.q_norm = norm("self_attn.q_norm", config.head_dim, order, by)
            self.k_norm = norm("self_attn.k_norm", config.head_dim, order)

    def activate_(self, gate: Tensor) -> Tensor:
        return silu(gate) if self.activation == "silu" else gelu(gate, approximate="tanh")

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
