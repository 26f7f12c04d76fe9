"""Presets: which worker processes hold which models.

Owns the plan from a preset's name and the remote URLs to worker specs, and the opening of the three
backends that a server calls. A URL replaces that part of the preset.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voiceloop.agent import AgentConfig, embedded_agent, load_agent
from voiceloop.backends import Backends, LanguageModel, Recognizer, Voice
from voiceloop.config import Config
from voiceloop.errors import ConfigError
from voiceloop.supervisor import Progress, Supervisor
from voiceloop.worker_messages import RoleSpec, WorkerSpec

if TYPE_CHECKING:
    from voiceloop.remote import RemoteService

Connect = Callable[[str, str], Awaitable["RemoteService"]]

PRESETS = ("embedded", "remote")
REPLY_TOKENS = 256

# The open turn's, the answer's, and four out of band.
BRANCHES_PER_SESSION = 6


def embedded_model_dir() -> Path:
    """Where the embedded agent's model lies (found, not imported: models belong to workers)."""
    spec = find_spec("engine")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("expected the package engine beside voiceloop, found none")
    return Path(spec.submodule_search_locations[0]) / "embedded" / "agent"


def resolve_agent(config: Config) -> AgentConfig:
    """The agent file of the configuration, else the preset's. Raises ConfigError."""
    if config.agent is not None:
        return load_agent(config.agent)
    return embedded_agent() if config.preset == "embedded" else AgentConfig()


def context_tokens(config: Config) -> int:
    """The prompt's bound: what the language model takes less a reply. 0: not known, no bound."""
    n_tokens = config.context_tokens
    if not n_tokens and config.preset == "embedded" and config.llm_url is None:
        try:
            model = json.loads((embedded_model_dir() / "config.json").read_text(encoding="utf-8"))
            n_tokens = int(model["max_position_embeddings"])
        except (OSError, ValueError, KeyError):
            return 0  # no model there: the engine's worker says so in better words
    return max(0, n_tokens - min(REPLY_TOKENS, n_tokens // 4))


def worker_specs(config: Config) -> tuple[WorkerSpec, ...]:
    """The processes to start.

    The engine has its own; recognizer and voice share another: pocketsphinx holds the interpreter
    lock, and a neighbour's 0.5 ms tick beside it was measured at 7-53 ms.

    Raises:
        ConfigError: no such preset, or a part of ``remote`` without its URL.
    """
    if config.preset not in PRESETS:
        raise ConfigError(f"preset: expected one of {', '.join(PRESETS)}, found {config.preset!r}")
    urls = {"stt_url": config.stt_url, "llm_url": config.llm_url, "tts_url": config.tts_url}
    missing = [name for name, url in urls.items() if url is None]
    if config.preset == "remote":
        if missing:
            raise ConfigError(f"preset remote: expected {', '.join(missing)}, found nothing")
        return ()
    speech: list[RoleSpec] = []
    if config.stt_url is None:
        speech.append(RoleSpec("recognizer", {"model": "pocketsphinx"}))
    if config.tts_url is None:
        speech.append(RoleSpec("voice", {"model": "espeak"}))
    specs: list[WorkerSpec] = []
    if config.llm_url is None:
        options: dict[str, Any] = {
            "model_dir": str(embedded_model_dir()),
            "max_branches": BRANCHES_PER_SESSION * config.limits.max_sessions,
        }
        if not config.anticipation.prefix_cache:
            options["prefix_cache"] = False
        if not config.anticipation.speculative_decoding:
            options["max_draft_tokens"] = 0
        specs.append(WorkerSpec("engine", (RoleSpec("engine", options),)))
    if speech:
        specs.append(WorkerSpec("speech", tuple(speech)))
    return tuple(specs)


@asynccontextmanager
async def open_backends(
    config: Config, *, on_progress: Progress | None = None
) -> AsyncIterator[tuple[Backends, Callable[[], bool]]]:
    """Start what the preset says; the second value tells whether all of it answers now.

    Raises:
        ConfigError: the preset is incomplete.
        BackendError: a model cannot be loaded, or a remote service does not answer.
    """
    async with AsyncExitStack() as stack:
        supervisor = Supervisor(worker_specs(config), on_progress=on_progress)
        await stack.enter_async_context(supervisor)
        services: list[RemoteService] = []

        async def connect(url: str, model: str) -> RemoteService:
            from voiceloop.remote import RemoteService  # httpx costs a start without it 0.2 s

            service = RemoteService(url, model=model, key=config.remote_key)
            stack.push_async_callback(service.close)
            await service.start()
            services.append(service)
            return service

        backends = Backends(
            await _recognizer(config, supervisor, connect),
            await _language_model(config, supervisor, connect),
            await _voice(config, supervisor, connect),
        )
        yield backends, lambda: supervisor.ready() and all(one.reachable for one in services)


async def _recognizer(config: Config, supervisor: Supervisor, connect: Connect) -> Recognizer:
    if config.stt_url is None:
        return supervisor.recognizer()
    from voiceloop.remote_recognizer import RemoteRecognizer

    return RemoteRecognizer(await connect(config.stt_url, config.stt_model))


async def _language_model(
    config: Config, supervisor: Supervisor, connect: Connect
) -> LanguageModel:
    if config.llm_url is None:
        return supervisor.language_model()
    from voiceloop.remote_language import RemoteLanguageModel

    return RemoteLanguageModel(await connect(config.llm_url, config.llm_model))


async def _voice(config: Config, supervisor: Supervisor, connect: Connect) -> Voice:
    if config.tts_url is None:
        return supervisor.voice()
    from voiceloop.remote_voice import RemoteVoice

    return RemoteVoice(await connect(config.tts_url, config.tts_model))
