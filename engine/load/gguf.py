"""Owns what a GGUF file's words mean here: the config, and tensors under Hugging Face's names.

llama.cpp rotates neighbouring rows of q and k where this engine (and Hugging Face) rotates halves
of a head, so its converter reorders both for "llama" and its kin; that is undone here. The
tokenizer of the file is ``text/gguf_tokenizer.py``'s.
Source: llama.cpp's convert_hf_to_gguf.py and gguf's tensor names.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..types import CheckpointError, MissingTensor, UnsupportedArchitecture, WrongShape
from .families import advice
from .gguf_codes import FOUR_BITS, MORE_BITS, int4_weight
from .gguf_file import GgufFile, TensorPlace
from .loader import ModelConfig, config_from
from .packed import FinerWeight, Int4Weight, parts_of

SUFFIX = ".gguf"


@dataclass(frozen=True, slots=True)
class Arch:
    """A family's name and tensors as llama.cpp's converter writes them.

    family: the class of config.json. is_interleaved: rows of q and k are reordered. tensors: names
    other than those of `TENSORS`. words: keys of the metadata, and what config.json calls them.
    """

    family: str
    is_interleaved: bool = False
    tensors: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)


# By general.architecture.
ARCHITECTURES = {
    "llama": Arch("LlamaForCausalLM", is_interleaved=True),
    "qwen2": Arch("Qwen2ForCausalLM"),
    "qwen3": Arch("Qwen3ForCausalLM"),
    "phi3": Arch(
        "Phi3ForCausalLM",
        tensors={"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    ),
    "gemma3": Arch(
        "Gemma3ForCausalLM",
        tensors={
            "post_attention_layernorm": "post_attention_norm",
            "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
        },
        words={
            "rope.freq_base_swa": "rope_local_base_freq",
            "final_logit_softcapping": "final_logit_softcapping",
        },
    ),
    "smollm3": Arch("SmolLM3ForCausalLM", is_interleaved=True),
    "granite": Arch(
        "GraniteForCausalLM", is_interleaved=True,
        words={
            "attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
        },
    ),
}  # fmt: skip
GEMMA_27B_LAYERS = 62  # the one whose queries llama.cpp divides by another number than head_dim

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
LONG_DIVISORS, SHORT_DIVISORS = "rope_factors_long.weight", "rope_factors_short.weight"


def is_gguf(path: Path) -> bool:
    return path.suffix == SUFFIX


def architecture(file: GgufFile) -> str:
    """Raises: CheckpointError, UnsupportedArchitecture."""
    name = file.text("general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedArchitecture(
            f"{file.path}: expected an architecture among {known}, found {name!r}; "
            f"{advice(str(name))}"
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
    arch, hidden = ARCHITECTURES[name], integer("embedding_length")
    n_heads = integer("attention.head_count")
    head_dim = integer("attention.key_length") or (hidden // n_heads if hidden and n_heads else 0)
    rotated, is_phi = integer("rope.dimension_count"), name == "phi3"
    words: dict[str, Any] = {
        "architectures": [arch.family],
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": integer("feed_forward_length"),
        "num_hidden_layers": integer("block_count"),
        "num_attention_heads": n_heads,
        "num_key_value_heads": integer("attention.head_count_kv"),
        "head_dim": integer("attention.key_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": integer("context_length"),
        "rope_theta": number("rope.freq_base"),
        "rope_scaling": _rope_scaling(file, name),
        "sliding_window": integer("attention.sliding_window"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_output.bias" in file.tensors,
        **{own: number(key) for key, own in arch.words.items()},
    }
    if name == "gemma3" and hidden and n_heads:
        is_27b = words["num_hidden_layers"] == GEMMA_27B_LAYERS
        words["query_pre_attn_scalar"] = hidden / n_heads if is_27b else head_dim
    if is_phi and rotated and head_dim:
        words["partial_rotary_factor"] = rotated / head_dim
    present = {key: word for key, word in words.items() if word is not None}
    config = config_from(present, file.path, _end_ids(file, embedding.shape[0]))
    if rotated not in (None, config.rope.rotated or config.head_dim):
        raise UnsupportedArchitecture(
            f"{file.path}: expected all {config.head_dim} dimensions of a head rotated, "
            f"found {rotated}"
        )
    # The converter has added the one that Gemma's norms are stored without.
    config = replace(config, norms_from_one=False)
    n = (config.rope.rotated or config.head_dim) // 2
    divisors = _numbers(file, ROPE_DIVISORS, n) or config.rope.divisors
    rope = replace(config.rope, divisors=divisors)
    ropes = tuple(rope if one == config.rope else one for one in config.layer_ropes)
    return replace(config, rope=rope, layer_ropes=ropes)


def _rope_scaling(file: GgufFile, name: str) -> dict[str, Any] | None:
    """Return what config.json has at this key."""
    scaling = file.text(f"{name}.rope.scaling.type") or "none"
    original = file.integer(f"{name}.rope.scaling.original_context_length")
    parts: dict[str, Any] = {}
    if original is not None:
        parts["original_max_position_embeddings"] = original
    if LONG_DIVISORS in file.tensors and SHORT_DIVISORS in file.tensors:
        n = file.tensors[LONG_DIVISORS].shape[0]
        parts["long_factor"] = list(_numbers(file, LONG_DIVISORS, n))
        parts["short_factor"] = list(_numbers(file, SHORT_DIVISORS, n))
        parts["attention_factor"] = file.number(f"{name}.rope.scaling.attn_factor")
        return {"rope_type": "longrope", **parts}
    if scaling == "none":
        return None
    return {"rope_type": scaling, "factor": file.number(f"{name}.rope.scaling.factor"), **parts}


def _numbers(file: GgufFile, name: str, n: int) -> tuple[float, ...]:
    """Divisors of the rotary frequencies; none where there are none. Raises: CheckpointError."""
    if name not in file.tensors:
        return ()
    numbers = torch.from_numpy(file.read(name))
    if tuple(numbers.shape) != (n,) or not (numbers.isfinite() & (numbers > 0)).all():
        raise CheckpointError(
            f"{file.path}: expected {name} of shape {[n]} and positive, found "
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
        self._arch = ARCHITECTURES[architecture(file)]

    def __contains__(self, name: str) -> bool:
        return _stored_name(name, self._arch) in self._file.tensors

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """One tensor, on the CPU. Raises: MissingTensor, WrongShape."""
        stored, _ = self._find(name, shape)  # before it is made
        return self._ordered(name, torch.from_numpy(self._file.read(stored)))

    def is_quantized(self, name: str) -> bool:
        """Raises: MissingTensor."""
        return self._find(name, None)[1].format in (*FOUR_BITS, *MORE_BITS)

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
        return Int4Weight(*(self._ordered(name, part) for part in parts_of(weight)))

    def _find(self, name: str, shape: tuple[int, ...] | None) -> tuple[str, TensorPlace]:
        stored = _stored_name(name, self._arch)
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
            if part in name and self._arch.is_interleaved:
                return halves_of_heads(rows, heads)
        return rows


def halves_of_heads(tensor: Tensor, n_heads: int) -> Tensor:
    """Rows of each head from (first, second) pairs to first halves, then second halves.

    tensor: [n_heads * head_dim, ...].
    """
    rows = tensor.shape[0]
    pairs = tensor.reshape(n_heads, rows // n_heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape).contiguous()


def _stored_name(name: str, arch: Arch) -> str:
    """GGUF's name of a tensor; one that nothing is stored under where it has none."""
    stem, _, kind = name.rpartition(".")
    names = {**TENSORS, **arch.tensors}
    if not stem.startswith(LAYER):
        return f"{names.get(stem, stem)}.{kind}"
    index, _, part = stem.removeprefix(LAYER).partition(".")
    return f"blk.{index}.{names.get(part, part)}.{kind}"
