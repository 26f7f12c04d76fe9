"""Writes GGUF files as llama.cpp's converter does, from a model folder of these tests."""

import json
from collections.abc import Sequence
from math import pi
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import load_file
from tokenizers import Tokenizer

NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip
OWN_NAMES = {
    "phi3": {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    "gemma3": {
        "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
}  # fmt: skip
PERMUTED = ("llama", "smollm3", "granite")


def stored_name(name: str, arch: str) -> str:
    for ours, theirs in {**NAMES, **OWN_NAMES.get(arch, {})}.items():
        name = name.replace(f"{ours}.", f"{theirs}.")
    return name.replace("model.layers.", "blk.")


def permute(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """llama.cpp's `LlamaModel.permute`: halves of a head become neighbouring pairs."""
    n_rows = weight.shape[0]
    halves = weight.reshape(n_heads, 2, n_rows // n_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def llama3_divisors(head_dim: int, theta: float, factor: float, context: int) -> list[float]:
    """As llama.cpp's converter computes them, by wavelength."""
    low, high, found = context / 1.0, context / 4.0, []
    for i in range(0, head_dim, 2):
        wavelength = 2 * pi * theta ** (i / head_dim)
        smooth = (context / wavelength - 1.0) / (4.0 - 1.0)
        between = 1 / ((1 - smooth) / factor + smooth)
        found.append(1.0 if wavelength < high else factor if wavelength > low else between)
    return found


def write_gguf(
    folder: Path,
    path: Path,
    arch: str = "llama",
    form: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    rope_freqs: Sequence[float] = (),
    **changes: Any,
) -> Path:
    """The model of `folder` in one file: matrices in `form`, metadata changed (None: left out)."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, arch)
    for key, value in {**metadata(folder, config, arch), **changes}.items():
        match value:
            case None:
                continue
            case str():
                writer.add_string(key, value)
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case list():
                writer.add_array(key, value)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in load_file(folder / "model.safetensors").items():
        array = tensor.float().numpy()
        if arch == "gemma3" and "norm" in name:
            array = array + 1
        for part, n_heads in heads.items():
            if f".{part}." in name and arch in PERMUTED:
                array = permute(array, n_heads)
        if array.ndim == 2:
            writer.add_tensor(
                stored_name(name, arch), gguf.quants.quantize(array, form), raw_dtype=form
            )
        else:
            writer.add_tensor(stored_name(name, arch), array)
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "llama3":
        size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        rope_freqs = llama3_divisors(
            size, rope["rope_theta"], rope["factor"], rope["original_max_position_embeddings"]
        )
    if len(rope_freqs):
        writer.add_tensor("rope_freqs.weight", np.array(rope_freqs, np.float32))
    for kind in ("long", "short") if "long_factor" in rope else ():
        factors = np.array(rope[f"{kind}_factor"], np.float32)
        writer.add_tensor(f"rope_factors_{kind}.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def metadata(folder: Path, config: dict[str, Any], arch: str) -> dict[str, Any]:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    added = {token["id"]: token["special"] for token in tokenizer["added_tokens"]}
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    kinds = [{None: 1, True: 3, False: 4}[added.get(number)] for number in range(len(tokens))]
    merges = [
        merge if isinstance(merge, str) else " ".join(merge)
        for merge in tokenizer["model"]["merges"]
    ]
    words = json.loads((folder / "tokenizer_config.json").read_text())
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    own: dict[str, Any] = {
        "embedding_scale": config.get("embedding_multiplier"),
        "residual_scale": config.get("residual_multiplier"),
        "logit_scale": config.get("logits_scaling"),
        "attention.scale": config.get("attention_multiplier"),
        "attention.key_length": config.get("head_dim"),
        "attention.sliding_window": config.get("sliding_window"),
    }
    if arch == "phi3":
        share = rope.get("partial_rotary_factor", 1.0)
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        own["rope.dimension_count"] = int(head_dim * share)
    if arch == "gemma3":
        own["rope.freq_base_swa"] = config["rope_parameters"]["sliding_attention"]["rope_theta"]
    if original := rope.get("original_max_position_embeddings"):
        own["rope.scaling.original_context_length"] = original
    if rope.get("rope_type") in ("linear", "yarn"):
        own |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    return {
        **{f"{arch}.{key}": value for key, value in own.items()},
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": config["num_attention_heads"],
        f"{arch}.attention.head_count_kv": config["num_key_value_heads"],
        f"{arch}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{arch}.rope.freq_base": float(
            rope.get("rope_theta") or config.get("rope_theta", 10000.0)
        ),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": vocabulary[words["eos_token"]],
        "tokenizer.chat_template": words["chat_template"],
    }
