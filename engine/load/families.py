"""Owns what sets each model family apart from plain Llama, as one table.

The names are the classes of config.json. Whatever a row says is folded into weights or is a field
of `ModelConfig`; no family has code of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Family:
    """A row of the table.

    qkv_bias: None where `attention_bias` of config.json says so. is_fused: q, k, v and gate, up are
    stored as one matrix each. is_sandwiched: attention and MLP have norms behind them too.
    norms_from_one: norms' weights are stored less one. words: of config.json that only families
    like this one obey. defaults: of words that published files leave out.
    """

    qkv_bias: bool | None = None
    qk_norm: bool = False
    is_fused: bool = False
    is_sandwiched: bool = False
    norms_from_one: bool = False
    activation: str = "silu"
    words: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)


LLAMA = Family()
GEMMA3 = Family(
    qk_norm=True, is_sandwiched=True, norms_from_one=True, activation="gelu_pytorch_tanh",
    words=frozenset({
        "query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping",
        "rope_local_base_freq", "sliding_window_pattern", "embeds_by_root",
    }),
    # Of the class Gemma3TextConfig; the published 4B leaves most of them out.
    defaults={
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131072, "sliding_window": 4096, "query_pre_attn_scalar": 256,
        "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6,
        "tie_word_embeddings": True, "embeds_by_root": True,
        "hidden_act": "gelu_pytorch_tanh",
    },
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "Mistral3ForConditionalGeneration": LLAMA,  # its text tower
    "Qwen2ForCausalLM": Family(qkv_bias=True),
    "Qwen3ForCausalLM": Family(qk_norm=True),
    "Phi3ForCausalLM": Family(is_fused=True, words=frozenset({"partial_rotary_factor"})),
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": GEMMA3,  # its text tower
    "SmolLM3ForCausalLM": Family(
        words=frozenset({"no_rope_layers", "no_rope_layer_interval"}),
        defaults={"no_rope_layer_interval": 4, "tie_word_embeddings": True, "rope_theta": 2e6},
    ),
    "GraniteForCausalLM": Family(
        words=frozenset({
            "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling",
        }),
    ),
}  # fmt: skip

# What tensors of a text tower are called inside a model of images and text -> their own names.
TOWERS = (
    ("model.language_model.", "model."), ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)  # fmt: skip


def own_name(name: str) -> str:
    """A tensor's name without the tower that it stands in."""
    for tower, own in TOWERS:
        if name.startswith(tower):
            return own + name.removeprefix(tower)
    return name


def advice(name: str) -> str:
    """How a model that is not read here is served all the same."""
    return (
        f"{name} is not read here; serve it with vLLM, SGLang or llama.cpp, and say "
        f'llm_url = "http://HOST:PORT/v1"'
    )
