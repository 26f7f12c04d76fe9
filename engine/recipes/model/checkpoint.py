"""Training checkpoints, and the export to a Hugging Face model folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from .agent_model import AgentConfig
from .chat_format import CHAT_TEMPLATE, CONTROL_TOKENS, END, PAD, TEXT_TOKENS

SHARD_BYTES = 15 * 1024 * 1024


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint so that a crash leaves the old one."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint of `save_checkpoint` on the CPU."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def shard_weights(weights: dict[str, Tensor], limit: int) -> list[dict[str, Tensor]]:
    """Split tensors, in order, into shards of at most `limit` bytes."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in weights.items():
        n_bytes = tensor.numel() * tensor.element_size()
        if size + n_bytes > limit and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += n_bytes
    return shards


def export_model(
    folder: Path,
    config: AgentConfig,
    weights: dict[str, Tensor],
    tokenizer: Tokenizer,
) -> None:
    """Write config, bf16 safetensors shards, tokenizer, chat template and generation config."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    half = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
    shards = shard_weights(half, SHARD_BYTES)
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
    else:
        index: dict[str, str] = {}
        for number, shard in enumerate(shards, 1):
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            save_file(shard, folder / name, metadata={"format": "pt"})
            index |= dict.fromkeys(shard, name)
        total = sum(tensor.numel() * 2 for tensor in half.values())
        _write(
            folder / "model.safetensors.index.json",
            {"metadata": {"total_size": total}, "weight_map": index},
        )
    end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)
    _write(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": None,
            "eos_token_id": end,
            "pad_token_id": pad,
            "head_dim": config.head_dim,
            "hidden_act": "silu",
            "hidden_size": config.hidden_size,
            "initializer_range": 0.02,
            "intermediate_size": config.intermediate_size,
            "max_position_embeddings": config.max_positions,
            "mlp_bias": False,
            "num_attention_heads": config.n_heads,
            "num_hidden_layers": config.n_layers,
            "num_key_value_heads": config.n_kv_heads,
            "pretraining_tp": 1,
            "rms_norm_eps": config.norm_eps,
            "rope_scaling": None,
            "rope_theta": config.rope_theta,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "vocab_size": config.vocab_size,
        },
    )
    _write(
        folder / "generation_config.json",
        {"do_sample": False, "eos_token_id": end, "pad_token_id": pad, "max_new_tokens": 96},
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    decoder = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token in CONTROL_TOKENS,
        }
        for token in (*CONTROL_TOKENS, *TEXT_TOKENS)
    }
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "added_tokens_decoder": decoder,
            "eos_token": END,
            "pad_token": PAD,
            "clean_up_tokenization_spaces": False,
            "model_max_length": config.max_positions,
            "add_bos_token": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors writes files that only their owner can read


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
