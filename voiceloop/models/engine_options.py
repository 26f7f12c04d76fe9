"""What the language model's worker is told of the engine: the table `[engine]` over a preset.

Owns the step from a configuration and a model to the fields of `engine.types.EngineConfig`. Nothing
here imports the engine, for that needs torch: the names cross to the worker as plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voiceloop.config import AUTO, Config
from voiceloop.errors import ConfigError
from voiceloop.operation import MIB

# The open turn's, the answer's, and four out of band.
BRANCHES_PER_SESSION = 6
# Of the disk, for the agent's instructions as they were read; the longest unused make room.
PREFIX_FILE_BYTES = 512 * MIB
DENSE = "bf16"  # what is not quantized
# As `engine.types.pool_tokens_for` counts: a block for what is computed ahead, one for a copy.
KV_BLOCK_TOKENS, SPARE_BLOCKS = 16, 2
# Why none is taken there; n-grams are guessed inside a step.
DRAFT_MODEL_ON_GPU = (
    "a draft model is asked on the host, token by token, and no step could be launched ahead: on a "
    "GPU that takes longer than the tokens it spares"
)
PLAIN_KV = "plain"  # the engine's word for keys and values as they are computed


def engine_options(
    config: Config,
    base: Mapping[str, Any],
    model: Path | None,
    *,
    adapter: Path | None = None,
    n_threads: int,
    draft: Path | None,
) -> dict[str, Any]:
    """The options of the role `engine`.

    base: the model's and the preset's own. model: None where it is not on disk. adapter: merged
    into it. n_threads: where the configuration names no number. draft: the draft model that goes
    with `model`; None where there is none.

    Raises:
        ConfigError: `engine.drafter` asks for a draft model or a head, and there is none, or for a
            draft model on a GPU; `engine.kv_tokens` cannot hold the context that is asked for.
    """
    engine = config.engine
    options: dict[str, Any] = {
        **base,
        "max_branches": BRANCHES_PER_SESSION * config.limits.max_sessions,
        "threads": engine.threads or n_threads,
        "host_tier_bytes": engine.host_tier_mb * MIB,
        "prefix_file_bytes": PREFIX_FILE_BYTES,
        **_drafters(config, draft),
    }
    if model is not None:
        options["model_dir"] = str(model)
    if adapter is not None:
        options["adapter_dir"] = str(adapter)
    if engine.weights != AUTO:
        options["quant"] = None if engine.weights == DENSE else engine.weights
    if engine.kv != AUTO:
        options["kv_format"] = PLAIN_KV if engine.kv == DENSE else engine.kv
    if engine.device != AUTO:
        options["device"] = engine.device
    if not engine.native:
        options["native"] = False
    if not config.anticipation.does("prefix_cache"):
        options["prefix_cache"] = False
    if str(options.get("device", "cpu")).startswith("cuda"):
        _without_draft_model(config, options)
    elif "eagle_dir" in options:
        raise ConfigError(
            "engine.drafter: expected a language model on a GPU with eagle, found device cpu, "
            "whose layers keep to themselves what a head reads; 'ngram' is the default"
        )
    return options | _memory(config, options)


def _without_draft_model(config: Config, options: dict[str, Any]) -> None:
    """Leave out the one that the model brings. Raises: ConfigError where one is asked for."""
    engine, is_there = config.engine, options.pop("draft_dir", None) is not None
    if is_there and (engine.drafter == "model" or engine.draft_model is not None):
        key = "drafter" if engine.drafter == "model" else "draft_model"
        raise ConfigError(
            f"engine.{key}: expected a language model on a CPU, found device {options['device']}: "
            f"{DRAFT_MODEL_ON_GPU}; engine.drafter = 'ngram' is the default there"
        )


def room_for(context_tokens: int) -> int:
    """The `kv_tokens` that hold one context, on any device."""
    return (-(-context_tokens // KV_BLOCK_TOKENS) + SPARE_BLOCKS) * KV_BLOCK_TOKENS


def _longest_in(kv_tokens: int) -> int:
    """The longest context that they hold."""
    return (kv_tokens // KV_BLOCK_TOKENS - SPARE_BLOCKS) * KV_BLOCK_TOKENS


def _memory(config: Config, options: Mapping[str, Any]) -> dict[str, Any]:
    """Context, and room for keys and values: at least for one context.

    Raises:
        ConfigError: `engine.kv_tokens` cannot hold the context that is asked for.
    """
    engine, found = config.engine, dict[str, Any]()
    if engine.context_tokens:
        found["context_length"] = engine.context_tokens
        known = options.get("kv_tokens")
        if known is not None and known < room_for(engine.context_tokens):
            found["kv_tokens"] = room_for(engine.context_tokens)
    if engine.kv_tokens:
        longest = _longest_in(engine.kv_tokens)
        asked = max(engine.context_tokens, config.context_tokens)
        if asked > longest:
            raise ConfigError(
                f"engine.kv_tokens: expected {room_for(asked)} at least, for a context of {asked} "
                f"tokens, found {engine.kv_tokens}"
            )
        # A preset's own context gives way.
        length = engine.context_tokens or options.get("context_length") or longest
        found |= {"kv_tokens": engine.kv_tokens, "context_length": min(length, longest)}
        found["kv_memory_share"] = 0.0  # a preset's own, too
    if engine.kv_memory_share:
        found["kv_memory_share"] = engine.kv_memory_share
    return found


def _drafters(config: Config, draft: Path | None) -> dict[str, Any]:
    """n-grams where nothing else is said, and the draft model where there is one."""
    engine = config.engine
    if engine.drafter == "none":
        return {"max_draft_tokens": 0}
    folder = engine.draft_model or draft
    if engine.drafter == "eagle":
        if engine.draft_model is None:
            raise ConfigError(
                "engine.drafter: expected engine.draft_model beside eagle, the folder of the head, "
                "found nothing"
            )
        return {"eagle_dir": str(engine.draft_model)}
    if engine.drafter == "model" and folder is None:
        raise ConfigError(
            "engine.drafter: expected engine.draft_model beside model, for the language model "
            "brings none, found nothing"
        )
    found: dict[str, Any] = {}
    if engine.drafter != "model":
        found["ngram_draft"] = True
    if engine.drafter != "ngram" and folder is not None:
        found["draft_dir"] = str(folder)
    return found
