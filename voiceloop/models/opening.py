"""The three backends of a server, opened: workers started or joined, services asked.

Owns the lives of all of them, and what the server is told of the models that are elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from voiceloop.access.keys import salts
from voiceloop.agent import AgentConfig
from voiceloop.agent_file import check_models
from voiceloop.backends import (
    LANGUAGE,
    MAIN_MODEL,
    OWN_MODEL,
    Backends,
    Cascade,
    ChatMessage,
    LanguageModel,
    NamedModel,
    OnResumed,
    Recognizer,
    RoleName,
    Voice,
)
from voiceloop.canary.trial import Trial
from voiceloop.capabilities import Capabilities
from voiceloop.cluster.placed_models import PlacedModels, TokenCounting
from voiceloop.cluster.remote_workers import RemoteWorkers
from voiceloop.config import AUTO, CascadeSettings, Config, LanguageRequests, workers_of
from voiceloop.errors import BackendError, ConfigError
from voiceloop.models.end_judges import end_judges, end_reader_spec, voice_reader_spec
from voiceloop.models.engine_options import with_adapters
from voiceloop.models.held import with_held, with_service
from voiceloop.models.lexicon import LexiconVoice, lexicon_of, refuse_sounds
from voiceloop.models.presets import plan, worker_specs
from voiceloop.models.providers import broken, open_provider
from voiceloop.models.resolve import capabilities_of, has_end_head, roles_elsewhere
from voiceloop.operation import WorkerAddresses, WorkerLoad
from voiceloop.remote.readers.end_of_voice import VoiceReadingRecognizer
from voiceloop.remote.readers.end_of_words import EndReadingModel
from voiceloop.workers.messages import WorkerSpec
from voiceloop.workers.models import WorkerLanguageModel
from voiceloop.workers.process import Progress
from voiceloop.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from voiceloop.remote.language import RemoteLanguageModel
    from voiceloop.remote.service import RemoteService

log = logging.getLogger(__name__)


class Connect(Protocol):
    """Connects to the services of one role; options: of each `RemoteService`."""

    def __call__(
        self, urls: Sequence[str], keys: Sequence[str], model: str, **options: Any
    ) -> Awaitable[Sequence[RemoteService]]: ...


class Reachable(Protocol):
    """A service, as far as readiness asks."""

    @property
    def reachable(self) -> bool: ...


# The first call should have its turns read, but a server does not wait for long without that.
READERS_WAIT_S = 10.0

# What a remote service is asked for where the configuration names nothing: OpenAI's own names.
REMOTE_RECOGNIZER, REMOTE_VOICE = "whisper-1", "tts-1"


@asynccontextmanager
async def open_backends(
    config: Config,
    *,
    agents: Sequence[AgentConfig] = (),
    on_progress: Progress | None = None,
    trial: Trial | None = None,
) -> AsyncIterator[tuple[Backends, Callable[[], bool]]]:
    """Start what the preset says; the second value tells whether all of it answers now.

    Remote services are asked first: one that does not answer is known before a model is loaded.

    agents: whose instructions and tools the embedded engine reads before anybody calls, the first
    last, so that it is the newest in the cache. trial: of workers elsewhere of another version.

    Raises:
        ConfigError: the preset is incomplete.
        BackendError: a model cannot be loaded, or a remote service does not answer.
    """
    # Of several agents each speaks its own words, which the gateway adds.
    lexicon = lexicon_of(config, agents[0] if len(agents) == 1 else None)
    if config.tts_url:
        for words in (lexicon, *(lexicon_of(config, agent) for agent in agents)):
            refuse_sounds(words)
    async with AsyncExitStack() as stack:
        specs = with_adapters(worker_specs(config), agents)
        supervisor = Supervisor(specs, on_progress=on_progress)
        elsewhere = RemoteWorkers(config.workers, roles_elsewhere(config), trial=trial)
        services: list[tuple[Reachable, ...]] = []  # of each role

        async def connect(
            urls: Sequence[str],
            keys: Sequence[str],
            model: str,
            *,
            is_needed: bool = True,
            **options: Any,
        ) -> Sequence[RemoteService]:
            # httpx costs a start without it 0.2 s
            from voiceloop.remote.service import RemoteService

            each = tuple(
                RemoteService(url, model=model, key=key, **options)
                for url, key in keyed(urls, keys)
            )
            for service in each:
                stack.push_async_callback(service.close)
            await _start_any(each, is_needed=is_needed)
            if is_needed:
                services.append(each)
            return each

        for one in broken():
            log.warning("%s", one)

        async def provided(role: RoleName, part: str) -> Any | None:
            made = await open_provider(
                role,
                getattr(config, f"{part}_url"),
                getattr(config, f"{part}_key"),
                getattr(config, f"{part}_model"),
                stack,
            )
            if made is not None and hasattr(made, "reachable"):
                services.append((made,))
            return made

        recognizer: Recognizer | None = await provided("recognizer", "stt")
        recognizer = recognizer or await _remote_recognizer(config, connect, services)
        service = await provided("engine", "llm")
        if service is None:  # of a cascade the other model answers while it does not
            is_needed = not config.cascade.further
            service = await _remote_language_model(config, connect, is_needed=is_needed)
        language_model: LanguageModel | None = service
        voice: Voice | None = await provided("voice", "tts")
        voice = voice or await _remote_voice(config, connect)
        end_reader, starts = await stack.enter_async_context(_reader(end_reader_spec(config)))
        voice_reader, others = await stack.enter_async_context(_reader(voice_reader_spec(config)))
        await stack.enter_async_context(supervisor)
        await stack.enter_async_context(elsewhere)
        judges = end_judges(config, [agent.language for agent in agents] or [LANGUAGE])

        def judging() -> str:
            return judges.at(
                words_ready=end_reader is None or end_reader.ready(),
                voice_ready=voice_reader is None or voice_reader.ready(),
            ).told

        for lack in judges.lacking:
            log.warning("%s", lack)
        if starts or others:
            await asyncio.wait([*starts, *others], timeout=READERS_WAIT_S)
        is_late = not all(one.done() for one in (*starts, *others))
        soon = f" (once its readers have started by {judges.told})" if is_late else ""
        log.info("the end of a turn is judged by %s%s", judging(), soon)
        own = PlacedModels(supervisor, elsewhere)
        if voice_reader is not None:
            recognizer = VoiceReadingRecognizer(
                recognizer or own.recognizer(), voice_reader.recognizer(), voice_reader.ready
            )
        counting = TokenCounting()
        if language_model is None:
            here_or_there = own.language_model()
            language_model = here_or_there
            await stack.enter_async_context(counting.of(here_or_there))
            for agent in reversed(agents):
                if agent.llm_adapter is None:  # else nobody else's prompt begins with it
                    _read_ahead(here_or_there, agent)
        if end_reader is not None:
            reading = end_reader.language_model()
            language_model = EndReadingModel(language_model, reading, end_reader.ready)
        here = capabilities_of(plan(config)[2])
        further = Further(config, connect, stack, on_progress)
        named = await further.open(
            language_model, here, service, lambda: supervisor.ready() and elsewhere.ready()
        )

        def known() -> Capabilities:
            found = with_held(here, elsewhere.held())
            if end_reader is not None:
                found = replace(found, reads_turn_ends=True)
            if service is None:
                return found
            name = getattr(service, "name", config.llm_model)
            return with_service(found, name, getattr(service, "context_tokens", 0))

        def tell_resumed(call_id: str, by: str) -> None:
            for each in (elsewhere, *further.elsewhere):
                each.tell_resumed(call_id, by)

        def hear_resumed(heard: OnResumed) -> None:
            for each in (elsewhere, *further.elsewhere):
                each.hear_resumed(heard)

        voice = voice or own.voice()
        if lexicon:
            voice = LexiconVoice(voice, lexicon)
        backends = Backends(
            recognizer or own.recognizer(),
            language_model,
            voice,
            known=known,
            workers=lambda: [
                *supervisor.loads(),
                *elsewhere.loads(),
                *further.loads(),
                *_reader_loads(end_reader, voice_reader),
            ],
            judges=judging,
            end_call=getattr(service, "end_call", lambda call_id: None),
            take_answers=lambda: [*supervisor.take_answers(), *elsewhere.take_answers()],
            tell_resumed=tell_resumed,
            hear_resumed=hear_resumed,
            count_tokens=counting.counter,
            models=named,
            cascade=cascade_of(config, named),
        )
        if agents:
            check = partial(_check_models, agents, backends, config)
            check()  # what is elsewhere has mostly said by now what it speaks
            await stack.enter_async_context(_checked_once_heard(elsewhere, check))
        asked = (supervisor.ready, elsewhere.ready)

        def answers() -> bool:
            served = (any(one.reachable for one in role) for role in services)
            return all(ready() for ready in asked) and all(served)

        yield backends, answers


def _reader_loads(*readers: Supervisor | None) -> list[WorkerLoad]:
    """Return the loads of the readers that run."""
    return _dispensed(load for one in readers if one is not None for load in one.loads())


def _dispensed(loads: Iterable[WorkerLoad]) -> list[WorkerLoad]:
    """Return the loads with nothing overdue: a call goes on without these models."""
    return [msgspec.structs.replace(load, overdue_s={}) for load in loads]


def _check_models(agents: Sequence[AgentConfig], backends: Backends, config: Config) -> None:
    """Raises: ConfigError."""
    for agent in agents:
        one = str(config.agent or "the preset's agent")
        source = f"agent {agent.name}" if len(agents) > 1 else one
        check_models(agent, backends.capabilities, source)


@asynccontextmanager
async def _checked_once_heard(
    elsewhere: RemoteWorkers, check: Callable[[], None]
) -> AsyncIterator[None]:
    """Workers that come later may hold what the agent cannot use: then each call is refused."""
    if elsewhere.ready():
        yield
        return

    async def look() -> None:
        await elsewhere.wait_ready()
        try:
            check()
        except ConfigError as error:
            log.error("calls are refused: %s", error)

    looking = asyncio.create_task(look(), name="check models")
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


def _read_ahead(language_model: WorkerLanguageModel, agent: AgentConfig) -> None:
    """Read what every session of this agent begins with, as `Conversation.messages` writes it."""
    settings = agent.session_settings()
    history = (ChatMessage("system", settings.instructions),) if settings.instructions else ()
    language_model.read_ahead(history, settings.tools)


def keyed(urls: Sequence[str], keys: Sequence[str]) -> Sequence[tuple[str, str]]:
    """Each address with its key; "" where it has none."""
    return list(zip(urls, keys or [""] * len(urls), strict=True))


async def _remote_recognizer(
    config: Config, connect: Connect, services: list[tuple[Reachable, ...]]
) -> Recognizer | None:
    if not config.stt_url:
        return None
    model = config.stt_model or REMOTE_RECOGNIZER
    if all(url.startswith(("ws://", "wss://")) for url in config.stt_url):
        from voiceloop.remote.transcriber import RemoteTranscriber, Transcribers

        each = [
            RemoteTranscriber(url, model=model, key=key)
            for url, key in keyed(config.stt_url, config.stt_key)
        ]
        transcribers = Transcribers(each)
        await transcribers.start()
        services.append(tuple(each))
        return transcribers
    from voiceloop.remote.recognizer import RemoteRecognizer

    found = await connect(config.stt_url, config.stt_key, model)
    return RemoteRecognizer(*found, reads_falls=config.anticipation.does("prefill"))


async def _remote_language_model(
    config: Config, connect: Connect, *, is_needed: bool = True
) -> RemoteLanguageModel | None:
    if not config.llm_url:
        return None
    from voiceloop.remote.language import RemoteLanguageModel

    return RemoteLanguageModel(
        *await connect(
            config.llm_url,
            config.llm_key,
            config.llm_model,
            kind="" if config.llm_service == AUTO else config.llm_service,
            headers=config.llm.headers,
            is_needed=is_needed,
        ),
        added=config.llm.request,
        reads_ahead=config.anticipation.does("prefill"),
        salt_of=salts(config.keys, config.secret_key),
        hears=config.llm_hears,
    )


async def _remote_voice(config: Config, connect: Connect) -> Voice | None:
    if not config.tts_url:
        return None
    from voiceloop.remote.voice import RemoteVoice

    # The speech of a service is asked for by its own model's name.
    name = config.tts_model or REMOTE_VOICE
    return RemoteVoice(*await connect(config.tts_url, config.tts_key, name))


async def _start_any(services: Sequence[RemoteService], *, is_needed: bool = True) -> None:
    """Connect to all; those that do not answer are looked after until they do.

    Raises: BackendError where none answers and one is needed, ConfigError where one is not what
    was asked for.
    """
    starts = (service.start() for service in services)
    outcomes = await asyncio.gather(*starts, return_exceptions=True)
    failures = [one for one in outcomes if isinstance(one, BaseException)]
    for failure in failures:
        is_last = is_needed and len(failures) == len(services)
        if is_last or not isinstance(failure, BackendError):
            raise failure
        log.warning("%s; others do", failure)
    for service, outcome in zip(services, outcomes, strict=True):
        if outcome is not None:
            service.watch()


class Further:
    """The models of `[[models]]`: services that are asked, engines in processes of their own."""

    def __init__(
        self,
        config: Config,
        connect: Connect,
        stack: AsyncExitStack,
        on_progress: Progress | None,
    ) -> None:
        self._config, self._connect, self._stack = config, connect, stack
        self._on_progress = on_progress
        self._engines: list[Supervisor] = []
        self.elsewhere: list[RemoteWorkers] = []  # of each model that is on workers

    async def open(
        self,
        own: LanguageModel,
        known: Capabilities,
        service: Any,
        is_ready: Callable[[], bool],
    ) -> dict[str, NamedModel]:
        """All of them by name, and the server's own; nothing where there are none.

        is_ready: whether the server's own workers take calls.

        Raises: ConfigError, BackendError: a model cannot be loaded. A service that does not answer
        is looked after until it does.
        """
        if not self._config.models:
            return {}
        for told in unpriced(self._config):
            log.warning("%s", told)
        is_there = partial(_is_there, service) if service is not None else is_ready
        named = {OWN_MODEL: NamedModel(own, is_there, known.reads_turn_ends)}
        for one in self._config.models:
            config = replace(
                self._config, llm_url=one.url, llm_key=one.key, llm_model=one.model,
                llm_service=one.service, llm_adapter=None, llm=LanguageRequests(),
                llm_hears="sound" in one.takes, workers=WorkerAddresses(),
                cascade=CascadeSettings(),
            )  # fmt: skip
            try:
                made = await self._one(one.name, config)
            except (ConfigError, BackendError) as error:
                raise type(error)(f"[[models]] {one.name}: {error}") from error
            takes_tools = "tools" in one.takes
            named[one.name] = replace(made, language=one.language, takes_tools=takes_tools)
        return named

    async def _one(self, name: str, config: Config) -> NamedModel:
        if workers := workers_of("url", config.llm_url):
            return await self._on_workers(workers, config.llm_key)
        if config.llm_url:
            urls = (config.llm_url, config.llm_key, config.llm_model)
            service = await open_provider("engine", *urls, self._stack)
            model = service or await _remote_language_model(config, self._connect, is_needed=False)
            assert model is not None
            return NamedModel(model, partial(_is_there, model), reads_ends=False)
        taken = plan(config)[2]["engine"]
        spec = msgspec.structs.replace(worker_specs(config, ("engine",))[0], name=f"engine {name}")
        engine = Supervisor([spec], on_progress=self._on_progress)
        await self._stack.enter_async_context(engine)
        self._engines.append(engine)
        return NamedModel(engine.language_model(), engine.ready, has_end_head(taken))

    async def _on_workers(self, engine: tuple[str, ...], keys: tuple[str, ...]) -> NamedModel:
        """An engine of another VoiceLoop, over TLS. It is no evidence of where a turn ends."""
        settings = replace(
            self._config.workers, engine=engine, recognizer=(), voice=(), list=None,
            key=tuple(dict.fromkeys(keys)) or self._config.workers.key,
        )  # fmt: skip
        role: RoleName = "engine"
        elsewhere = RemoteWorkers(settings, (role,), is_dispensable=True)
        await self._stack.enter_async_context(elsewhere)
        self.elsewhere.append(elsewhere)
        pool = elsewhere.of_role(role)
        assert pool is not None
        return NamedModel(WorkerLanguageModel(pool), lambda: pool.is_heard, reads_ends=False)

    def loads(self) -> list[WorkerLoad]:
        own = [load for engine in self._engines for load in engine.loads()]
        return own + _dispensed(load for one in self.elsewhere for load in one.loads())


def _is_there(model: Any) -> bool:
    """Whether a service's model would be asked now; one that cannot tell is."""
    return bool(getattr(model, "reachable", True))


def unpriced(config: Config) -> list[str]:
    """A sentence for each model without a price, where another has one: its cost would be 0."""
    names = (MAIN_MODEL, *(one.name for one in config.models))
    lacking = [name for name in names if not any(config.prices.get(name, ()))]
    if len(lacking) == len(names):
        return []
    return [f"the model {name} has no price: its tokens count as free" for name in lacking]


def cascade_of(config: Config, models: Mapping[str, NamedModel]) -> Cascade | None:
    """Return which two models share a call, by their names."""
    chosen = config.cascade
    if not chosen.further:
        return None
    small, large = (OWN_MODEL if one == MAIN_MODEL else one for one in chosen.models)
    pair = Cascade(small, large, chosen.large_share)
    if not chosen.verify:
        return pair
    return replace(pair, verifies=Alike(models[small].model, models[large].model))


class Alike:
    """Whether the large model verifies what the small one drafts: both are engines, and make the
    same tokens of a conversation, whatever their weights. It is said once where they do not.
    """

    def __init__(self, small: LanguageModel, large: LanguageModel) -> None:
        self._small, self._large = small, large
        self._is_told = False

    def __call__(self) -> bool:
        small, large = (getattr(one, "tokens", "") for one in (self._small, self._large))
        if small and large and small != large and not self._is_told:
            self._is_told = True
            log.warning(
                "the large model verifies nothing that the small one drafts, and answers whole "
                "turns: expected one tokenizer and chat template of both (%s), found another (%s)",
                small, large,
            )  # fmt: skip
        return bool(small) and small == large


@asynccontextmanager
async def _reader(
    spec: WorkerSpec | None,
) -> AsyncIterator[tuple[Supervisor | None, list[asyncio.Task[None]]]]:
    """A reader's worker, and its start. A call goes on without it, so no failure is raised."""
    if spec is None:
        yield None, []
        return
    reader = Supervisor([spec])

    async def start() -> None:
        try:
            await reader.start()
        except (BackendError, ConfigError) as error:
            log.warning("there will be no %s: %s", spec.name, error)

    starting = asyncio.create_task(start(), name=f"start the {spec.name}")
    try:
        yield reader, [starting]
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await reader.close()
