"""The options of the engine's worker: the table `[engine]` over a preset.

Owns the step from a configuration and a model to the fields of `engine.types.EngineConfig`. Nothing
here imports the engine, for that needs torch: the names cross to the worker as plain values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from voiceloop.agent import AgentConfig
from voiceloop.config import AUTO, Config
from voiceloop.errors import ConfigError
from voiceloop.models.cache import read_json
from voiceloop.operation import MIB
from voiceloop.workers.messages import RoleSpec, WorkerSpec

# The open turn's, the answer's, and four out of band.
BRANCHES_PER_SESSION = 6
# Of memory, on a CPU, for conversations that nobody is in now: what is kept need not be read again
# (benchmarks/LOG.md, 2026-11-22, "prompts that were read before").
KV_SPARE_BYTES = 512 * MIB
# Of the disk, for the agent's instructions as they were read; the longest unused make room.
PREFIX_FILE_BYTES = 512 * MIB
# Of the engine's fields those that a configuration sets under another name, for errors.
KEYS = {
    "quant": "engine.weights",
    "kv_format": "engine.kv",
    "kv_tokens": "engine.kv_tokens",
    "context_length": "context_tokens",
    "device": "engine.device",
    "threads": "engine.threads",
    "draft_dir": "engine.drafter",
    "eagle_dir": "engine.drafter",
    "adapter_dir": "llm_adapter",
    "adapters": "llm_adapter",  # of agents
    "route_file": "cascade.large_share",
}
# As `engine.route.ROUTE_FILE`.
ROUTE_FILE = "route.safetensors"
# Of the disk, for the weights of large models as a CPU reads them: five of 1.5B, two of 4B.
PACKED_FILE_BYTES = 8 * 1024 * MIB
DENSE = "bf16"  # what is not quantized
# As `engine.types.pool_tokens_for` counts: a block for what is computed ahead, one for a copy.
KV_BLOCK_TOKENS, SPARE_BLOCKS = 16, 2
HEAD_ON_CPU = "its layers keep to themselves what a head reads"
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
        ConfigError: `engine.drafter` names what the device cannot run; `engine.kv_tokens` cannot
            hold the context that is asked for; a route head is wanted, and none is there.
    """
    engine = config.engine
    options: dict[str, Any] = {
        **base,
        "max_branches": BRANCHES_PER_SESSION * config.limits.max_sessions,
        "threads": engine.threads or n_threads,
        "kv_spare_bytes": KV_SPARE_BYTES,
        "prefix_file_bytes": PREFIX_FILE_BYTES,
        "packed_file_bytes": PACKED_FILE_BYTES,
        "keys": KEYS,
    }
    if model is not None:
        options["model_dir"] = str(model)
    if adapter is not None:
        options["adapter_dir"] = str(adapter)
    if config.cascade.large_share < 1:
        options["route_file"] = str(_route_head(adapter or model))
    if engine.weights != AUTO:
        options["quant"] = None if engine.weights == DENSE else engine.weights
    if engine.kv != AUTO:
        options["kv_format"] = PLAIN_KV if engine.kv == DENSE else engine.kv
    if engine.device != AUTO:
        options["device"] = engine.device
    if not config.anticipation.does("prefix_cache"):
        options["prefix_cache"] = False
    device = str(options.get("device", "cpu"))
    return options | _drafters(engine.drafter, draft, device) | _memory(config, options)


def with_adapters(
    specs: Iterable[WorkerSpec], agents: Sequence[AgentConfig]
) -> tuple[WorkerSpec, ...]:
    """The processes, with the adapters of the agents beside the language model that they hold.

    What stands in for it, where its device fails, is it by plain torch, or another model, which has
    none. Raises: ConfigError where no process holds one, or it has an adapter merged already.
    """
    specs = tuple(specs)
    folders = list(dict.fromkeys(str(a.llm_adapter) for a in agents if a.llm_adapter is not None))
    if not folders:
        return specs
    roles = [role for spec in specs for role in spec.roles if role.role == "engine"]
    if not roles:
        raise ConfigError(
            "llm_adapter of an agent: expected the language model here, found it elsewhere"
        )
    merged = roles[0].options.get("adapter_dir")
    if merged is not None:
        raise ConfigError(
            f'llm_adapter of an agent: expected llm_adapter = "none" of the server beside it, '
            f"found {merged} merged into the model"
        )

    def of_role(role: RoleSpec, model: str) -> RoleSpec:
        if role.role != "engine" or role.options.get("model_dir") != model:
            return role
        lower = tuple(of_role(one, model) for one in role.lower)
        return replace(role, options={**role.options, "adapters": folders}, lower=lower)

    model = roles[0].options["model_dir"]
    return tuple(
        replace(spec, roles=tuple(of_role(role, model) for role in spec.roles)) for spec in specs
    )


def _route_head(folder: Path | None) -> Path:
    """Raises: ConfigError."""
    found = folder / ROUTE_FILE if folder is not None else None
    if found is None or not found.is_file():
        wanted = f"cascade.large_share: expected a model whose folder has {ROUTE_FILE}"
        raise ConfigError(f"{wanted}, found no file {found or ''}".rstrip())
    return found


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
    asked, kv_tokens, found = config.context_tokens, config.engine.kv_tokens, dict[str, Any]()
    length = options.get("context_length")
    if length is not None and length < asked:
        found["context_length"] = length = asked
        if options.get("kv_tokens", asked) < room_for(asked):
            found["kv_tokens"] = room_for(asked)
    if kv_tokens:
        longest = _longest_in(kv_tokens)
        if asked > longest:
            raise ConfigError(
                f"engine.kv_tokens: expected {room_for(asked)} at least, for a context of {asked} "
                f"tokens, found {kv_tokens}"
            )
        # A preset's own context gives way, and so does its share of the memory.
        found |= {
            "kv_tokens": kv_tokens,
            "context_length": min(length or longest, longest),
            "kv_memory_share": 0.0,
        }
    return found


def _drafters(named: str, draft: Path | None, device: str) -> dict[str, Any]:
    """n-grams where nothing else is said, and the draft model where there is one.

    named: `engine.drafter`. draft: as `engine_options`. Raises: ConfigError.
    """
    is_on_gpu = device.startswith("cuda")
    if named == "none":
        return {"max_draft_tokens": 0}
    if named == AUTO:
        draft = None if is_on_gpu else draft
    elif named == "ngram":
        draft = None
    else:
        draft, is_head = Path(named), _is_head(Path(named))
        if is_head and not is_on_gpu:
            raise ConfigError(
                f"engine.drafter: expected a language model on a GPU for {named}, found device "
                f"{device}: {HEAD_ON_CPU}; 'ngram' is the default there"
            )
        if is_head:
            return {"eagle_dir": named}
    return {"ngram_draft": True} | ({"draft_dir": str(draft)} if draft is not None else {})


def _is_head(folder: Path) -> bool:
    """Whether it holds an EAGLE-3 head; else it is a draft model's. Raises: ConfigError."""
    if not folder.is_file() and not (folder / "config.json").is_file():
        raise ConfigError(
            "engine.drafter: expected auto, ngram, none, or a model's folder with config.json, "
            f"found none at {folder}"
        )
    values = {} if folder.is_file() else read_json(folder / "config.json")
    return "draft_vocab_size" in values or "eagle" in str(values.get("architectures")).lower()
