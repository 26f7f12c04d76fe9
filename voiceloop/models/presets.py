"""From a configuration to the worker processes and backends of a server.

Owns the plan (which process holds which model, with which options), taken from the preset's table
in ``catalog.py`` and the overrides, and the opening of the three backends that a server calls. A
URL replaces that part of the preset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voiceloop.access.keys import salts
from voiceloop.agent import AgentConfig
from voiceloop.agent_file import check_models, embedded_agent, load_agent, shipped_agents
from voiceloop.backends import Backends, ChatMessage, LanguageModel, Recognizer, RoleName, Voice
from voiceloop.cluster.placed_models import PlacedModels, TokenCounting
from voiceloop.cluster.remote_workers import RemoteWorkers, addresses_of
from voiceloop.config import Config
from voiceloop.errors import BackendError, ConfigError
from voiceloop.models.cache import hub_folder, read_json
from voiceloop.models.catalog import APART, EMBEDDED, EMBEDDED_AGENT, HIBARI, MOONSHINE_TINY, Preset
from voiceloop.models.engine_options import engine_options
from voiceloop.models.machine import n_cores, this_machine
from voiceloop.models.preset_check import (
    CPU_BUILD,
    find_preset,
    missing_models,
    missing_pieces,
    resolve_preset,
)
from voiceloop.models.resolve import ResolvedModel, capabilities_of, resolve_models
from voiceloop.remote.end_reader import EndReadingModel
from voiceloop.workers.messages import RoleSpec, WorkerSpec
from voiceloop.workers.models import WorkerLanguageModel
from voiceloop.workers.process import Progress
from voiceloop.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from voiceloop.remote.service import RemoteService
    from voiceloop.remote.transcriber import RemoteTranscriber

log = logging.getLogger(__name__)

Connect = Callable[[str, str], Awaitable["RemoteService"]]

REPLY_TOKENS = 256

EMBEDDED_LIMITS = (
    "{agent} is answered by the embedded model (13M): it takes orders and bookings and repeats "
    "short facts of its instructions; it gets others wrong, makes things up, and calls tools it "
    "should not. For more: --llm-url URL, or voiceloop models pull cpu"
)

# The first call should have its turns read, but a server does not wait for long without one.
END_READER_WAIT_S = 10.0

# Of a language model that a person names in a preset which has no bounds for it: the cpu preset's.
# By its own length (32768 tokens are common) a model of 1.5B would keep a gigabyte for keys and
# values, one of 8B four; two or three callers of a preset on a CPU need no more than these.
NAMED_CONTEXT_LENGTH, NAMED_CONTEXTS = 4096, 2

# What a remote service is asked for where the configuration names nothing: OpenAI's own names.
REMOTE_RECOGNIZER, REMOTE_VOICE = "whisper-1", "tts-1"


def embedded_model_dir() -> Path:
    """Where the embedded agent's model lies (found, not imported: models belong to workers)."""
    spec = find_spec("engine")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("expected the package engine beside voiceloop, found none")
    return Path(spec.submodule_search_locations[0]) / "embedded" / "agent"


def resolve_agent(config: Config) -> AgentConfig:
    """The agent file of the configuration, else the preset's.

    Raises:
        ConfigError: the file is wrong, or names a voice or a language that no model here has.
    """
    _, preset, taken = _plan(config)
    if config.agent is not None:
        agent = load_agent(config.agent)
        if "voice" in taken:
            agent = _with_voice_of(taken["voice"], agent, config.agent)
        check_models(agent, capabilities_of(taken), str(config.agent))
        return agent
    is_own = "engine" not in taken or taken["engine"].model == EMBEDDED_AGENT
    return embedded_agent() if preset == EMBEDDED and is_own else AgentConfig()


def _with_voice_of(resolved: ResolvedModel, agent: AgentConfig, source: Path) -> AgentConfig:
    """The agent in the model's own voice, where it names one of the model that may stand in for it.

    Which of the two a server has depends on what is installed; no agent file should fail on that.
    """
    if agent.voice in resolved.model.voices:
        return agent
    for other in (resolved.model.fallback, resolved.in_place_of):
        if other is not None and agent.voice in other.voices:
            log.warning(
                "%s: voice %s is one of %s; %s speaks here, in its own voice. Remedy: "
                "tts_model = %r, or voice = 'default'",
                source, agent.voice, other.name, resolved.model.name, other.name,
            )  # fmt: skip
            return replace(agent, voice="default")
    return agent


def note_on_agent(config: Config) -> str | None:
    """What whoever wrote an agent file should know of the embedded model; None where it is none."""
    _, _, taken = _plan(config)
    is_embedded = "engine" in taken and taken["engine"].model == EMBEDDED_AGENT
    is_own = config.agent is not None and str(config.agent) not in shipped_agents()
    return EMBEDDED_LIMITS.format(agent=config.agent) if is_embedded and is_own else None


def context_tokens(config: Config) -> int:
    """The prompt's bound: what the language model takes less a reply. 0: not known, no bound."""
    n_tokens = config.context_tokens
    if not n_tokens:
        config, preset, taken = _plan(config)
        if "engine" not in taken:
            return 0
        n_tokens = _context_length(config, preset, taken["engine"])
    return max(0, n_tokens - min(REPLY_TOKENS, n_tokens // 4))


def _context_length(config: Config, preset: Preset, resolved: ResolvedModel) -> int:
    """Of the checkpoint or the preset, the shorter; 0 where nothing says it."""
    folder = _model_dir(resolved)
    model = read_json(folder / "config.json") if folder is not None else {}
    options = _role_options(config, preset, resolved, n_threads=1)
    known = (model.get("max_position_embeddings"), options.get("context_length"))
    return min((n for n in known if isinstance(n, int) and n > 0), default=0)


def worker_specs(
    config: Config, wanted: Sequence[RoleName] = ("recognizer", "engine", "voice")
) -> tuple[WorkerSpec, ...]:
    """The processes to start: the preset's, less the roles that have a URL or a worker elsewhere.

    Raises:
        ConfigError: no such preset, a part without a model and without a URL, or a model that is
            not on disk; the message has the command that brings it.
    """
    config, preset, planned = _plan(config)
    elsewhere = addresses_of(config.workers)
    here = set(wanted) - set(elsewhere)
    taken = {role: one for role, one in planned.items() if role in here}
    _check_package(taken)
    lacks = missing_models(preset, taken)
    if lacks:
        commands = dict.fromkeys(one.remedy for one in lacks)
        raise ConfigError(
            f"preset {preset.name}: {_without_device(preset, taken)}"
            f"expected {', '.join(one.subject for one in lacks)} on disk, "
            f"found nothing: {' && '.join(commands)}"
        )
    specs: list[WorkerSpec] = []
    for process in preset.processes or APART:
        n_threads = max(1, int(process.cores_share * n_cores()))
        roles = tuple(
            RoleSpec(role, _role_options(config, preset, taken[role], n_threads))
            for role in process.roles
            if role in taken
        )
        if roles:
            specs.append(
                WorkerSpec(process.name, roles, n_threads, spins_after_s=process.spins_after_s)
            )
    return tuple(specs)


def _check_package(taken: Mapping[RoleName, ResolvedModel]) -> None:
    """Raises: ConfigError where the language model's file is in a package that is not here."""
    resolved = taken.get("engine")
    if resolved is not None and resolved.model.file and resolved.folder is None:
        model = resolved.model
        raise ConfigError(
            f"llm_model: expected {model.requires} installed for {model.name}, found another or "
            f"none: {model.install}"
        )


def _without_device(preset: Preset, taken: Mapping[RoleName, ResolvedModel]) -> str:
    """What to know before gigabytes are fetched for a GPU that is not here, or not used."""
    if preset.device != "cuda":
        return ""
    lacks = missing_pieces(preset, taken, this_machine(), hub_folder())
    absent = [one for one in lacks if one.kind == "device" or one.found.endswith(CPU_BUILD)]
    return "".join(f"{one.subject}: {one.found} ({one.remedy}); " for one in absent)


def _plan(config: Config) -> tuple[Config, Preset, dict[RoleName, ResolvedModel]]:
    config = resolve_preset(config, this_machine)
    preset = find_preset(config.preset)
    return config, preset, resolve_models(config, preset, hub_folder())


def _options(preset: Preset, role: RoleName) -> Mapping[str, Any]:
    return preset.options.get(role, {})


def _model_dir(resolved: ResolvedModel) -> Path | None:
    return embedded_model_dir() if resolved.model == EMBEDDED_AGENT else resolved.folder


def _role_options(
    config: Config, preset: Preset, resolved: ResolvedModel, n_threads: int
) -> dict[str, Any]:
    """What the role's ``load`` is called with."""
    role = resolved.model.role
    options: dict[str, Any] = {**_options(preset, role), **resolved.model.options}
    if role == "engine":
        if resolved.model != preset.models.get(role):
            options = {**_bounds_of_named(config), **options}
        return _engine_options(config, resolved, options, n_threads)
    options["model"] = resolved.model.loader
    if resolved.model == MOONSHINE_TINY:
        options["end_of_voice"] = config.anticipation.p_voice
    if resolved.model == HIBARI:
        options["kept_mb"] = config.voice_cache_mb
    if resolved.folder is None:
        options.pop("device", None)  # of the models in packages none asks for one
    else:
        options["source"] = str(resolved.folder)
    return {**options, **{name: str(folder) for name, folder in resolved.parts.items()}}


def _engine_options(
    config: Config, resolved: ResolvedModel, base: Mapping[str, Any], n_threads: int
) -> dict[str, Any]:
    is_embedded = resolved.model == EMBEDDED_AGENT and config.llm_adapter is None
    draft = embedded_model_dir().parent / "draft" if is_embedded else None
    folder = _model_dir(resolved)
    return engine_options(config, base, folder, n_threads=n_threads, draft=draft)


def _bounds_of_named(config: Config) -> dict[str, Any]:
    """What a model without bounds of its own may keep; a longer context has to be asked for."""
    length = max(NAMED_CONTEXT_LENGTH, config.context_tokens + REPLY_TOKENS)
    return {"context_length": length, "kv_tokens": NAMED_CONTEXTS * length}


def end_reader_spec(config: Config) -> WorkerSpec | None:
    """The process that reads the end of turn beside a remote language model, if it is wanted."""
    if config.llm_url is None or config.end_reader == "none":
        return None
    # It reads, and says nothing: there is nothing to draft.
    quiet = replace(config, anticipation=replace(config.anticipation, speculative_decoding=False))
    base = _options(EMBEDDED, "engine")
    options = _engine_options(quiet, ResolvedModel(EMBEDDED_AGENT), base, 1)
    return WorkerSpec("end reader", (RoleSpec("engine", options),))


@asynccontextmanager
async def open_backends(
    config: Config, *, agent: AgentConfig | None = None, on_progress: Progress | None = None
) -> AsyncIterator[tuple[Backends, Callable[[], bool]]]:
    """Start what the preset says; the second value tells whether all of it answers now.

    Remote services are asked first: one that does not answer is known before a model is loaded.

    agent: whose instructions and tools the embedded engine reads before anybody calls.

    Raises:
        ConfigError: the preset is incomplete.
        BackendError: a model cannot be loaded, or a remote service does not answer.
    """
    async with AsyncExitStack() as stack:
        supervisor = Supervisor(worker_specs(config), on_progress=on_progress)
        elsewhere = RemoteWorkers(config.workers)
        services: list[RemoteService | RemoteTranscriber] = []

        async def connect(url: str, model: str) -> RemoteService:
            # httpx costs a start without it 0.2 s
            from voiceloop.remote.service import RemoteService

            service = RemoteService(url, model=model, key=config.remote_key)
            stack.push_async_callback(service.close)
            await service.start()
            services.append(service)
            return service

        recognizer = await _remote_recognizer(config, connect, services)
        language_model = await _remote_language_model(config, connect)
        voice = await _remote_voice(config, connect)
        reader, starting = await stack.enter_async_context(_end_reader(config))
        await stack.enter_async_context(supervisor)
        await stack.enter_async_context(elsewhere)
        if starting is not None:
            await asyncio.wait([starting], timeout=END_READER_WAIT_S)
        if language_model is not None and reader is not None:
            language_model = EndReadingModel(language_model, reader.language_model(), reader.ready)
        own = PlacedModels(supervisor, elsewhere)
        counting = TokenCounting()
        if language_model is None:
            language_model = own.language_model()
            await stack.enter_async_context(counting.of(language_model))
            if agent is not None:
                _read_ahead(language_model, agent)
        backends = Backends(
            recognizer or own.recognizer(),
            language_model,
            voice or own.voice(),
            capabilities_of(_plan(config)[2], config.llm_adapter),
            workers=lambda: [*supervisor.loads(), *elsewhere.loads()],
            take_answers=lambda: [*supervisor.take_answers(), *elsewhere.take_answers()],
            profile=supervisor.profile,
            count_tokens=counting.counter,
        )
        asked = (supervisor.ready, elsewhere.ready)
        yield (
            backends,
            lambda: all(ready() for ready in asked) and all(one.reachable for one in services),
        )


def _read_ahead(language_model: WorkerLanguageModel, agent: AgentConfig) -> None:
    """What every session of this agent begins with, as `Conversation.messages` writes it."""
    settings = agent.session_settings()
    history = (ChatMessage("system", settings.instructions),) if settings.instructions else ()
    language_model.read_ahead(history, settings.tools)


async def _remote_recognizer(
    config: Config, connect: Connect, services: list[RemoteService | RemoteTranscriber]
) -> Recognizer | None:
    if config.stt_url is None:
        return None
    model = config.stt_model or REMOTE_RECOGNIZER
    if config.stt_url.startswith(("ws://", "wss://")):
        from voiceloop.remote.transcriber import RemoteTranscriber

        transcriber = RemoteTranscriber(config.stt_url, model=model, key=config.remote_key)
        await transcriber.start()
        services.append(transcriber)
        return transcriber
    from voiceloop.remote.recognizer import RemoteRecognizer

    return RemoteRecognizer(await connect(config.stt_url, model))


async def _remote_language_model(config: Config, connect: Connect) -> LanguageModel | None:
    if config.llm_url is None:
        return None
    from voiceloop.remote.language import RemoteLanguageModel

    ahead = config.anticipation
    return RemoteLanguageModel(
        await connect(config.llm_url, config.llm_model),
        keeps_warm=ahead.warm_requests,
        reads_ahead=ahead.prefill and ahead.remote_prefill,
        is_preemptive=ahead.remote_drafts,
        priority=ahead.remote_priority,
        salt_of=salts(config.keys, config.secret_key),
    )


async def _remote_voice(config: Config, connect: Connect) -> Voice | None:
    if config.tts_url is None:
        return None
    from voiceloop.remote.voice import RemoteVoice

    # The speech of a service is asked for by its own model's name.
    name = config.tts_model or REMOTE_VOICE
    return RemoteVoice(await connect(config.tts_url, name))


@asynccontextmanager
async def _end_reader(
    config: Config,
) -> AsyncIterator[tuple[Supervisor | None, asyncio.Task[None] | None]]:
    """The reader's worker, and its start. A call goes on without it, so no failure is raised."""
    spec = end_reader_spec(config)
    if spec is None:
        yield None, None
        return
    reader = Supervisor([spec])

    async def start() -> None:
        try:
            await reader.start()
        except (BackendError, ConfigError) as error:
            log.warning("the end of turn will not be read: %s", error)

    starting = asyncio.create_task(start(), name="start the end reader")
    try:
        yield reader, starting
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await reader.close()
