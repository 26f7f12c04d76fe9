"""What a server is told at its start.

Owns ``Config``, its defaults and where values come from: TOML < environment (``VOICELOOP_*``) <
flag. ``config_reader.py`` does the strict reading: an unknown key fails and names the nearest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from voiceloop.config_reader import (
    check_device,
    check_origin,
    check_url,
    field_types,
    is_origin,
    nearest,
    one_or_list,
    overlay,
    read_toml,
)
from voiceloop.errors import ConfigError
from voiceloop.operation import (
    CanarySettings,
    KeyQuota,
    Prices,
    Slo,
    TraceSettings,
    WorkerAddresses,
)
from voiceloop.operation import Limits as Limits  # whoever has a Config has these
from voiceloop.removed_keys import instead_of_variable

PREFIX = "VOICELOOP_"
PATHS = ("agent", "llm_adapter", "keys_file", "certfile", "keyfile")
NO_ADAPTER = "none"  # of llm_adapter: not the one that ships for a model either
TABLE_PATHS = {
    "engine": ("draft_model",),
    "workers": ("list", "ca", "certfile", "keyfile"),
}
MODELS = ("stt_model", "llm_model", "tts_model")
URLS = ("stt_url", "llm_url", "tts_url")
LEAST_CONTEXT_TOKENS = 256  # less holds no instructions and no reply
MOST_CONTEXT_TOKENS = 10**8
MOST_KV_SHARE = 0.9  # the rest is for what a step computes with, and for drafters
LEAST_SECRET_CHARACTERS = 16
MOST_THREADS = 64  # as many as the native layers run on
BARE_WORD = re.compile(r"[\w-]+")
AUTO = "auto"  # the preset that is not named: the best that can start here
# Set for the test suite, recipes and benchmarks; no settings of a server.
FOREIGN = frozenset(
    f"VOICELOOP_{name}"
    for name in "CACHE CONNECTIONS DATA FUZZ FUZZ_EXAMPLES LLAMA_CPP TAGGED_CALLS".split()
)


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is done for a reply before the caller has finished. Each may be switched off alone.

    prefill: the caller's words are staged as they firm up. retrieval: and looked up in documents.
    p_end: P(end of turn) weighs in the wait; p_voice: so does what the recognizer makes of the
    voice. speculative_reply: a reply is generated in the pause; held_clause: and its speech is
    synthesized and held; early_start: and let go at moderate certainty, to be taken back where the
    caller goes on. prefix_cache: the engine's. speculative_decoding: drafters guess tokens
    that the engine verifies; which ones, says ``engine.drafter``. warm_requests: a remote language
    model is called when the caller begins. remote_prefill: and made to read the conversation, then
    the words, where that pays. remote_drafts: preemptive replies also where a remote language model
    writes (and bills) them. remote_priority: how it is told which requests nobody waits for yet.
    budget_tokens, budget_speech_ms: what a session may throw away a minute, drafts and replies cut
    short, before it drafts no more. tool_calls: of what changes nothing, in the pause. slide: the
    window of a long call moves on while nobody speaks.
    """

    prefill: bool = True
    retrieval: bool = True
    p_end: bool = True
    p_voice: bool = True
    speculative_reply: bool = True
    held_clause: bool = True
    early_start: bool = True
    prefix_cache: bool = True
    speculative_decoding: bool = True
    warm_requests: bool = True
    remote_prefill: bool = True
    remote_drafts: bool = True
    remote_priority: Literal["auto", "low_first", "high_first", "none"] = "auto"
    tool_calls: bool = True
    slide: bool = True
    budget_tokens: int = 1000
    budget_speech_ms: int = 60_000


def _told(default: Any, told: str) -> Any:
    """A field with the words that its flag is told by."""
    return field(default=default, metadata={"told": told})


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engine runs the language model that is here; 0 and "auto": as the preset has it.

    kv_memory_share: of the memory that is free once the weights are read, instead of kv_tokens.
    step_budget_ms: chunks of a prompt are cut so that a step is predicted to end in this time.
    """

    weights: Literal["auto", "bf16", "int8", "int4"] = _told(
        "auto", "how the language model's weights are kept"
    )
    kv: Literal["auto", "bf16", "int8"] = _told("auto", "how its keys and values are kept")
    kv_tokens: int = _told(0, "room for keys and values, in tokens")
    kv_memory_share: float = _told(0.0, "or as a share of the free memory")
    context_tokens: int = _told(0, "most tokens of a prompt and its reply")
    drafter: Literal["auto", "ngram", "model", "eagle", "none"] = _told(
        "auto", "what guesses tokens ahead, for the model to verify"
    )
    draft_model: Path | None = _told(None, "the small model, or the EAGLE-3 head, that drafts")
    device: str = _told("auto", "cpu, cuda or cuda:N")
    threads: int = _told(0, "of the language model on a CPU")
    step_budget_ms: float = _told(10.0, "how long one step of a prompt may take")
    native: bool = _told(True, "int8 and int4 layers by a C library, on a CPU")
    host_tier_mb: int = _told(512, "memory for what the room for keys and values lets go")
    prefix_file_mb: int = _told(512, "disk for the agent's instructions as they were read")


@dataclass(frozen=True, slots=True)
class Config:
    """One server. Every field may be set in TOML, as ``VOICELOOP_<FIELD>``, or by a flag.

    Fields of ``limits`` stand in a table of that name, or as ``VOICELOOP_LIMITS_<FIELD>``; so do
    those of the other tables.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    preset: str = AUTO
    agent: Path | None = None
    keys: tuple[str, ...] = field(default=(), repr=False)
    keys_file: Path | None = None
    metrics_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)  # of all gateways that share calls
    allowed_origins: tuple[str, ...] = ()
    allow_unauthenticated: bool = False
    stt_url: tuple[str, ...] = ()  # services; a call goes on with the next where one fails
    llm_url: tuple[str, ...] = ()
    tts_url: tuple[str, ...] = ()
    # At a URL the service's own name of its model; else a folder or an id instead of the preset's.
    stt_model: str = ""
    llm_model: str = ""
    tts_model: str = ""
    stt_device: str = AUTO  # cpu, cuda or cuda:N, of the models here; the engine's is in its table
    tts_device: str = AUTO
    # A LoRA folder, merged into the local language model; None: its own, where one ships for it.
    llm_adapter: Path | None = None
    end_reader: Literal["embedded", "none"] = "embedded"  # beside a remote language model
    voice_reader: Literal["embedded", "none"] = "embedded"  # where the recognizer tells nothing
    remote_key: str = field(default="", repr=False)
    context_tokens: int = 0  # of the language model; 0: the preset knows
    pacing_lead_ms: int = 60
    mcp_allowed_hosts: tuple[str, ...] = ()  # whose MCP servers a session may name
    http_cache_mb: int = 0  # answers over HTTP at temperature 0, kept to be given again; 0: none
    voice_cache_mb: int = 32  # clauses that the voice here has spoken, kept as sound; 0: none
    # For the output of a client's tool; 0: for ever. Pipecat's default for the same: nobody on the
    # telephone waits longer for a word.
    tool_timeout_ms: int = 10_000
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    certfile: Path | None = None
    keyfile: Path | None = None
    limits: Limits = field(default_factory=Limits)
    anticipation: Ahead = field(default_factory=Ahead)
    engine: EngineSettings = field(default_factory=EngineSettings)
    quota: KeyQuota = field(default_factory=KeyQuota)
    slo: Slo = field(default_factory=Slo)
    prices: Prices = field(default_factory=Prices)
    traces: TraceSettings = field(default_factory=TraceSettings)
    workers: WorkerAddresses = field(default_factory=WorkerAddresses)
    canary: CanarySettings = field(default_factory=CanarySettings)


TABLES: Mapping[str, type[Any]] = {
    "limits": Limits, "anticipation": Ahead, "engine": EngineSettings, "quota": KeyQuota,
    "slo": Slo, "prices": Prices, "traces": TraceSettings, "workers": WorkerAddresses,
    "canary": CanarySettings,
}  # fmt: skip


def load_config(
    path: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """Read the server's configuration: TOML file < environment < flags (None: not given).

    Paths in the file are relative to the folder it lies in; all others to the current one.

    Raises:
        ConfigError: the file is missing or not TOML, a key is unknown (the nearest valid name is
            in the message), or a value is of the wrong type or out of its range.
    """
    config = Config()
    if path is not None:
        config = overlay(config, _beside(path, one_or_list(read_toml(path), URLS)), str(path))
    if environ is not None:
        config = overlay(config, _from_environment(environ), "the environment", is_text=True)
    given = one_or_list({k: v for k, v in (flags or {}).items() if v is not None}, URLS)
    config = _with_key_file(overlay(config, _nested(given), "the command line"))
    _check(config)
    return config


def _nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    """``engine.kv`` -> engine: {kv}: how flags name the keys of a table."""
    found: dict[str, Any] = {}
    for name, value in flags.items():
        table, dot, key = name.partition(".")
        if dot:
            found.setdefault(table, {})[key] = value
        else:
            found[name] = value
    return found


def _beside(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """The file's values with its relative paths made whole.

    A model may be an id ``owner/name`` as well as a folder, and beside a URL it is the service's
    own name: it is a path only where it begins with ``./`` or ``../``. An agent that is a bare
    word, as ``pizzeria``, is one that ships, and an adapter ``none`` is none.
    """
    found = dict(values)
    for key in (*PATHS, *MODELS):
        text = found.get(key)
        if not isinstance(text, str):
            continue  # its type is refused later
        if key == "agent" and BARE_WORD.fullmatch(text):
            continue
        if key == "llm_adapter" and text == NO_ADAPTER:
            continue
        if key in PATHS or text.startswith(("./", "../")):
            found[key] = _whole(path, text)
    for name, keys in TABLE_PATHS.items():
        table = found.get(name)
        if isinstance(table, dict):
            own = {key: table[key] for key in keys if isinstance(table.get(key), str)}
            found[name] = table | {key: _whole(path, text) for key, text in own.items()}
    return found


def _whole(path: Path, text: str) -> str:
    """A path as the file at ``path`` means it. Not Path.expanduser: that raises without a user."""
    return str(path.absolute().parent / os.path.expanduser(text))


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """``VOICELOOP_PORT`` -> port, ``VOICELOOP_LIMITS_MAX_SESSIONS`` -> limits.max_sessions."""
    places = _places_of_variables()
    found: dict[str, Any] = {}
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name in FOREIGN:
            continue
        if name not in places:
            if (instead := instead_of_variable(name, PREFIX)) is not None:
                raise ConfigError(f"the environment: {name}: removed. {instead}")
            near = nearest(name, places)
            raise ConfigError(f"the environment: expected a known variable, found {name}{near}")
        table, key = places[name]
        (found.setdefault(table, {}) if table else found)[key] = text
    return found


def _places_of_variables() -> dict[str, tuple[str, str]]:
    """Of each variable the table ("" for the file's own level) and the key that it sets."""
    own = [("", key) for key in field_types(Config) if key not in TABLES]
    inner = [(table, key) for table, kind in TABLES.items() for key in field_types(kind)]
    return {PREFIX + "_".join(filter(None, place)).upper(): place for place in own + inner}


def _with_key_file(config: Config) -> Config:
    """Add the keys of the key file: one a line, ``#`` comments."""
    if config.keys_file is None:
        return config
    try:
        text = config.keys_file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # not UTF-8, or no path at all: both are ValueErrors
        raise ConfigError(
            f"keys_file: expected a readable text file, found {config.keys_file} ({error})"
        ) from None
    lines = (line.strip() for line in text.splitlines())
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"keys_file: expected one key a line, found none in {config.keys_file}")
    return replace(config, keys=(*config.keys, *keys))


def _check(config: Config) -> None:
    """Ranges; each failure names what was expected and what was found."""
    limits = config.limits
    ranges: list[tuple[str, float, float, float]] = [
        ("port", config.port, 0, 65535),
        ("pacing_lead_ms", config.pacing_lead_ms, 20, 5000),
        ("http_cache_mb", config.http_cache_mb, 0, 10_000),
        ("voice_cache_mb", config.voice_cache_mb, 0, 10_000),
        ("tool_timeout_ms", config.tool_timeout_ms, 0, 600_000),
        *limits.ranges(),
        ("anticipation.budget_tokens", config.anticipation.budget_tokens, 0, 10**9),
        ("anticipation.budget_speech_ms", config.anticipation.budget_speech_ms, 0, 10**9),
        *config.quota.ranges(),
        *config.slo.ranges(),
        *config.prices.ranges(),
        *config.canary.ranges(),
        ("engine.host_tier_mb", config.engine.host_tier_mb, 0, 10**6),
        ("engine.prefix_file_mb", config.engine.prefix_file_mb, 0, 10**6),
    ]
    if config.context_tokens:
        least, most = LEAST_CONTEXT_TOKENS, MOST_CONTEXT_TOKENS
        ranges.append(("context_tokens", config.context_tokens, least, most))
    ranges += _engine_ranges(config.engine)
    for name in ("secret_key", "metrics_key"):
        if 0 < len(getattr(config, name)) < LEAST_SECRET_CHARACTERS:
            raise ConfigError(
                f"{name}: expected {LEAST_SECRET_CHARACTERS} characters or more, found fewer"
            )
    for name in URLS:
        for url in getattr(config, name):
            check_url(name, url)
    check_url("traces.url", config.traces.url)
    for origin in config.allowed_origins:
        check_origin(origin)
    for name, value, low, high in ranges:
        if not low <= value <= high:
            raise ConfigError(f"{name}: expected {low} to {high}, found {value}")
    if any(len(key) < 8 for key in config.keys):
        raise ConfigError("keys: expected keys of at least 8 characters, found a shorter one")
    if any(key.startswith("ek_") for key in config.keys):  # so do client secrets
        raise ConfigError("keys: expected keys that do not begin with ek_, found one that does")
    if config.mcp_allowed_hosts and find_spec("mcp") is None:
        wanted = "mcp_allowed_hosts: expected the package mcp (pip install 'voiceloop[mcp]')"
        raise ConfigError(f"{wanted}, found none")
    for host in config.mcp_allowed_hosts:
        if not is_origin(host if host.startswith(("http://", "https://")) else f"https://{host}"):
            wanted = "mcp_allowed_hosts: expected host, host:port or http://host:port"
            raise ConfigError(f"{wanted}, found {host!r}")
    if config.llm_adapter is not None and config.llm_url:
        raise ConfigError("llm_adapter: expected a language model here, found llm_url")
    for where, pair in (("", config), ("workers.", config.workers)):
        if (pair.certfile is None) != (pair.keyfile is None):
            raise ConfigError(f"expected {where}certfile and keyfile together, found one of them")
    _check_engine(config)


def _engine_ranges(engine: EngineSettings) -> list[tuple[str, float, float, float]]:
    """Of what is set in the table; 0 leaves it to the preset."""
    ranges = [
        ("kv_tokens", engine.kv_tokens, LEAST_CONTEXT_TOKENS, MOST_CONTEXT_TOKENS),
        ("kv_memory_share", engine.kv_memory_share, 0.01, MOST_KV_SHARE),
        ("context_tokens", engine.context_tokens, LEAST_CONTEXT_TOKENS, MOST_CONTEXT_TOKENS),
        ("threads", engine.threads, 1, MOST_THREADS),
    ]
    found = [(f"engine.{name}", value, low, high) for name, value, low, high in ranges if value]
    return [*found, ("engine.step_budget_ms", engine.step_budget_ms, 1, 1000)]


def _check_engine(config: Config) -> None:
    """Keys of ``[engine]`` that contradict each other, or act on nothing."""
    engine = config.engine
    if config.llm_url:
        own = EngineSettings(native=engine.native)  # which the end reader beside a service has too
        for name in field_types(EngineSettings):
            if getattr(engine, name) != getattr(own, name):
                raise ConfigError(f"engine.{name}: expected a language model here, found llm_url")
    check_device("engine.device", engine.device)
    check_device("stt_device", config.stt_device, "stt_url" if config.stt_url else "")
    check_device("tts_device", config.tts_device, "tts_url" if config.tts_url else "")
    if engine.kv_tokens and engine.kv_memory_share:
        raise ConfigError("expected engine.kv_tokens or engine.kv_memory_share, found both")
    if engine.context_tokens and config.context_tokens > engine.context_tokens:
        raise ConfigError(
            f"context_tokens: expected engine.context_tokens ({engine.context_tokens}) at most, "
            f"found {config.context_tokens}"
        )
    if engine.draft_model is not None and engine.drafter in ("ngram", "none"):
        raise ConfigError(
            "engine.draft_model: expected engine.drafter auto, model or eagle, found "
            f"{engine.drafter}"
        )
