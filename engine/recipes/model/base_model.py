"""The published model that an adapter is trained for: SmolLM2, read from its GGUF file."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from engine.load.loader import ModelConfig
from engine.load.source import adapted, open_source
from engine.types import CheckpointError

from .agent_model import AgentConfig, AgentModel


def load_base(path: Path, adapter: Path | None = None) -> tuple[AgentModel, Tokenizer]:
    """A Llama with a tied head, in bf16, an adapter merged into it, and its tokenizer.

    Raises:
        CheckpointError: no such model lies there, or the adapter is for another.
    """
    source = open_source(path)
    config = source.config
    has_more = config.qkv_bias or config.output_bias or config.mlp_bias or config.qk_norm
    if has_more or not config.tied_head:
        raise CheckpointError(
            f"{path}: expected a Llama whose head is its embedding, without biases, found another"
        )
    if adapter is not None:
        source = adapted(source, adapter)
    model = AgentModel(_shape_of(config))
    for name, parameter in model.named_parameters():
        stored = source.checkpoint.tensor(name, tuple(parameter.shape))
        parameter.data = stored.to(torch.bfloat16)
    return model, source.text.tokenizer


def _shape_of(config: ModelConfig) -> AgentConfig:
    return AgentConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        max_positions=config.context_length,
        rope_theta=config.rope.theta,
        norm_eps=config.norm_eps,
    )
