"""Owns the decoder: one forward pass, driven by `ModelConfig`, for every supported family.

Llama, Mistral, Qwen2 and Qwen3 differ in biases, QK-norm, tied heads, windows and RoPE scaling
only; each is a field of the config. The pass works on the rows of many sequences at once.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu

from .attention import Plan, attend
from .end_of_turn import EndHead
from .kv_cache import KvPool
from .linear import Linear, MakeLinear, lay_together, make_linear
from .load.loader import TORCH_DTYPES, Checkpoint, ModelConfig, RopeConfig
from .load.packed import read_weight
from .load.quant import join

N_REFINED = 8  # tokens of a row whose logits are computed again where bf16 has rounded them
MAX_AHEAD = 32  # positions past the context that a step computed ahead of its turn may touch

# Whether somebody more urgent waits for the step under way.
Interrupted = Callable[[], bool]


class Abandoned(Exception):
    """A step was given up between two layers; nothing it wrote lies within a resident sequence."""


def rope_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Angle per position of each rotated pair: fp64 [head_dim / 2].

    Source: the Llama 3.1 release notes for "llama3"; linear is position interpolation
    (arXiv:2306.15595).
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequency = 1.0 / rope.theta**exponent
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
        self.weight = weight.to(_residual_dtype(dtype))
        self.eps = torch.tensor(eps, dtype=self.weight.dtype, device=weight.device)
        self.inverse_size, self.dtype = 1 / weight.shape[-1], dtype

    def __call__(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, 2, -1, True, dtype=self.weight.dtype)
        scale = torch.addcmul(self.eps, length, length, value=self.inverse_size).rsqrt_()
        return (x * scale).mul_(self.weight).to(self.dtype)


def _give_way(interrupted: Interrupted | None) -> None:
    if interrupted is not None and interrupted():
        raise Abandoned


def _residual_dtype(dtype: torch.dtype) -> torch.dtype:
    """Residuals and norms are kept in fp32 even where the products are bf16."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


class Layer:
    """The weights of one decoder layer, with q, k, v and gate, up merged."""

    def __init__(
        self, checkpoint: Checkpoint, config: ModelConfig, index: int, quant: str | None,
        dtype: torch.dtype, device: str, make_linear: MakeLinear,
    ) -> None:  # fmt: skip
        prefix = f"model.layers.{index}."
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

        self.window = config.windows[index]
        self.input_norm = norm("input_layernorm", hidden)
        self.post_norm = norm("post_attention_layernorm", hidden)
        attention = [f"self_attn.{name}_proj" for name in "qkv"]
        self.qkv = linear(attention, [heads, kv_heads, kv_heads], hidden, config.qkv_bias)
        self.output = linear(["self_attn.o_proj"], [hidden], heads, config.output_bias)
        self.gate_up = linear(
            ["mlp.gate_proj", "mlp.up_proj"], [inner, inner], hidden, config.mlp_bias
        )
        self.down = linear(["mlp.down_proj"], [hidden], inner, config.mlp_bias)
        self.q_norm = norm("self_attn.q_norm", config.head_dim) if config.qk_norm else None
        self.k_norm = norm("self_attn.k_norm", config.head_dim) if config.qk_norm else None

    def products(self) -> list[Linear]:
        return [self.qkv, self.output, self.gate_up, self.down]


class Decoder:
    """The whole model: token ids in, states out, KV into the pool on the way; logits of states."""

    def __init__(
        self, checkpoint: Checkpoint, config: ModelConfig, *, dtype: str, quant: str | None,
        device: str, context_length: int, make_linear: MakeLinear = make_linear,
        end_head: EndHead | None = None,
    ) -> None:  # fmt: skip
        """end_head: reads the states after staged words. Raises: CheckpointError."""
        self.config, self.device, self.end_head = config, device, end_head
        self.dtype = TORCH_DTYPES[dtype]
        shape = (config.vocab_size, config.hidden_size)
        embedding = checkpoint.tensor("model.embed_tokens.weight", shape)
        self.embedding = embedding.to(device=device, dtype=self.dtype)
        # The head stays at 8 bits where the rest has 4: rounding it costs most.
        head_quant = None if quant is None else "int8"
        head = embedding if config.tied_head else checkpoint.tensor("lm_head.weight", shape)
        if config.tied_head and head_quant is None:
            head = self.embedding  # the same memory, on the device too
        self.head = make_linear(head, None, dtype=self.dtype, quant=head_quant, device=device)
        rounds = head_quant is not None or self.dtype == torch.bfloat16
        self.is_refined = rounds and config.tied_head
        norm = checkpoint.tensor("model.norm.weight", (config.hidden_size,))
        self.norm = Norm(norm.to(device), config.norm_eps, _residual_dtype(self.dtype))
        self.layers = [
            Layer(checkpoint, config, i, quant, self.dtype, device, make_linear)
            for i in range(config.n_layers)
        ]
        lay_together([p for layer in self.layers for p in layer.products()] + [self.head])
        n_positions = context_length + MAX_AHEAD
        self.rope = Rope(config.rope, config.head_dim, n_positions, self.dtype, device)
        self.windows = set(config.windows)

    def make_pool(self, n_blocks: int, kv_format: str = "plain", poison: bool = False) -> KvPool:
        """Memory for the keys and values of this model."""
        config = self.config
        return KvPool(
            n_layers=config.n_layers, n_kv_heads=config.n_kv_heads, head_dim=config.head_dim,
            n_blocks=n_blocks, dtype=self.dtype, device=self.device, kv_format=kv_format,
            poison=poison,
        )  # fmt: skip

    def forward(
        self, tokens: Tensor, positions: "Tensor | slice", plan: Plan, pool: KvPool,
        wanted: "Tensor | slice | None", interrupted: Interrupted | None = None,
    ) -> Tensor | None:  # fmt: skip
        """Extend the sequences of `plan` by `tokens` [rows] at `positions` [rows].

        Returns the states [wanted rows, hidden] after the final norm, None for none: see `logits`.
        interrupted: asked twice a layer and at the end. Raises: Abandoned where it says so.
        """
        cos, sin = self.rope.cos[positions], self.rope.sin[positions]
        x = self.embedding[tokens].to(_residual_dtype(self.dtype))
        for index, layer in enumerate(self.layers):
            _give_way(interrupted)
            queries = self._project(layer, index, layer.input_norm(x), cos, sin, plan, pool)
            x += layer.output(attend(pool, index, plan, queries, layer.window))
            _give_way(interrupted)
            gate, up = layer.gate_up(layer.post_norm(x)).chunk(2, -1)
            x += layer.down(silu(gate).mul_(up))
        if wanted is None:
            return None
        _give_way(interrupted)
        return self.norm(x[wanted])

    def logits(self, states: Tensor) -> Tensor:
        """Of states [rows, hidden]: [rows, vocab], fp32 (fp64 for an fp64 model).

        bf16 has 8 bits: at 16 its numbers lie 0.125 apart, and likely tokens tie. Where the head is
        the embedding, whose rows are at hand, and is itself quantized or in bf16, the likeliest are
        computed again from it, so that however it is rounded likely tokens have the same head.

        Two limits: where a mask or penalty rules all of them out, tokens are chosen as rounded; and
        what ranks further down (`top_k` above 8, log probabilities) mixes both heads.
        """
        logits = self.head(states.to(self.dtype))
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        if self.is_refined:
            likely = logits.topk(min(N_REFINED, logits.shape[1])).indices
            rows = self.embedding[likely].to(logits.dtype)
            logits.scatter_(1, likely, torch.linalg.vecdot(rows, states[:, None]))
        return logits

    def _project(
        self, layer: Layer, index: int, x: Tensor, cos: Tensor, sin: Tensor, plan: Plan,
        pool: KvPool,
    ) -> Tensor:  # fmt: skip
        """Queries [rows, heads, head_dim]; keys and values go into the pool."""
        config = self.config
        n_q, n_kv = config.n_heads, config.n_kv_heads
        qkv = layer.qkv(x).view(x.shape[0], n_q + 2 * n_kv, config.head_dim)
        queries_keys = qkv[:, : n_q + n_kv]
        if layer.q_norm is not None and layer.k_norm is not None:
            queries_keys[:, :n_q] = layer.q_norm(queries_keys[:, :n_q])
            queries_keys[:, n_q:] = layer.k_norm(queries_keys[:, n_q:])
        rotate_(queries_keys, cos, sin)
        pool.write(index, plan.slots, qkv[:, n_q:].unflatten(1, (2, n_kv)))
        return qkv[:, :n_q]
