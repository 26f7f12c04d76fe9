"""Owns the reading of a Hugging Face model folder: config, tensors, and the checks on both.

A `FolderCheckpoint` hands out tensors by name and shape; whatever is missing or malformed is
refused with an error that names it. Nothing here computes.
"""

import math
import reprlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..types import CheckpointError, MissingTensor, UnsupportedArchitecture, WrongShape
from .families import FAMILIES, advice, own_name
from .json_file import read_json

# Words beside `text_config` that hold for the text tower as well.
OUTER_WORDS = ("quantization_config", "tie_word_embeddings")
# Far beyond any published model; tables of these sizes are made before a tensor is looked at.
MAX_LAYERS = 1024
MAX_POSITIONS = 1 << 24
MAX_HEAD_DIM = 1024

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope")
NO_ROPE = "none"  # of layers that see no positions (SmolLM3)


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: base and, for stretched contexts, how its frequencies change.

    divisors: of each frequency, where a file lists them; none where `kind` says it all.
    long_divisors: the same for contexts beyond the original one ("longrope").
    rotated: leading entries of a head that are turned, 0 for all. scale: of cosines and sines.
    beta_fast, beta_slow, truncates: the ramp of "yarn".
    """

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    divisors: tuple[float, ...] = ()
    long_divisors: tuple[float, ...] = ()
    rotated: int = 0
    scale: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncates: bool = True


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The decoder a checkpoint describes, in this engine's own words.

    windows: per layer, how many last positions attention sees (0: all). layer_ropes: per layer,
    where not all have `rope`. is_fused, is_sandwiched, norms_from_one: see `families.Family`.
    attention_scale: of queries times keys, 0 for 1 / root of head_dim. logit_cap: 0 for none.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    norm_eps: float
    context_length: int
    rope: RopeConfig
    windows: tuple[int, ...]
    tied_head: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    is_fused: bool = False
    is_sandwiched: bool = False
    norms_from_one: bool = False
    activation: str = "silu"
    layer_ropes: tuple[RopeConfig, ...] = ()
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float = 0.0
    logit_scale: float = 1.0
    logit_cap: float = 0.0
    eos_ids: tuple[int, ...] = ()
    quantization: dict[str, Any] = field(default_factory=dict)

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """Return the rotation of each layer."""
        return self.layer_ropes or (self.rope,) * self.n_layers


class _Fields:
    """Typed access to config.json or a part of it, with the file and key in every complaint."""

    def __init__(self, values: dict[str, Any], path: Path) -> None:
        self.values, self.path = values, path

    def number(self, key: str, default: float | None = None) -> float:
        value: Any = self.values.get(key)
        if value is None:
            value = default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= sys.float_info.max:  # also nan, and what is no float
            raise CheckpointError(
                f"{self.path}: expected a positive number at {key!r}, found {reprlib.repr(value)}"
            )
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if value != int(value):
            raise CheckpointError(f"{self.path}: expected an integer at {key!r}, found {value!r}")
        return int(value)

    def number_or(self, key: str, default: float) -> float:
        """The default is not looked at."""
        return float(self.number(key)) if key in self.values else default

    def integer_or_zero(self, key: str) -> int:
        """0 also where there is none."""
        return self.integer(key) if self.values.get(key) else 0


def read_config(model_dir: Path) -> ModelConfig:
    """Read config.json (and generation_config.json where there is one).

    Raises: CheckpointError, UnsupportedArchitecture.
    """
    path = model_dir / "config.json"
    values = read_json(path)
    return config_from(values, path, _read_eos(model_dir, values))


def config_from(values: dict[str, Any], path: Path, eos_ids: tuple[int, ...]) -> ModelConfig:
    """Read a config from the words of config.json. path: named in errors.

    Raises: CheckpointError, UnsupportedArchitecture.
    """
    names = values.get("architectures") or ["none"]
    name = names[0] if isinstance(names, list) else names
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise UnsupportedArchitecture(
            f"{path}: expected an architecture among {', '.join(FAMILIES)}, found {name}; "
            f"{advice(str(name))}"
        )
    inner = values.get("text_config")
    if isinstance(inner, dict):  # of a model that also sees
        values = {**{key: values[key] for key in OUTER_WORDS if key in values}, **inner}
    given = {key: value for key, value in values.items() if value is not None}
    values = {**family.defaults, **given}
    activation = values.get("hidden_activation") or values.get("hidden_act", "silu")
    if activation != family.activation:
        raise UnsupportedArchitecture(
            f"{path}: expected hidden_act {family.activation} of {name}, found {activation}"
        )
    fields = _Fields(values, path)
    n_heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    n_layers = fields.integer("num_hidden_layers")
    n_kv_heads = fields.integer("num_key_value_heads", n_heads)
    head_dim = fields.integer("head_dim", hidden // n_heads)
    context_length = fields.integer("max_position_embeddings", 2048)
    if n_layers > MAX_LAYERS or context_length > MAX_POSITIONS:
        raise CheckpointError(
            f"{path}: expected at most {MAX_LAYERS} layers and {MAX_POSITIONS} positions, found "
            f"{n_layers} and {context_length}"
        )
    if n_heads % n_kv_heads or head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise CheckpointError(
            f"{path}: expected num_attention_heads a multiple of num_key_value_heads and an even "
            f"head_dim up to {MAX_HEAD_DIM}, found {n_heads}, {n_kv_heads} and {head_dim}"
        )
    bias = bool(values.get("attention_bias", False))
    own = _Fields({key: values[key] for key in family.words & values.keys()}, path)
    if "attn_logit_softcapping" in own.values:
        raise UnsupportedArchitecture(
            f"{path}: expected no attn_logit_softcapping, found one; {advice(name)}"
        )
    rope = _read_rope(fields, own, head_dim)
    windows = _read_windows(fields, own, n_layers)
    attention = 0.0
    if "query_pre_attn_scalar" in own.values:
        attention = own.number("query_pre_attn_scalar") ** -0.5
    by_root = float(hidden**0.5) if own.values.get("embeds_by_root") else 1.0
    return ModelConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        norm_eps=float(fields.number("rms_norm_eps", 1e-6)),
        context_length=context_length,
        rope=rope,
        layer_ropes=_layer_ropes(fields, own, rope, windows),
        windows=windows,
        tied_head=bool(values.get("tie_word_embeddings", False)),
        qkv_bias=bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=bias,
        mlp_bias=bool(values.get("mlp_bias", False)),
        qk_norm=family.qk_norm,
        is_fused=family.is_fused,
        is_sandwiched=family.is_sandwiched,
        norms_from_one=family.norms_from_one,
        activation=family.activation,
        embedding_scale=float(own.number("embedding_multiplier", by_root)),
        residual_scale=float(own.number("residual_multiplier", 1.0)),
        attention_scale=own.number_or("attention_multiplier", attention),
        logit_scale=1.0 / own.number("logits_scaling", 1.0),
        logit_cap=own.number_or("final_logit_softcapping", 0.0),
        eos_ids=eos_ids,
        quantization=values.get("quantization_config") or {},
    )


def _read_rope(fields: _Fields, own: _Fields, head_dim: int) -> RopeConfig:
    """Both spellings: `rope_theta` + `rope_scaling` (to transformers 4), `rope_parameters` (5)."""
    values, default = fields.values, RopeConfig()
    params = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if isinstance(params, dict) and isinstance(params.get("full_attention"), dict):
        params = params["full_attention"]  # the sliding layers have another
    if not isinstance(params, dict):
        raise CheckpointError(
            f"{fields.path}: expected an object of rope parameters, found {reprlib.repr(params)}"
        )
    kind = params.get("rope_type", params.get("type", default.kind))
    if kind not in ROPE_TYPES:
        raise UnsupportedArchitecture(
            f"{fields.path}: expected a rope type among {', '.join(ROPE_TYPES)}, found {kind}"
        )
    rope = _Fields({key: value for key, value in params.items() if value is not None}, fields.path)
    share = 1.0
    if "partial_rotary_factor" in own.values or "partial_rotary_factor" in rope.values:
        share = rope.number("partial_rotary_factor", own.values.get("partial_rotary_factor"))
    rotated = int(head_dim * share)
    if not 0 < rotated <= head_dim or rotated % 2:
        raise CheckpointError(
            f"{fields.path}: expected an even part of {head_dim} entries rotated, found {rotated}"
        )
    context = fields.integer("max_position_embeddings", 2048)
    original = rope.integer(
        "original_max_position_embeddings",
        fields.integer("original_max_position_embeddings", context)
        if kind in ("yarn", "longrope")
        else default.original_context,
    )
    factor = default.factor if kind == default.kind else None
    if kind == "longrope":
        factor = context / original
    return RopeConfig(
        theta=float(rope.number("rope_theta", fields.number("rope_theta", default.theta))),
        kind=kind,
        factor=float(rope.number("factor", factor)),
        low_freq_factor=float(rope.number("low_freq_factor", default.low_freq_factor)),
        high_freq_factor=float(rope.number("high_freq_factor", default.high_freq_factor)),
        original_context=original,
        divisors=_divisors(rope, "short_factor", rotated),
        long_divisors=_divisors(rope, "long_factor", rotated),
        rotated=rotated % head_dim,
        scale=_rope_scale(rope, kind, context, original),
        beta_fast=float(rope.number("beta_fast", default.beta_fast)),
        beta_slow=float(rope.number("beta_slow", default.beta_slow)),
        truncates=rope.values.get("truncate") is not False,
    )


def _divisors(rope: _Fields, key: str, rotated: int) -> tuple[float, ...]:
    """The list of `longrope` at a key. Raises: CheckpointError."""
    found = rope.values.get(key, [])
    if not isinstance(found, list) or len(found) not in (0, rotated // 2):
        raise CheckpointError(
            f"{rope.path}: expected {rotated // 2} numbers at {key!r}, found {reprlib.repr(found)}"
        )
    return tuple(float(_Fields({key: one}, rope.path).number(key)) for one in found)


def _rope_scale(rope: _Fields, kind: str, context: int, original: int) -> float:
    """Return the scale of cosines and sines. Source: YaRN (arXiv:2309.00071), LongRoPE
    (arXiv:2402.13753).
    """
    if "attention_factor" in rope.values:
        return float(rope.number("attention_factor"))
    if kind == "longrope":
        factor = rope.number("factor", context / original)
        return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    if kind != "yarn":
        return 1.0

    def of(mscale: float) -> float:
        factor = rope.number("factor")
        return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0

    if rope.values.get("mscale") and rope.values.get("mscale_all_dim"):
        return of(rope.number("mscale")) / of(rope.number("mscale_all_dim"))
    return of(1.0)


def _layer_ropes(
    fields: _Fields, own: _Fields, rope: RopeConfig, windows: tuple[int, ...]
) -> tuple[RopeConfig, ...]:
    """Per layer, where a family has several: Gemma 3's windows, SmolLM3's layers without one."""
    if "rope_local_base_freq" in own.values:
        local = RopeConfig(theta=float(own.number("rope_local_base_freq")))
        params = fields.values.get("rope_parameters") or {}
        if isinstance(params, dict) and isinstance(params.get("sliding_attention"), dict):
            nested = {**fields.values, "rope_parameters": params["sliding_attention"]}
            local = _read_rope(_Fields(nested, fields.path), own, 2)
        return tuple(local if window else rope for window in windows)
    interval = own.integer_or_zero("no_rope_layer_interval")
    if interval:
        flags = own.values.get("no_rope_layers") or [
            (layer + 1) % interval for layer in range(len(windows))
        ]
        if not isinstance(flags, list) or len(flags) != len(windows):
            raise CheckpointError(
                f"{fields.path}: expected no_rope_layers of {len(windows)} layers, found "
                f"{reprlib.repr(flags)}"
            )
        return tuple(rope if flag else replace(rope, kind=NO_ROPE) for flag in flags)
    return ()


def _read_windows(fields: _Fields, own: _Fields, n_layers: int) -> tuple[int, ...]:
    values = fields.values
    window = min(fields.integer_or_zero("sliding_window"), MAX_POSITIONS)
    if values.get("use_sliding_window") is False:
        window = 0  # Qwen names a window and then does not use it
    if window >= fields.integer("max_position_embeddings", 2048):
        window = 0  # Phi-4-mini's is twice its context
    kinds = values.get("layer_types")
    if kinds:
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    if pattern := own.integer_or_zero("sliding_window_pattern"):
        return tuple(window if (layer + 1) % pattern else 0 for layer in range(n_layers))
    first = fields.integer_or_zero("max_window_layers") if "use_sliding_window" in values else 0
    return tuple(window if layer >= first else 0 for layer in range(n_layers))


def _read_eos(model_dir: Path, values: dict[str, Any]) -> tuple[int, ...]:
    found = values.get("eos_token_id")
    generation = model_dir / "generation_config.json"
    if generation.is_file():
        found = read_json(generation).get("eos_token_id", found)
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list) else (int(found),)


class Checkpoint(Protocol):
    """Tensors by Hugging Face's names, on the CPU. source: what complaints name."""

    source: Path

    def __contains__(self, name: str) -> bool: ...

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """One tensor as stored. Raises: MissingTensor, WrongShape."""
        ...


class FolderCheckpoint:
    """The tensors of one model folder, opened lazily, one file or sharded."""

    def __init__(self, folder: Path, name: str = "model.safetensors") -> None:
        """name: of the file where there is no index of shards. Raises: CheckpointError."""
        if not folder.is_dir():
            raise CheckpointError(f"expected a model folder at {folder}, found none")
        self.source, self._name = folder, name
        self._files: dict[str, Any] = {}
        # By our name: the file, and the name there.
        self._where = {own_name(name): (file, name) for name, file in self._index()}

    def _index(self) -> Iterator[tuple[str, str]]:
        name, index = self._name, self.source / f"{self._name}.index.json"
        if index.is_file():
            yield from read_json(index).get("weight_map", {}).items()
            return
        if not (self.source / name).is_file():
            raise CheckpointError(
                f"expected {name} or {index.name} in {self.source}, found neither"
            )
        for key in self._open(name).keys():  # noqa: SIM118 - not a dict
            yield key, name

    def _open(self, name: str) -> Any:
        if name not in self._files:
            path = self.source / name
            if not path.is_file():
                raise CheckpointError(f"expected shard {name} in {self.source}, found none")
            try:
                self._files[name] = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{path}: expected safetensors, found {error}") from None
        return self._files[name]

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """One tensor as stored, on the CPU.

        Raises: MissingTensor, WrongShape.
        """
        if name not in self._where:
            raise MissingTensor(f"{self.source}: expected a tensor {name}, found none")
        try:
            file, stored = self._where[name]
            tensor: Tensor = self._open(file).get_tensor(stored)
        except SafetensorError as error:
            raise MissingTensor(f"{self.source}: expected {name}, found {error}") from None
        if shape is not None and tuple(tensor.shape) != shape:
            raise WrongShape(
                f"{self.source}: expected {name} of shape {list(shape)}, found {list(tensor.shape)}"
            )
        return tensor


TORCH_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
