"""The server process: the listening socket, start and end.

Owns the process's life: bind, load, serve, drain.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool

from voiceloop.access.origins import check_bind
from voiceloop.admission.places import MAX_HTTP_REQUESTS
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.cluster.control.reports import ProcessReport, ProcessState
from voiceloop.cluster.control.telling import tell_on
from voiceloop.config import Config
from voiceloop.errors import ConfigError, InvalidRequest
from voiceloop.knowledge.sources import open_retriever
from voiceloop.models.opening import open_backends
from voiceloop.models.presets import context_tokens, resolve_agent, resolve_agents
from voiceloop.realtime.client_events import FRAME_BYTES
from voiceloop.realtime.window import TokenCount, Window
from voiceloop.server.agent_file import AgentFile
from voiceloop.server.agents import ServedAgent
from voiceloop.server.app import Gateway, build_app
from voiceloop.server.connections import (
    LEAST_CONNECTIONS,
    RESERVED_DESCRIPTORS,
    BoundedHttp,
    Connections,
    raise_descriptor_limit,
)
from voiceloop.server.keys_file import KeysFile
from voiceloop.server.listener import Listener
from voiceloop.server.memory import watch_memory
from voiceloop.server.stalls import watch_stalls
from voiceloop.server.websocket import BoundedWebSocket
from voiceloop.workers.process import Progress

log = logging.getLogger(__name__)

T = TypeVar("T")

# A kernel that holds little lets pacing and back-pressure reach us. 64 KiB is 1 s of base64 audio.
SEND_BUFFER_BYTES = 64 * 1024
NOT_SENT_BYTES = 16 * 1024
TCP_NOTSENT_LOWAT = 25  # Linux; the socket module names it from 3.12 on only
BACKLOG = 1024
PING_S = 10.0  # and as long for the pong: a line that is half open is found out in 20 s
UNACKNOWLEDGED_MS = 15_000  # the kernel's own bound on a peer that is gone
# A client that connected before the port was let go asks for its call within two round trips.
ASKED_WITHIN_S = 0.5
TURN_TOKENS = 32  # of a caller's sentence, twenty words, and the marks around it
KEYS = "context_tokens or engine.kv_tokens"


def listen(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """A listening TCP socket with small send buffers; accepted sockets inherit them.

    is_shared: with other processes of this user, among which the kernel divides what comes. It is
    only bound: who listens is given calls, and one that is loading would refuse its share. Whoever
    listens there alone meanwhile has the port.

    Raises:
        ConfigError: the port is taken or the host is no address of this machine.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
    except (OSError, UnicodeError) as error:  # a label that is empty or too long is the latter
        raise ConfigError(f"host: expected an address, found {host!r} ({error})") from None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, NOT_SENT_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _taken(host, port, error) from None
    if not is_shared:
        _begin_to_listen(sock)
    sock.setblocking(False)
    return sock


def _begin_to_listen(sock: socket.socket) -> None:
    """Raises: ConfigError: another process listens there and does not share the port."""
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        host, port = sock.getsockname()[:2]
        sock.close()
        raise _taken(host, port, error) from None


def _taken(host: str, port: int, error: OSError) -> ConfigError:
    told = f"found that {host}:{port} cannot be bound ({error.strerror})"
    return ConfigError(f"expected a free port, {told}")


class Stop:
    """The signals that end a server: SIGTERM, SIGINT, a closed terminal. `wait` is for the next."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Listen for signals; only the main thread can."""
        loop = asyncio.get_running_loop()
        handled: list[signal.Signals] = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            try:
                loop.add_signal_handler(number, self._event.set)
            except (ValueError, RuntimeError):
                continue
            handled.append(number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)


class Server(uvicorn.Server):
    """uvicorn without its signal handling, which would skip our clean-up, and its listening."""

    def __init__(self, config: uvicorn.Config, opened: Connections) -> None:
        super().__init__(config)
        self.opened = opened

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's own, with a listener that counts connections before anything else."""
        config = self.config
        serve = partial(
            cast(Any, config.http_protocol_class),
            config=config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        found = [Listener(sock, self.opened, serve, config.ssl) for sock in sockets or ()]
        self.servers = cast(Any, found)  # as far as uvicorn knows them: they are closed
        self.started = True

    def let_go(self) -> None:
        """Take no connection any more; those there are go on."""
        for listener in cast("list[Listener]", self.servers):
            listener.let_go()


def make_server(app: Starlette, config: Config) -> Server:
    """uvicorn as we run it: quiet, bounded frames, no compression, keepalive pings.

    Raises:
        ConfigError: the certificate or its key cannot be used.
    """
    n_most = max(LEAST_CONNECTIONS, raise_descriptor_limit() - RESERVED_DESCRIPTORS)
    if n_most < config.limits.max_sessions + MAX_HTTP_REQUESTS:
        log.warning(
            "the limit of open files (ulimit -n) leaves room for %d connections, fewer than "
            "limits.max_sessions and HTTP requests may need",
            n_most,
        )
    opened = Connections(n_most, config.limits.connections_per_address)
    server = Server(
        uvicorn.Config(
            app,
            loop="asyncio",
            http=cast(Any, BoundedHttp),
            ws=cast(Any, BoundedWebSocket),
            ws_max_size=FRAME_BYTES,
            ws_ping_interval=PING_S,
            ws_ping_timeout=PING_S,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            log_level="warning",  # its info lines hold URLs
            access_log=False,
            proxy_headers=False,  # an address that a header names is nobody's: `http/gate.py`
            server_header=False,
            timeout_graceful_shutdown=3,  # what is still open has had drain_s
            ssl_certfile=config.certfile,
            ssl_keyfile=config.keyfile,
        ),
        opened,
    )
    for key in ("certfile", "keyfile"):
        if (path := getattr(config, key)) is not None and not path.is_file():
            raise ConfigError(f"{key}: expected a PEM file, found none at {path}")
    try:
        server.config.load()
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"expected a certificate and its key in {config.certfile} and {config.keyfile}, "
            f"found: {error}"
        ) from None
    return server


async def serve(
    config: Config,
    *,
    agent: AgentConfig | None = None,
    ready: Callable[[str], None] | None = None,
    on_progress: Progress | None = None,
    shares_port: bool = False,
    tells: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; calls in progress may end within ``limits.drain_s``.

    The port answers at once (``/healthz``, ``/readyz`` 503), one that is shared when the models are
    loaded; then calls are taken, and ``ready`` is called with the server's URL. A signal before
    that gives the loading up; a second one after the first ends the calls at once.

    shares_port: with other gateways of this machine; one that drains lets go of it, so that all
    that comes goes to the others. tells: of itself on the standard output, in lines of JSON.

    Raises:
        ConfigError: the configuration, the agent file or the port is wrong, or a tool's function or
            the variable that it names is not there.
        BackendError: a model cannot be loaded.
    """
    check_bind(config.host, is_keyed=bool(config.keys))
    config = replace(config, context_tokens=context_tokens(config))
    others = resolve_agents(config) if agent is None else {}
    first = agent or first_of(config, others) or resolve_agent(config)
    gateway = Gateway(config, first, others=others)
    for served in gateway.agents:
        _tell_of_clients_tools(served.agent)
    gateway.doors.calls.is_shared = shares_port
    server = make_server(build_app(gateway), config)
    sock = listen(config.host, config.port, is_shared=shares_port)
    url = _url(config, sock)
    opens = asyncio.Event()
    if not shares_port:
        opens.set()
    serving = asyncio.create_task(_serve_once(opens, server, sock), name="uvicorn")
    stalls = asyncio.create_task(watch_stalls(), name="stalls")
    try:
        with (stop := Stop()).on_signals():
            async with AsyncExitStack() as models:
                if tells:
                    telling = asyncio.create_task(tell_on(lambda: report_of(gateway, url)))
                    models.callback(telling.cancel)
                for served in gateway.agents:
                    own = served.agent
                    known = open_retriever(own.knowledge, own.language, os.environ)
                    served.services.retriever = await models.enter_async_context(known)
                # In such threads as write uploads: importing them held the first one's loop 30 ms.
                deriving = asyncio.create_task(run_in_threadpool(gateway.prepare))
                models.callback(deriving.cancel)
                models.callback(gateway.doors.close)
                loaded = await _unless_stopped(_load(gateway, models, on_progress), stop)
                if loaded is None:
                    return
                gateway.backends, gateway.is_ready = loaded
                gateway.backends.hear_resumed(gateway.resumed_elsewhere)
                for served in gateway.agents:
                    check_prompt_room(served.completed, config, gateway.backends)
                    models.push_async_callback(served.services.kept_lines.close)
                await deriving
                voice = gateway.backends_of(gateway.agents.first).voice
                await gateway.calls.kept_lines.keep_all(voice, gateway.agent)
                for served in gateway.agents:  # those of the first are there
                    voice = gateway.backends_of(served).voice
                    served.services.kept_lines.keep_all_soon(voice, served.agent)
                await gateway.doors.open()
                watching = watch_memory(lambda: gateway.admission.n_inside)
                models.callback(asyncio.create_task(watching, name="memory").cancel)
                if shares_port:
                    _begin_to_listen(sock)
                    opens.set()
                if ready is not None:
                    ready(url)
                let_go = partial(_let_go, server) if shares_port else _keep
                await _serve_calls(gateway, serving, stop, let_go)
                server.should_exit = True
                await serving  # before the models go: it ends the last connections
    finally:
        stalls.cancel()
        server.should_exit = True
        server.force_exit = True
        if not opens.is_set():
            serving.cancel()
            sock.close()
        await asyncio.wait([serving])
        await asyncio.to_thread(gateway.observers.close)


def report_of(gateway: Gateway, url: str) -> ProcessReport:
    """Return what a gateway tells whoever started it (``voiceloop gateway --json``).

    used: of its places, or of the calls that its load leaves room for, whichever is more.
    """
    most = gateway.config.limits.max_sessions
    used = max(
        gateway.n_sessions / most, gateway.n_talking / max(1, gateway.load_watch.room.n_calls)
    )
    trouble = gateway.not_ready()
    state: ProcessState = "ready" if trouble is None else "loading"
    return ProcessReport(
        "draining" if gateway.admission.is_draining else state,
        url,
        used=round(min(1.0, used), 3),
        n_streams=gateway.n_sessions,
        queue_age_s={one.name: round(one.oldest_s, 3) for one in gateway.workers() if one.oldest_s},
        trouble=trouble or "",
        canary=gateway.metrics.trial.report(),
    )


def check_prompt_room(agent: AgentConfig, config: Config, backends: Backends) -> None:
    """A server that no call fits does not start. agent: with the tools that MCP servers list.

    Only models that are loaded say how they count tokens.

    Raises:
        ConfigError: instructions and tools surely leave no room for a sentence.
    """
    settings = agent.session_settings()
    n_most = config.context_tokens or backends.capabilities.context_tokens
    count = TokenCount(backends.count_tokens())
    n_left = max(1, n_most - TURN_TOKENS) if n_most else 0
    window = Window.of(settings.truncation, n_left, settings.tools, count)
    if window is None:
        return
    try:
        window.check(settings.instructions)
    except InvalidRequest as error:
        told = f"agent {agent.name}: {error.message}, beside {TURN_TOKENS} of a caller's turn"
        raise ConfigError(f"{told}: shorten them, or raise {KEYS}") from None


def _take(gateway: Gateway, agent: AgentConfig, served: ServedAgent | None = None) -> None:
    """Another agent from now on, in the place of this or the first.

    Raises: ConfigError: no call fits it.
    """
    assert gateway.backends is not None
    served = served or gateway.agents.first
    services = served.services
    check_prompt_room(services.toolbox.completed(agent), gateway.config, gateway.backends)
    if agent.lexicon != served.agent.lexicon:
        services.kept_lines.forget()
    gateway.take_agent(agent, served)
    services.kept_lines.keep_all_soon(gateway.backends_of(served).voice, agent)


async def _serve_once(opens: asyncio.Event, server: Server, sock: socket.socket) -> None:
    await opens.wait()
    await server.serve(sockets=[sock])


async def _load(
    gateway: Gateway, models: AsyncExitStack, on_progress: Progress | None
) -> tuple[Backends, Callable[[], bool]]:
    """The models, which read the agent's tools ahead, so that these are listed first."""
    for one in gateway.agents:
        models.push_async_callback(one.services.toolbox.close)
        await one.services.toolbox.connect()
        await one.services.toolbox.start()  # a module that is not there is told before models load
    agents = [one.completed for one in gateway.agents]
    trial = gateway.metrics.trial
    opening = open_backends(gateway.config, agents=agents, on_progress=on_progress, trial=trial)
    backends, is_ready = await models.enter_async_context(opening)
    hosts = gateway.config.mcp_allowed_hosts
    known = backends.known
    fills = any(slot.name is not None for agent in agents for slot in agent.slots)
    served = replace(backends, known=lambda: replace(known(), mcp_hosts=hosts, fills_slots=fills))
    return served, is_ready


def first_of(config: Config, others: Mapping[str, AgentConfig]) -> AgentConfig | None:
    """Return who of several answers where nobody is named; None: one that is not among them."""
    if config.agent is not None:
        return others.get(str(config.agent))
    return next(iter(others.values()), None)


def _tell_of_clients_tools(agent: AgentConfig) -> None:
    """Warn of tools that only the client can answer: without an answer the call is silent."""
    names = ", ".join(tool.name for tool in agent.tools if tool.is_clients)
    if names:
        wait_ms = agent.tool_timeout_ms
        told = f"within {wait_ms / 1000:g} s" if wait_ms else "in whatever time it takes"
        log.warning("the client has to answer calls of these tools, %s: %s", told, names)


async def _unless_stopped(work: Coroutine[None, None, T], stop: Stop) -> T | None:
    """Return what the work returns; None where a signal came first, upon which it is given up."""
    task = asyncio.create_task(work, name="loading")
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            return task.result()
        log.info("stopping: the models were still loading")
        return None
    finally:
        stopped.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _keep() -> None:
    """A port of one's own answers to the end: that there is no room, and whether one lives."""


async def _let_go(server: Server) -> None:
    """Leave what comes to the others who share the port; who has come already is let in still."""
    server.let_go()
    await asyncio.sleep(ASKED_WITHIN_S)


async def _serve_calls(
    gateway: Gateway,
    serving: asyncio.Task[None],
    stop: Stop,
    let_go: Callable[[], Awaitable[None]],
) -> None:
    """Take calls until told to stop, then let go of the port, and let those inside end."""
    config = gateway.config
    keys_file = KeysFile(config, gateway.keys, gateway.revoke)
    watches = [
        asyncio.create_task(gateway.watch_load(), name="load watch"),
        asyncio.create_task(keys_file.watch(), name="keys watch"),
    ]
    for path, served in _files(gateway) if config.reload else ():
        read = partial(resolve_agent, replace(config, agent=path))
        file = AgentFile(path, served.agent, read, partial(_take, gateway, served=served))
        watches.append(asyncio.create_task(file.watch(), name="agent watch"))
    try:
        await _first_of(stop.wait(), asyncio.shield(serving))
        # A session that drains ends by itself within drain_s; the second is for its close.
        n_calls, most_s = gateway.n_sessions, gateway.config.limits.longest_drain_s
        log.info("stopping: at most %g s for calls in progress to end: %d", most_s, n_calls)
        await let_go()
        await _first_of(gateway.drain(), stop.wait(), timeout_s=most_s + 1.0)
    finally:
        for watch in watches:
            watch.cancel()


def _files(gateway: Gateway) -> Iterator[tuple[Path, ServedAgent]]:
    """The files of the agents that have one."""
    config, agents = gateway.config, gateway.agents
    if config.agents is not None:
        yield from ((config.agents / f"{name}.toml", one) for name, one in agents.others.items())
    if config.agent is not None and agents.first not in agents.others.values():
        yield config.agent, agents.first


async def _first_of(*waits: Awaitable[object], timeout_s: float | None = None) -> None:
    """Wait for the first of them; the others are given up."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _url(config: Config, sock: socket.socket) -> str:
    scheme = "https" if config.certfile else "http"
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{scheme}://{host}:{sock.getsockname()[1]}"
