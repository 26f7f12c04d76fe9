"""The keys of a server's configuration, each declared once.

Owns ``Config``, and where values come from: TOML < environment (``VOICELOOP_*``) < flag. A field
is a key: its type, default, bounds and description (`config_reader.py` says how). The page
``CONFIG.md``, the flags and ``voiceloop doctor`` are made of these declarations.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from voiceloop.config_reader import (
    AUTO as AUTO,
)
from voiceloop.config_reader import (
    FILE,
    Device,
    Key,
    from_environment,
    is_origin,
    key,
    keys_of,
    overlay,
    read_toml,
)
from voiceloop.config_reader import (
    PROVIDER as PROVIDER,
)
from voiceloop.config_reader import (
    nearest as nearest,
)
from voiceloop.errors import ConfigError
from voiceloop.operation import (
    HOST,
    MAIN_MODEL,
    PORT,
    CanarySettings,
    KeyQuota,
    RecordingSettings,
    Slo,
    TraceSettings,
    WebRtcSettings,
    WorkerAddresses,
    is_address,
    is_network,
    is_private,
)
from voiceloop.operation import Limits as Limits  # whoever has a Config has these
from voiceloop.phone_settings import CARRIERS, EXCHANGES, WEBHOOK, PhoneSettings
from voiceloop.removed_keys import instead_of_variable
from voiceloop.sip_settings import SipSettings

PREFIX = "VOICELOOP_"
LEAST_WEBHOOK_SECRET = 16
N_PRICES = 3  # of a model's tokens
NO_ADAPTER = "none"  # of llm_adapter: not the one that ships for a model either
LEAST_CONTEXT_TOKENS = 256  # less holds no instructions and no reply
MOST_CONTEXT_TOKENS = 10**8
LEAST_SECRET_CHARACTERS = 16
LEAST_PASSWORD_CHARACTERS = 8  # of a telephone; it is never sent, so it is guessed at our pace
MOST_THREADS = 64  # as many as the native layers run on
# Set for the test suite, recipes and benchmarks; no settings of a server.
FOREIGN = frozenset(
    f"VOICELOOP_{name}"
    for name in "CACHE CONNECTIONS DATA FUZZ FUZZ_EXAMPLES GOLDEN_INTO LLAMA_CPP "
    "TAGGED_CALLS".split()
)

# A model may be an id `owner/name` as well as a folder, and beside a URL it is the service's own
# name: it is a path only where it begins with ./ or ../.
ModelName = Annotated[str, Meta(extra={"not_path": r"(?!\.\.?/).*"})]
SPEAKS = "realtime"  # the provider of a server that speaks
WEB, SOCKETS, WORKER = ("http", "https"), ("http", "https", "ws", "wss"), "worker"
Urls = Annotated[tuple[str, ...], Meta(extra={"schemes": (*WEB, WORKER), "providers": SOCKETS})]
SpeechUrls = Annotated[
    tuple[str, ...], Meta(extra={"schemes": (*SOCKETS, WORKER), "providers": SOCKETS})
]
Secrets = Annotated[
    tuple[str, ...], Meta(extra={"not_path": r"(?s)(?!file:).*", "one_or_list": True})
]
KEY_RULES = (
    " The key is sent to no other host. If the URLs name several hosts, name one key for "
    "each, in their order. `file:PATH` reads it from a file."
)
LanguageServices = Literal[
    "auto", "vllm", "sglang", "llama.cpp", "ollama", "lm-studio", "litellm", "openai", "azure",
    "groq", "cerebras", "openrouter", "gemini", "anthropic", "mistral", "openai-like",
]  # fmt: skip
PRESETS_OWN = "the preset's"
Tokens = Annotated[
    int,
    Meta(ge=LEAST_CONTEXT_TOKENS, le=MOST_CONTEXT_TOKENS, extra={"zero": PRESETS_OWN}),
]


AheadPart = Literal[
    "prefill", "retrieval", "p_end", "p_voice", "speculative_reply", "held_clause", "early_start",
    "prefix_cache", "tool_calls", "slide",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ahead:
    """The work done for a reply before the caller has finished."""

    off: tuple[AheadPart, ...] = key(
        (), 'The parts that are switched off, as `["early_start"]`. None: all of them work.'
    )

    def does(self, part: AheadPart) -> bool:
        """Whether this part works."""
        return part not in self.off


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engine runs a language model here; 0 and "auto" leave a key to the preset."""

    weights: Literal["auto", "bf16", "int8", "int4"] = key(
        "auto",
        "How the language model's weights are kept. `auto` is int8, or what a model in our "
        "table needs. A checkpoint in full precision is rounded to this format. From a GGUF file "
        "`int4` and `int8` keep codes of four bits (Q4_0, Q4_1, Q4_K) as they are, and the rest "
        "in eight bits. Every format has one bar: the likeliest token agrees with bf16 in 99.4 "
        "%, and KL divergence is 0.01 nats at most, on the model's own replies (`voiceloop "
        "models gate MODEL --weights int8`). You may "
        "serve a format that has not passed this check; the server's start and `voiceloop "
        "doctor` then warn you.",
    )
    kv: Literal["auto", "bf16", "int8"] = key(
        "auto",
        "How keys and values are kept. Every format but bf16 has a scale for each token and head,"
        " and the bar of `engine.weights`. `auto` is int8 in `gpu`, bf16 in the other presets.",
    )
    kv_tokens: Tokens = key(
        0,
        "Room for the keys and values of all calls together, in tokens. The start prints how much "
        "memory that is. A CPU has 512 MiB more for earlier conversations, taken as they are used. "
        "Without the key the preset `gpu` takes 60 "
        "% of the memory that is free after the weights are loaded. For one conversation of "
        "`context_tokens` leave room for 47 tokens more. If a preset's context does not fit, "
        "the server shortens it; if your `context_tokens` do not fit, it does not start.",
    )
    drafter: str = key(
        AUTO,
        "What guesses tokens ahead, for the language model to verify. `ngram` guesses what "
        "followed the same tokens before. `auto` uses n-grams, and on a CPU also the draft "
        "model if the language model has one. A folder: of a small model with the same "
        "tokenizer, which drafts beside n-grams, or of an EAGLE-3 head, which drafts alone on"
        " a GPU ([MODELS.md](MODELS.md#an-eagle-3-head)). The reply's text is the same with "
        "every drafter.",
        not_path="auto|ngram|none",
    )
    device: Device = key(
        AUTO, "Where the language model runs. `cpu`, `cuda`, `cuda:1`; `auto` is the preset's."
    )
    threads: int = key(
        0, "Threads of the language model on a CPU.", ge=1, le=MOST_THREADS, zero=PRESETS_OWN
    )


@dataclass(frozen=True, slots=True)
class LanguageRequests:
    """Fields and headers that every request to the services at `llm_url` carries besides."""

    request: Mapping[str, Any] = key(
        {}, "Fields of the body, as the service names them. They replace VoiceLoop's own."
    )
    headers: Mapping[str, Any] = key(
        {},
        "Headers by name. A value may name variables of the environment as `${NAME}`.",
        secret=True,
    )


@dataclass(frozen=True, slots=True)
class FurtherModel:
    """A language model beside the one that `llm_url`, `llm_model` or the preset names."""

    name: str = key(
        ...,
        "The name that sessions, agents and `[cascade]` use. `main` is the server's own model.",
        pattern=r"(?!main$)[A-Za-z0-9][A-Za-z0-9_.-]{0,63}",
        wanted="1 to 64 letters, digits, _ . or -, and not main",
    )
    url: Urls = key(
        (),
        "An OpenAI-compatible service, or several of one model. Or a provider, as of "
        "`stt_url`. `worker://HOST:PORT` is the engine of another VoiceLoop.",
    )
    model: ModelName = key(
        "",
        "Without `url`: a folder, a GGUF file or an id, as `llm_model`; it runs in a process of "
        "its own. Beside `url`: the service's own name of its model.",
    )
    service: LanguageServices = key(AUTO, "As `llm_service`.")
    language: str = key(
        "",
        "The only language that it answers in, as `en`. A call in another language does not get "
        "it. Empty: it is not known to lack any.",
        pattern=r"|[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*",
        wanted="a language like en or de-AT",
    )
    takes: tuple[Literal["tools", "sound"], ...] = key(
        ("tools",),
        "What it takes besides words. Without `tools` a call that has tools does not get it. "
        "`sound`: as `llm_hears`; it needs `url`.",
    )
    # The last: from here on the name is no longer the function's.
    key: Secrets = key(
        (),
        "The key of the service. Of a worker the one in place of `workers.key`." + KEY_RULES,
        secret=True,
    )


@dataclass(frozen=True, slots=True)
class CascadeSettings:
    """Two language models in one call. One of both is the server's own."""

    models: tuple[str, ...] = key(
        (),
        'The small one and the large one, as `["main", "big"]`. One of both is `main`, the '
        "server's own; the other a name of `[[models]]`. The small one answers what is easy, and "
        "what is left when the large one fails.",
    )
    verify: bool = key(
        False,
        "The small model drafts the first clause in the pause, and a large one with the same "
        "tokenizer verifies it ([TWO_MODELS.md](TWO_MODELS.md#an-edge-and-a-cloud)). Off: the"
        " large model writes the clause alone.",
    )
    large_share: float = key(
        1.0,
        "The share of turns that the large model answers where nothing else decides. The route "
        "head of the server's own model ranks them by how much they need it: the file "
        "`route.safetensors` in its folder, as `python -m engine.recipes.train_route` writes it. "
        "1: all, and no head is read.",
        ge=0,
        le=1,
    )

    @property
    def further(self) -> str:
        """Return which of `[[models]]` it has; "": there is no cascade."""
        return next((one for one in self.models if one != MAIN_MODEL), "")


@dataclass(frozen=True, slots=True)
class VoiceSettings:
    """Settings for every voice, here or behind a service."""

    lexicon: Mapping[str, Any] = key(
        {},
        'Words that the voice would misread, and how it is to read them: `Nguyen = "win"`. '
        "Upper and lower case are alike. Captions and the history keep the word as it was "
        "written.",
    )


@dataclass(frozen=True, slots=True)
class Config:
    """One server. Every field may be set in TOML, as ``VOICELOOP_<FIELD>``, or by a flag.

    Fields of ``limits`` stand in a table of that name, or as ``VOICELOOP_LIMITS_<FIELD>``; so do
    those of the other tables.
    """

    host: str = key(
        HOST,
        "Address to listen on. Beyond this machine (`0.0.0.0`) it needs keys.",
    )
    port: int = key(PORT, "Port to listen on, 0 for any free one.", ge=0, le=65535)
    preset: str = key(
        AUTO,
        "Which models answer: embedded, cpu, gpu, remote, or auto. `auto` is the best whose "
        "models are on disk and whose device is here ([MODELS.md](MODELS.md)).",
    )
    agent: Path | None = key(
        None,
        "The agent's file, or the name of an agent that ships. These are `cafe`, `clinic`, "
        "`dentist`, `library`, `pizzeria`. Without one: [`cafe`](../agents/cafe.toml) with the "
        "embedded language model, else a plain assistant.",
        not_path=r"[\w-]+",
    )
    agents: Path | None = key(
        None,
        "A folder of agent files, each served under its file's name. A caller names one by "
        "the address `/agents/NAME/v1/realtime`, by `?agent=NAME`, or by a client secret. If "
        "a caller names none, the agent of the key `agent` answers. Without that key the first "
        "agent in alphabetical order answers. All agents use the same models. Each agent has its "
        "own tools, documents, answers and pre-synthesized lines.",
    )
    reload: bool = key(
        False,
        "Read the agent's file again each time that it is saved. Use it while you write one. "
        "Open calls have the new instructions, voice and speed in their next turn; new calls "
        "have the rest too. Changed tools, documents and slots take effect at the next start.",
    )
    keys: tuple[str, ...] = key(
        (),
        "API keys that let a client in, 8 characters or more each. After a key, and a space, "
        "may come names of `agents`: the key opens these alone, and the first unless its "
        "caller names one. No keys: everybody who reaches the port may call.",
        secret=True,
    )
    keys_file: Path | None = key(
        None,
        "A file with API keys as `keys`, one a line. `#` begins a comment line. The server "
        "reads it again within 5 s of a change: a new key works, and calls of a removed key "
        "end.",
    )
    metrics_key: str = key(
        "",
        "Opens `/metrics` to a client that sends it as a bearer token, from anywhere. No "
        "other key does. 16 characters or more. Without `metrics_key` only clients on this "
        "machine can read `/metrics`, with one of `keys` if there are keys.",
        secret=True,
    )
    secret_key: Annotated[tuple[str, ...], Meta(extra={"one_or_list": True})] = key(
        (),
        "The secret of servers that take over each other's calls "
        "([PROTOCOL.md](PROTOCOL.md#a-call-that-goes-on-elsewhere)). 16 characters or more, "
        "as `openssl rand -hex 32` makes it. If you name several, the server signs with the "
        "first and accepts all. To change it, put the new one first, and take the old one out"
        " two hours later. Without `secret_key`, servers that have the caller's key among "
        "their `keys` can resume each other's calls. A server with neither `secret_key` nor "
        "`keys` resumes only calls that it held itself, and none after a restart.",
        secret=True,
    )
    allowed_origins: tuple[str, ...] = key(
        (),
        "Web pages of other hosts that may connect, as `https://app.example` or "
        "`https://app.example:8443`. `*` for all.",
    )
    stt_url: SpeechUrls = key(
        (),
        "A service in place of the preset's recognizer. You may name several, with commas "
        "between them; if one fails, the call continues with the next. `NAME:` is a provider,"
        " ours or a package's; `NAME+wss://HOST` is the provider at that address "
        "([MODELS.md](MODELS.md#a-provider-of-your-own)).",
    )
    llm_url: Urls = key(
        (),
        "An OpenAI-compatible service in place of the preset's language model. Several may be "
        "named; a call stays with one. Or a provider, as of `stt_url`. Or workers on the network, "
        "`worker://HOST:PORT` each, as in `stt_url` and `tts_url` too ([CLUSTER.md](CLUSTER.md)).",
    )
    tts_url: Urls = key(
        (),
        "A service in place of the preset's voice. Several may be named. Or a provider, as of "
        "`stt_url`.",
    )
    stt_model: ModelName = key(
        "",
        "Another recognizer, a folder or an id `owner/name` on disk. Beside `stt_url`: the "
        "service's own name of its model. In a file a folder is written `./folder`.",
    )
    llm_model: ModelName = key(
        "",
        "Another language model, as `stt_model`. It may also be a GGUF file or `smollm2-135m` "
        "([MODELS.md](MODELS.md#language-models)).",
    )
    tts_model: ModelName = key("", "Another voice, as `stt_model`.")
    llm_adapter: Path | None = key(
        None,
        "A LoRA adapter in PEFT's format, merged into the language model. Not beside `llm_url`. "
        "Without one: the adapter that ships for the model, if any; `none` leaves that out too "
        "([MODELS.md](MODELS.md#an-adapter)).",
        not_path=NO_ADAPTER,
    )
    stt_key: Secrets = key((), "The key of the service at `stt_url`." + KEY_RULES, secret=True)
    llm_key: Secrets = key((), "The key of the service at `llm_url`." + KEY_RULES, secret=True)
    tts_key: Secrets = key((), "The key of the service at `tts_url`." + KEY_RULES, secret=True)
    llm_service: LanguageServices = key(
        AUTO,
        "Which service answers at `llm_url`: how it is keyed, kept from reasoning, and which "
        "fields it refuses. `auto`: what its address or its list of models says.",
    )
    llm_hears: bool = key(
        False,
        "The model at `llm_url` hears: it is sent the sound of the caller's turn beside the words "
        "([HEARING_MODELS.md](HEARING_MODELS.md)).",
    )
    realtime_url: Annotated[tuple[str, ...], Meta(extra={"schemes": ("ws", "wss")})] = key(
        (),
        "A server that answers in sound, over the Realtime protocol, as "
        "`wss://api.openai.com/v1`. Behind a `#` may stand its name of a voice. This server "
        "replaces the language model and the voice of its replies "
        "([HEARING_MODELS.md](HEARING_MODELS.md#a-server-that-speaks)). `llm_key` and "
        "`llm_model` are its key and its model. It cannot be combined with `llm_url` or "
        "`[[models]]`.",
    )
    context_tokens: int = key(
        0,
        "How many tokens the language model takes, prompt and reply. In a longer call the "
        "model sees only the later turns ([notes of the "
        "rest](#what-it-keeps-of-a-long-call)). You may ask for a longer context than the "
        "preset's, up to the checkpoint's. For a service no limit is set here.",
        ge=LEAST_CONTEXT_TOKENS,
        le=MOST_CONTEXT_TOKENS,
        zero="the model's own",
    )
    pacing_lead_ms: int = key(
        60,
        "How far ahead of its playing the server sends sound. 60 suits a LAN, 150 to 200 the "
        "internet. When a caller interrupts, the server makes the agent quieter. The caller "
        "hears that this much later.",
        ge=20,
        le=5000,
    )
    mcp_allowed_hosts: tuple[str, ...] = key(
        (),
        "Hosts whose MCP servers a session may name among its tools "
        "([PROTOCOL.md](PROTOCOL.md#mcp-servers-of-a-session)). As `mcp.shop.example` or "
        "`mcp.shop.example:8443`, over https and at that port alone (443 where none is "
        "named); plain http where it is written, `http://10.0.0.7:8000`. None: the server "
        "accepts such tools but does not use them. Needs the extra `mcp`.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = key(
        "info", "How much is logged. No level logs what is said, heard or generated."
    )
    certfile: Path | None = key(None, "Serve TLS with this certificate (PEM).")
    keyfile: Path | None = key(None, "The private key of `certfile` (PEM).")
    models: tuple[FurtherModel, ...] = key(
        (), "Further language models, each a `[[models]]`, see below."
    )
    cascade: CascadeSettings = field(default_factory=CascadeSettings)
    llm: LanguageRequests = field(default_factory=LanguageRequests)
    voice: VoiceSettings = field(default_factory=VoiceSettings)
    limits: Limits = field(default_factory=Limits)
    anticipation: Ahead = field(default_factory=Ahead)
    engine: EngineSettings = field(default_factory=EngineSettings)
    quota: KeyQuota = field(default_factory=KeyQuota)
    slo: Slo = field(default_factory=Slo)
    prices: Mapping[str, tuple[float, ...]] = key(
        {},
        "What a million tokens of each model cost, in whatever currency, as `main = [3.0, "
        "0.3, 15.0]`. The three prices are for computed prompt tokens, cached prompt tokens, "
        "and reply tokens, heard or not. `main` is the server's own model, further ones have "
        "the names of `[[models]]`. In a variable: `main=3.0 0.3 15.0`.",
    )
    traces: TraceSettings = field(default_factory=TraceSettings)
    workers: WorkerAddresses = field(default_factory=WorkerAddresses)
    canary: Mapping[str, float] = key(
        {},
        "The label of the workers that are tried, and their share of new calls, as `v2 = 0.05`. "
        "The label is that of `voiceloop worker --version`. They lose the share by themselves "
        "where they are surely worse than the others ([CLUSTER.md](CLUSTER.md#a-canary)).",
    )
    webrtc: WebRtcSettings = field(default_factory=WebRtcSettings)
    phone: PhoneSettings = field(default_factory=PhoneSettings)
    sip: SipSettings = field(default_factory=SipSettings)
    recording: RecordingSettings = field(default_factory=RecordingSettings)

    @property
    def trial(self) -> CanarySettings:
        """The workers that are tried, of `canary`."""
        version, share = next(iter(self.canary.items()), ("", 0.0))
        return CanarySettings(version, share)


def all_keys(kind: Any = Config, path: str = "") -> Mapping[str, Key]:
    """Every key by its path, as ``port`` and ``engine.kv``, in order. kind: a table."""
    found: dict[str, Key] = {}
    for name, one in keys_of(kind).items():
        inner = all_keys(one.kind, f"{path}{name}.") if is_dataclass(one.kind) else {}
        found |= inner or {f"{path}{name}": one}
    return found


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
        config = overlay(config, read_toml(path), str(path), folder=path.absolute().parent)
    if environ is not None:
        config = overlay(config, _from_environment(environ), "the environment", is_text=True)
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    config = overlay(config, _nested(given), "the command line", is_text=True)
    config = _with_service_keys(_with_workers(_with_key_file(config)), environ or {})
    _check(config)
    return _with_realtime(config)


def _with_realtime(config: Config) -> Config:
    """A server that speaks is asked in place of the language model: by the provider of its name."""
    if not config.realtime_url:
        return config
    return replace(config, llm_url=(f"{SPEAKS}+{config.realtime_url[0]}",))


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """``engine.kv`` -> engine: {kv}, ``sip.trunk.uri`` -> sip: {trunk: {uri}}."""
    found: dict[str, Any] = {}
    for path, value in values.items():
        *tables, key = path.split(".")
        table = found
        for name in tables:
            table = table.setdefault(name, {})
        table[key] = value
    return found


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """``VOICELOOP_PORT`` -> port, ``VOICELOOP_LIMITS_MAX_SESSIONS`` -> limits.max_sessions."""
    paths = {variable_of(path): path for path in all_keys()}
    found: dict[str, Any] = {}
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name in FOREIGN:
            continue
        if name not in paths:
            if (instead := instead_of_variable(name, PREFIX)) is not None:
                raise ConfigError(f"the environment: {name}: removed. {instead}")
            near = nearest(name, paths)
            raise ConfigError(f"the environment: expected a known variable, found {name}{near}")
        found[paths[name]] = text
    return _nested(found)


def variable_of(path: str) -> str:
    """The variable of the environment that sets a key."""
    return PREFIX + path.replace(".", "_").upper()


def check_keys(keys: Sequence[str]) -> None:
    """Raises: ConfigError: one of them is no API key."""
    alone = [next(iter(key.split()), "") for key in keys]  # without the agents that it opens
    if any(len(key) < 8 for key in alone):
        raise ConfigError("keys: expected keys of at least 8 characters, found a shorter one")
    if any(key.startswith("ek_") for key in keys):  # so do client secrets
        raise ConfigError("keys: expected keys that do not begin with ek_, found one that does")


def read_keys_file(path: Path) -> tuple[str, ...]:
    """Read the file's keys: one a line, ``#`` comments. Raises: ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # not UTF-8, or no path at all: both are ValueErrors
        raise ConfigError(
            f"keys_file: expected a readable text file, found {path} ({error})"
        ) from None
    lines = (line.strip() for line in text.splitlines())
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"keys_file: expected one key a line, found none in {path}")
    check_keys(keys)
    return keys


def _with_key_file(config: Config) -> Config:
    if config.keys_file is None:
        return config
    return replace(config, keys=(*config.keys, *read_keys_file(config.keys_file)))


def _with_workers(config: Config) -> Config:
    """Return what the URLs name as workers on the network, apart from services."""
    urls: dict[str, Any] = {}
    named: dict[str, Any] = {}
    for name, role in (("llm_url", "engine"), ("stt_url", "recognizer"), ("tts_url", "voice")):
        if found := workers_of(name, getattr(config, name)):
            urls[name], named[role] = (), found
    return replace(config, **urls, workers=replace(config.workers, **named))


def workers_of(name: str, urls: Sequence[str]) -> tuple[str, ...]:
    """HOST:PORT of workers; none where these are services. Raises: ConfigError on both."""
    marks = [url.partition("://") for url in urls]
    found = tuple(mark[2] for mark in marks if mark[0] == WORKER)
    if 0 < len(found) < len(marks):
        raise ConfigError(f"{name}: expected services or {WORKER}://HOST:PORT, found both")
    return found


def _with_service_keys(config: Config, environ: Mapping[str, str]) -> Config:
    """Read the services' keys from the files that they name, and one for each URL."""
    found: dict[str, Any] = {}
    speaks = config.realtime_url
    urls = {"stt": config.stt_url, "llm": speaks or config.llm_url, "tts": config.tts_url}
    for role, of_role in urls.items():
        name = f"{role}_key"
        found[name] = _keys_of(name, getattr(config, name), of_role)
    headers, secrets, ice_servers = (
        _texts_of(where, table, environ)
        for where, table in (
            ("llm.headers", config.llm.headers),
            ("phone.secrets", config.phone.secrets),
            ("webrtc.ice_servers", config.webrtc.ice_servers),
        )
    )
    models = tuple(
        replace(one, key=_keys_of(f"models[{index}].key", one.key, one.url))
        for index, one in enumerate(config.models)
    )
    return replace(
        config,
        **found,
        models=models,
        llm=replace(config.llm, headers=headers),
        phone=replace(config.phone, secrets=secrets),
        webrtc=replace(config.webrtc, ice_servers=ice_servers),
    )


def _texts_of(where: str, table: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the table's values, out of the environment where they name it. Raises: ConfigError."""
    for name, value in table.items():
        if isinstance(value, list | dict):
            raise ConfigError(f"{where}.{name}: expected one text, found several values")
    return {
        name: from_environment(str(value), environ, f"{where}.{name}")
        for name, value in table.items()
    }


def _keys_of(name: str, given: tuple[str, ...], urls: tuple[str, ...]) -> tuple[str, ...]:
    """One key for each address. Raises: ConfigError."""
    keys = tuple(_secret(one, name) for one in given)
    if len(keys) == 1 and len({urlsplit(url).hostname for url in urls}) <= 1:
        keys = keys * len(urls)
    if keys and len(keys) != len(urls):
        table, _, _ = name.rpartition(".")
        where = f"{table}.url" if table else name.replace("_key", "_url")
        raise ConfigError(
            f"{name}: expected one key for each of {len(urls)} URLs in {where}, found {len(keys)}"
        )
    return keys


def _secret(text: str, name: str) -> str:
    """A key as it stands, or what is in the file that it names."""
    if not text.startswith(FILE):
        return text
    try:
        found = Path(text.removeprefix(FILE)).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError, RuntimeError):
        raise ConfigError(f"{name}: expected a readable file, found none at {text}") from None
    if not found:
        raise ConfigError(f"{name}: expected a key in the file behind file:, found it empty")
    return found


def _check_sip(sip: SipSettings) -> None:
    """Raises: ConfigError."""
    if not sip.port:
        return
    if not sip.allow and not sip.users:
        raise ConfigError(
            "sip.allow: expected the addresses whose calls are taken, or sip.users, found neither"
        )
    for network in sip.allow:
        if not is_network(network):
            raise ConfigError(f"sip.allow: expected an address or a network, found {network!r}")
    for user in sip.users:
        name, _, password = user.partition(":")
        if not name or len(password) < LEAST_PASSWORD_CHARACTERS:
            wanted = f"name:password with {LEAST_PASSWORD_CHARACTERS} characters or more"
            raise ConfigError(f"sip.users: expected {wanted}, found none for {name!r}")
    if sip.address and not is_address(sip.address):
        raise ConfigError(f"sip.address: expected an IP address, found {sip.address!r}")


def _check(config: Config) -> None:
    """Rules beyond one key; each failure names what was expected and what was found."""
    given = [("secret_key", one) for one in config.secret_key]
    given += [("metrics_key", config.metrics_key)] if config.metrics_key else []
    for name, secret in given:
        if len(secret) < LEAST_SECRET_CHARACTERS:
            raise ConfigError(
                f"{name}: expected {LEAST_SECRET_CHARACTERS} characters or more, found fewer"
            )
    for origin in config.allowed_origins:
        if origin not in ("*", "null") and not is_origin(origin):
            raise ConfigError(
                f"allowed_origins: expected scheme://host or scheme://host:port, found {origin!r}"
            )
    check_keys(config.keys)
    is_file = config.agent is not None and config.agent.is_file()
    if config.reload and not is_file and config.agents is None:
        raise ConfigError(f"reload: expected an agent's file in agent, found {config.agent}")
    if config.mcp_allowed_hosts and find_spec("mcp") is None:
        wanted = "mcp_allowed_hosts: expected the package mcp (pip install 'voiceloop[mcp]')"
        raise ConfigError(f"{wanted}, found none")
    for host in config.mcp_allowed_hosts:
        if not is_origin(host if host.startswith(("http://", "https://")) else f"https://{host}"):
            wanted = "mcp_allowed_hosts: expected host, host:port or http://host:port"
            raise ConfigError(f"{wanted}, found {host!r}")
    address = config.webrtc.address
    if address and not is_address(address):
        raise ConfigError(f"webrtc.address: expected an IP address, found {address!r}")
    for url, secret in config.webrtc.ice_servers.items():
        if not url.startswith(("stun:", "stuns:", "turn:", "turns:")):
            raise ConfigError(
                f"webrtc.ice_servers: expected turn:, turns:, stun: or stuns:, "
                f"found {url.partition(':')[0] + ':' if ':' in url else 'none'}"
            )
        if url.startswith("turn") and not secret:
            raise ConfigError(f"webrtc.ice_servers: expected the secret of {url}, found none")
    _check_sip(config.sip)
    _check_phone(config.phone)
    if config.phone.carriers and not config.phone.public_url:
        raise ConfigError("phone.public_url: expected where carriers reach this server, found none")
    host, port = config.phone.audiosocket_address
    if not is_private(host):
        raise ConfigError(f"phone.audiosocket_at: expected a private address, found {host!r}")
    if port > 65535:
        raise ConfigError(f"phone.audiosocket_at: expected a port of 1 to 65535, found {port}")
    if config.llm_adapter is not None and config.llm_url:
        raise ConfigError("llm_adapter: expected a language model here, found llm_url")
    _check_realtime(config)
    if config.llm_hears and not config.llm_url:
        raise ConfigError("llm_hears: expected llm_url, for a model here reads, found none")
    _check_models(config)
    shares = list(config.canary.values())
    if len(shares) > 1 or not all(_is_number(one) and 0 <= one <= 1 for one in shares):
        wanted = "canary: expected one label and its share of 0 to 1, as v2 = 0.05"
        raise ConfigError(f"{wanted}, found {dict(config.canary)!r:.80}")
    if (config.certfile is None) != (config.keyfile is None):
        raise ConfigError("expected certfile and keyfile together, found one of them")
    for name, one in keys_of(EngineSettings).items():
        elsewhere = "llm_url" if config.llm_url else "realtime_url" if config.realtime_url else ""
        if elsewhere and getattr(config.engine, name) != one.default:
            raise ConfigError(f"engine.{name}: expected a language model here, found {elsewhere}")


def _check_realtime(config: Config) -> None:
    """Raises: ConfigError."""
    if len(config.realtime_url) > 1:
        raise ConfigError(f"realtime_url: expected one URL, found {len(config.realtime_url)}")
    models = {f"models[{at}].url": one.url for at, one in enumerate(config.models)}
    for where, urls in {"llm_url": config.llm_url, **models}.items():
        if any(url.startswith(f"{SPEAKS}+") for url in urls):
            raise ConfigError(f"{where}: expected a server that speaks in realtime_url, found here")
    beside = ("llm_url", "models", "llm_adapter")
    found = [name for name in beside if config.realtime_url and getattr(config, name)]
    if found:
        raise ConfigError(f"realtime_url: expected no {found[0]} beside it, found one")


def _check_models(config: Config) -> None:
    """Raises: ConfigError: a model is named twice or is nowhere, or no cascade can be made."""
    names = [one.name for one in config.models]
    for name, prices in config.prices.items():
        if name not in (MAIN_MODEL, *names):
            wanted = f"prices.{name}: expected {MAIN_MODEL} = [PROMPT, CACHED, REPLY]"
            raise ConfigError(f"{wanted}, or a name of [[models]] before it, found neither")
        if not _are_prices(prices):
            wanted = f"prices.{name}: expected three prices of 0 or more (prompts, cached, replies)"
            raise ConfigError(f"{wanted}, found {prices!r:.80}")
    for index, one in enumerate(config.models):
        where = f"models[{index}]"
        if one.name in names[:index]:
            raise ConfigError(f"{where}.name: expected each name once, found {one.name!r} twice")
        is_engine = bool(workers_of(f"{where}.url", one.url)) or not one.url
        if not (one.url or one.model):
            raise ConfigError(f"{where}: expected url or model, found neither in {one.name!r}")
        if "sound" in one.takes and is_engine:
            wanted = "the url of a service beside sound, for an engine reads"
            raise ConfigError(f"{where}.takes: expected {wanted}, found none")
    cascade = config.cascade
    if cascade.models and (len(cascade.models) != 2 or cascade.models.count(MAIN_MODEL) != 1):
        wanted = f"cascade.models: expected two names, {MAIN_MODEL} one of them"
        raise ConfigError(f"{wanted}, found {', '.join(cascade.models)}")
    if cascade.large_share < 1 and (config.llm_url or not cascade.further):
        found = "llm_url" if config.llm_url else "no cascade"
        raise ConfigError(
            "cascade.large_share: expected a cascade whose own language model runs here, for that "
            f"has the route head, found {found}"
        )
    if cascade.further and cascade.further not in names:
        wanted = "cascade.models: expected a name of [[models]]"
        raise ConfigError(
            f"{wanted} ({', '.join(names) or 'there is none'}), found {cascade.further!r}"
            f"{nearest(cascade.further, names)}"
        )


def _are_prices(given: Any) -> bool:
    is_list = isinstance(given, list | tuple) and len(given) == N_PRICES
    return is_list and all(_is_number(one) and 0 <= one < inf for one in given)


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _check_phone(phone: PhoneSettings) -> None:
    for name, secret in phone.secrets.items():
        where = f"phone.secrets.{name}"
        if name not in (known := (*CARRIERS, *EXCHANGES, WEBHOOK)):
            wanted = f"{where}: expected one of {', '.join(known)}"
            raise ConfigError(f"{wanted}, found another name")
        if not secret.strip():
            raise ConfigError(f"{where}: expected a secret, found none")
        if name == "telnyx" and not re.fullmatch("[A-Za-z0-9+/]{43}=", secret):
            raise ConfigError(f"{where}: expected an Ed25519 key in base64, found another text")
    of_webhook = phone.secrets.get(WEBHOOK, "")
    if phone.webhook_url and len(of_webhook) < LEAST_WEBHOOK_SECRET:
        wanted = f"at least {LEAST_WEBHOOK_SECRET} characters beside phone.webhook_url"
        raise ConfigError(f"phone.secrets.webhook: expected {wanted}, found fewer")
    if of_webhook.startswith("whsec_"):
        try:
            b64decode(of_webhook.removeprefix("whsec_"), validate=True)
        except ValueError:
            told = "expected base64 behind whsec_, found other text"
            raise ConfigError(f"phone.secrets.webhook: {told}") from None
    numbers = [one.number for one in phone.number]
    for index, one in enumerate(phone.number):
        if one.number in numbers[:index]:
            raise ConfigError(f"phone.number[{index}]: expected each number once, found it twice")
