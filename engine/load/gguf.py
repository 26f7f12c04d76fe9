"""Owns what a GGUF file's words mean here: the config, and tensors under Hugging Face's names.

llama.cpp rotates neighbouring rows of q and k where this engine (and Hugging Face) rotates halves
of a head, so its converter reorders both for the architecture "llama"; that is undone here. The
tokenizer of the file is ``text/gguf_tokenizer.py``'s.
Source: llama.cpp's convert_hf_to_gguf.py and gguf's tensor names.
"""

from __future__ import annotations

import reprlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..types import CheckpointError, MissingTensor, UnsupportedArchitecture, WrongShape
from .gguf_codes import FOUR_BITS, MORE_BITS, int4_weight
from .gguf_file import GgufFile, TensorPlace
from .loader import ModelConfig, config_from
from .packed import FinerWeight, Int4Weight

SUFFIX = ".gguf"

# general.architecture -> the class of config.json
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
INTERLEAVED = "llama"  # the one whose q and k the converter reorders

TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LAYER = "model.layers."
ROPE_DIVISORS = "rope_freqs.weight"


def is_gguf(path: Path) -> bool:
    return path.suffix == SUFFIX


def architecture(file: GgufFile) -> str:
    """Raises: CheckpointError, UnsupportedArchitecture."""
    name = file.text("general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedArchitecture(
            f"{file.path}: expected an architecture among {known}, found {name!r}"
        )
    return name


def read_gguf_config(file: GgufFile) -> ModelConfig:
    """The decoder that a file describes. Raises: CheckpointError, UnsupportedArchitecture."""
    name = architecture(file)

    def integer(key: str) -> int | None:
        return file.integer(f"{name}.{key}")

    def number(key: str) -> float | None:
        return file.number(f"{name}.{key}")

    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise MissingTensor(f"{file.path}: expected a tensor token_embd.weight, found none")
    if integer("expert_count"):
        raise UnsupportedArchitecture(f"{file.path}: expected a dense model, found one of experts")
    scaling = file.text(f"{name}.rope.scaling.type") or "none"
    words: dict[str, Any] = {
        "architectures": [ARCHITECTURES[name]],
        "vocab_size": embedding.shape[0],
        "hidden_size": integer("embedding_length"),
        "intermediate_size": integer("feed_forward_length"),
        "num_hidden_layers": integer("block_count"),
        "num_attention_heads": integer("attention.head_count"),
        "num_key_value_heads": integer("attention.head_count_kv"),
        "head_dim": integer("attention.key_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": integer("context_length"),
        "rope_theta": number("rope.freq_base"),
        "rope_scaling": None
        if scaling == "none"
        else {"rope_type": scaling, "factor": number("rope.scaling.factor")},
        "sliding_window": integer("attention.sliding_window"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_output.bias" in file.tensors,
    }
    present = {key: word for key, word in words.items() if word is not None}
    config = config_from(present, file.path, _end_ids(file, embedding.shape[0]))
    rotated = integer("rope.dimension_count")
    if rotated not in (None, config.head_dim):
        raise UnsupportedArchitecture(
            f"{file.path}: expected all {config.head_dim} dimensions of a head rotated, "
            f"found {rotated}"
        )
    return replace(config, rope=replace(config.rope, divisors=_rope_divisors(file, config)))


def _rope_divisors(file: GgufFile, config: ModelConfig) -> tuple[float, ...]:
    """Read the divisors of the rotary frequencies that Llama 3.1 and later have.

    Raises: CheckpointError.
    """
    if ROPE_DIVISORS not in file.tensors:
        return ()
    numbers = torch.from_numpy(file.read(ROPE_DIVISORS))
    expected = (config.head_dim // 2,)
    if tuple(numbers.shape) != expected or not (numbers.isfinite() & (numbers > 0)).all():
        raise CheckpointError(
            f"{file.path}: expected {ROPE_DIVISORS} of shape {list(expected)} and positive, found "
            f"{list(numbers.shape)}, {reprlib.repr(numbers.flatten().tolist())}"
        )
    return tuple(numbers.tolist())


def _end_ids(file: GgufFile, vocab_size: int) -> tuple[int, ...]:
    """The tokens that end a reply: of the text, and of a turn where that is another."""
    found = []
    for key in ("eos_token_id", "eot_token_id"):
        token = file.integer(f"tokenizer.ggml.{key}")
        if token is None:
            continue
        if not 0 <= token < vocab_size:
            raise CheckpointError(
                f"{file.path}: expected {key} below {vocab_size}, found {token!r}"
            )
        found.append(token)
    return tuple(dict.fromkeys(found))


class GgufCheckpoint:
    """The tensors of one GGUF file by Hugging Face's names, dequantized to fp32 or in four bits."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self.source = file.path
        self._file, self._config = file, config
        self._is_interleaved = architecture(file) == INTERLEAVED

    def __contains__(self, name: str) -> bool:
        return _stored_name(name) in self._file.tensors

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """One tensor, on the CPU. Raises: MissingTensor, WrongShape."""
        stored, _ = self._find(name, shape)  # before it is made
        return self._ordered(name, torch.from_numpy(self._file.read(stored)))

    def is_quantized(self, name: str) -> bool:
        """Raises: MissingTensor."""
        return self._find(name, None)[1].format in FOUR_BITS + MORE_BITS

    def int4(self, name: str, shape: tuple[int, int]) -> Int4Weight | FinerWeight | None:
        """A matrix with the file's own four-bit codes; its numbers where the file has more bits.

        None where its numbers are not quantized. Raises: MissingTensor, WrongShape.
        """
        stored, place = self._find(name, shape)
        if place.format in MORE_BITS:
            return FinerWeight(self.tensor(name, shape))
        if place.format not in FOUR_BITS:
            return None
        weight = int4_weight(place.format, self._file.blocks(stored), shape)
        parts = (weight.codes, weight.scale, weight.zero)
        return Int4Weight(*(self._ordered(name, part) for part in parts))

    def _find(self, name: str, shape: tuple[int, ...] | None) -> tuple[str, TensorPlace]:
        stored = _stored_name(name)
        place = self._file.tensors.get(stored)
        if place is None:
            raise MissingTensor(
                f"{self.source}: expected a tensor {stored} (here {name}), found none"
            )
        if shape is not None and place.shape != shape:
            raise WrongShape(
                f"{self.source}: expected {stored} of shape {list(shape)}, "
                f"found {list(place.shape)}"
            )
        return stored, place

    def _ordered(self, name: str, rows: Tensor) -> Tensor:
        """Rows of q and k in this engine's order."""
        n_heads = {".q_proj.": self._config.n_heads, ".k_proj.": self._config.n_kv_heads}
        for part, heads in n_heads.items():
            if part in name and self._is_interleaved:
                return halves_of_heads(rows, heads)
        return rows


def halves_of_heads(tensor: Tensor, n_heads: int) -> Tensor:
    """Rows of each head from (first, second) pairs to first halves, then second halves.

    tensor: [n_heads * head_dim, ...].
    """
    rows = tensor.shape[0]
    pairs = tensor.reshape(n_heads, rows // n_heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape).contiguous()


def _stored_name(name: str) -> str:
    """GGUF's name of a tensor; one that nothing is stored under where it has none."""
    stem, _, kind = name.rpartition(".")
    if not stem.startswith(LAYER):
        return f"{TENSORS.get(stem, stem)}.{kind}"
    index, _, part = stem.removeprefix(LAYER).partition(".")
    return f"blk.{index}.{TENSORS.get(part, part)}.{kind}"
