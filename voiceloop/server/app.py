"""The application: what this server answers, and the door at ``/v1/realtime``.

Owns one server's state (`Gateway`), who gets in before the upgrade, and how a session is handed its
connection. What a session does stands in ``voiceloop/call/session.py``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from voiceloop.access.keys import Entry, KeyRing, client_key, subprotocol
from voiceloop.access.origins import check_origin
from voiceloop.access.quotas import Quotas
from voiceloop.admission.allowance import Allowance
from voiceloop.admission.overload import Level
from voiceloop.admission.places import Admission, Beginnings, LateCalls
from voiceloop.admission.room import Room, for_new_callers, lack_of_room
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.call.connection import Hello, Transport
from voiceloop.call.lifetime import Ending
from voiceloop.call.session import Session
from voiceloop.canary.trial import Trial
from voiceloop.config import Config
from voiceloop.errors import Overloaded, VoiceLoopError, expected
from voiceloop.http.answer_cache import AnswerCache
from voiceloop.http.gate import Door, error_response
from voiceloop.http.health import Health, health_routes, no_such_route, realtime_routes
from voiceloop.http.profile import profile_route
from voiceloop.http.routes import openai_routes
from voiceloop.http.web_page import page_routes
from voiceloop.knowledge.answers import ApprovedAnswers
from voiceloop.knowledge.retriever import Retriever
from voiceloop.operation import WorkerLoad
from voiceloop.reply.plan import voice_options_of
from voiceloop.reply.voice import KeptLines
from voiceloop.resume.ticket import Tickets
from voiceloop.server.load_watch import LoadWatch
from voiceloop.server.websocket import SocketTransport, Wait, waiting_at
from voiceloop.telemetry.metrics import Metrics
from voiceloop.telemetry.traces import NoTraces, Traces, open_traces
from voiceloop.telemetry.worker_load import WorkerCollector
from voiceloop.tools.toolbox import Toolbox, toolbox_of

log = logging.getLogger(__name__)

# Beside the calls, not instead of them: the engine has branches for more, but each request there
# takes a share of every step from the people on the line.
MAX_HTTP_REQUESTS = 16
MAX_HTTP_REQUESTS_IN_NEED = 4  # while the machine is busy
# A call in which nobody has spoken for so long costs nothing.
QUIET_CALL_S = 30.0


def _told(lost: WorkerLoad) -> str:
    """A worker that is not ready, for a person to read."""
    why = f" ({lost.trouble})" if lost.trouble else ""
    return f"the worker {lost.name} is {lost.state}{why}"


@dataclass(slots=True)
class Gateway:
    """One server's state. ``backends`` is None until the models are loaded."""

    config: Config
    agent: AgentConfig
    backends: Backends | None = None
    is_ready: Callable[[], bool] = lambda: True
    clock: Callable[[], float] = time.monotonic
    metrics: Metrics = field(init=False)
    answers: ApprovedAnswers = field(init=False)  # of the agent, read once for all sessions
    traces: Traces = field(init=False)
    keys: KeyRing = field(init=False)
    toolbox: Toolbox = field(init=False)
    retriever: Retriever | None = None  # of the agent's documents
    admission: Admission = field(init=False)
    http_admission: Admission = field(init=False)
    beginnings: Beginnings = field(init=False)
    late_calls: LateCalls = field(init=False)
    load_watch: LoadWatch = field(init=False)
    tickets: Tickets = field(init=False)
    quotas: Quotas = field(init=False)
    kept_lines: KeptLines = field(init=False, default_factory=KeptLines)
    _one_is_empty: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _sessions: list[Session] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.answers = ApprovedAnswers(self.agent.answer)
        self.keys = KeyRing(self.config.keys, secret_key=self.config.secret_key)
        self.tickets = Tickets(self.keys.shared_secret, time.time)
        asked = self.config.traces
        self.traces = (
            open_traces(asked.url, self.clock, with_words=asked.words) if asked.url else NoTraces()
        )
        trial = Trial(self.config.canary, self.config.slo)
        self.metrics = Metrics(promised=self.config.slo, prices=self.config.prices, trial=trial)
        spent = self.metrics.quota_spent
        self.quotas = Quotas(self.config.quota, self.clock, lambda what: spent.labels(what).inc())
        self.metrics.registry.register(WorkerCollector(self.workers))
        beside = self.config.agent  # the file, whose Python modules may stand there
        folder = str(beside.resolve().parent) if beside is not None else ""
        self.toolbox = toolbox_of(self.agent, self.clock, folder=folder)
        emptied, most = self._one_is_empty.set, self.config.limits.max_sessions
        self.admission = Admission(
            most, "sessions", emptied,
            n_reserved=most - for_new_callers(most), lacks=self._lacks_for_call,
        )  # fmt: skip
        self.beginnings = Beginnings(self.clock)
        self.http_admission = Admission(
            MAX_HTTP_REQUESTS, "requests over HTTP", emptied, lacks=self._lacks_for_request
        )
        self.late_calls = LateCalls(self.clock)
        self.load_watch = LoadWatch(
            self.workers,
            lambda: self.backends.take_answers() if self.backends is not None else (),
            lambda: self.n_talking,
            Room(most, self.config.slo.answer_ms / 1000.0),
            self.metrics, self.clock,
        )  # fmt: skip

    def not_ready(self) -> str | None:
        """What keeps calls out, None when nothing does."""
        if self.admission.is_draining:
            return "the server is shutting down"
        if self.backends is None:
            return "the models are loading"
        if not self.is_ready():
            lost = [worker for worker in self.backends.workers() if worker.state != "ready"]
            told = ", ".join(_told(worker) for worker in lost)
            return told or "a model's service does not answer"
        return None

    def workers(self) -> Sequence[WorkerLoad]:
        """The processes that hold models, once they are there."""
        return self.backends.workers() if self.backends is not None else ()

    def not_ready_for_calls(self) -> str | None:
        """What keeps a new caller out at this moment, None when nothing does."""
        return self.not_ready() or self.admission.lack()

    def report(self) -> dict[str, Any]:
        """What an operator asks first; the same as in `/metrics`, for a person to read."""
        return {
            "level": self.load_watch.level.name.lower(),
            "calls": self.n_sessions,
            "calls_talking": self.n_talking,
            "room_for_calls": self.load_watch.room.n_calls,
            "headroom": round(self._headroom(), 3),
            "end_of_turn_judged_by": self.backends.judges() if self.backends is not None else "",
            "workers": [
                {
                    "name": worker.name,
                    "state": worker.state,
                    "busy": round(worker.busy, 3),
                    "queue_age_s": round(worker.oldest_s, 3),
                    "restarts": worker.restarts,
                }
                for worker in self.workers()
            ],
            "canary": msgspec.to_builtins(self.metrics.trial.status()),
        }

    def _headroom(self) -> float:
        """The share of all that bounds calls that is still free; 0: no new one is let in."""
        if self.not_ready_for_calls() is not None:
            return 0.0
        most = for_new_callers(self.config.limits.max_sessions)
        return min(self.load_watch.headroom, max(0.0, 1.0 - self.n_sessions / max(1, most)))

    @property
    def n_sessions(self) -> int:
        return len(self._sessions)

    @property
    def n_talking(self) -> int:
        """Calls in which somebody has spoken lately."""
        return sum(session.quiet_s < QUIET_CALL_S for session in self._sessions)

    def _lacks_for_call(self, is_returning: bool) -> str | None:
        if not self.config.limits.admit_by_load:
            return None
        watch, n_calls = self.load_watch, self.n_talking + self.beginnings.n_waiting
        return lack_of_room(watch.level, watch.room.n_calls, n_calls, is_returning)

    def _lacks_for_request(self, is_returning: bool) -> str | None:
        if not self.n_talking:
            return None  # whatever the load is, nobody on the line waits for it
        level, n_inside = self.load_watch.level, self.http_admission.n_inside
        if level is Level.FULL:
            return f"that the calls need the machine (level {level.name.lower()})"
        if level is not Level.NORMAL and n_inside >= MAX_HTTP_REQUESTS_IN_NEED:
            return f"{n_inside} already beside calls that need the machine"
        return None

    async def watch_load(self) -> None:
        """Look at the load for ever."""
        await self.load_watch.run(self._follow_load)

    def _follow_load(self) -> None:
        self.metrics.headroom.set(self._headroom())
        self.metrics.tasks.set(len(asyncio.all_tasks()))

    async def until_it_begins(self, wait: Wait = asyncio.sleep) -> None:
        """Wait until one more call may begin. Raises: Overloaded where none may by then."""
        if self.config.limits.admit_by_load:
            with self.beginnings.wait(self.n_talking, self.load_watch.room.n_calls) as wait_s:
                await wait(wait_s)
        if self.admission.is_draining:  # nobody would tell the call that it is to end
            raise Overloaded("expected a server that stays, found one that is shutting down")

    @property
    def session_agent(self) -> AgentConfig:
        """The agent as a session of now has it: with the tools that its MCP servers list."""
        return self.toolbox.completed(self.agent)

    async def serve_session(self, transport: Transport) -> None:
        """Run one session to its end, which closes the connection and says by which code.

        One session's bug is not the server's end: that closes with 1011.
        """
        try:
            await self._serve(transport)
        except Exception:
            log.exception("a session failed")
        finally:
            await transport.close(1011, "internal error")  # nothing where it is closed already

    async def _serve(self, transport: Transport) -> None:
        assert self.backends is not None
        try:
            session = Session(
                transport,
                self.backends,
                self.session_agent,
                self.config,
                answers=self.answers,
                retriever=self.retriever,
                metrics=self.metrics,
                clock=self.clock,
                toolbox=self.toolbox,
                level=lambda: self.load_watch.level,
                kept_lines=self.kept_lines,
                traces=self.traces,
                tickets=self.tickets,
                on_resumed=self._goes_on,
            )
        except VoiceLoopError as error:  # a client secret's session that these models cannot serve
            await transport.close(error.close_code or 1008, error.message)
            return
        self._sessions.append(session)
        try:
            await session.run()
        finally:
            self._sessions.remove(session)
            self.late_calls.add(session.protocol.session_id)

    def _goes_on(self, call_id: str) -> None:
        """This call was resumed here: what is left of it on a line that broke is over."""
        self.metrics.resumed.inc()
        for session in self._sessions:
            if call_id in (session.protocol.session_id, session.resumed_id):
                session.drain(Ending.RESUMED)

    def derive_keys(self) -> None:
        """Do ahead what the first ticket and the first client secret would hold all calls for."""
        self.tickets.signer.derive()
        self.keys.derive()

    async def keep_lines(self) -> None:
        """Have the voice speak once what must be said where it fails a call later, or at once."""
        assert self.backends is not None
        options = voice_options_of(self.agent.session_settings())
        for text in self.agent.kept_lines:
            await self.kept_lines.keep(self.backends.voice, text, options)

    async def drain(self) -> None:
        """Take nothing new; let each session inside finish what is being said, and each answer."""
        self.admission.drain()
        self.http_admission.drain()
        for session in self._sessions:
            session.drain()
        while self.admission.n_inside or self.http_admission.n_inside:
            self._one_is_empty.clear()
            await self._one_is_empty.wait()


def build_app(gateway: Gateway) -> Starlette:
    """The application over this state; tests give it fakes."""

    async def realtime(websocket: WebSocket) -> None:
        await _realtime(gateway, websocket)

    config, agent = gateway.config, gateway.agent
    door = Door(
        gateway.keys,
        config.allowed_origins,
        gateway.not_ready,
        gateway.quotas,
        backends=lambda: gateway.backends,
        admission=gateway.http_admission,
        observe_usage=lambda usage: gateway.metrics.model.observe(usage, "http"),
        answers=AnswerCache(config.http_cache_mb * 2**20),
    )
    health = Health(
        gateway.not_ready_for_calls,
        gateway.report,
        gateway.metrics.registry,
        gateway.keys,
        config.metrics_key,
    )
    routes = health_routes(health)
    routes.append(profile_route(door))
    routes += realtime_routes(door, agent.session_settings())
    routes += openai_routes(door, config, agent)
    calls = WebSocketRoute("/v1/realtime", realtime)
    return Starlette(
        routes=[*routes, calls, *page_routes()], exception_handlers={HTTPException: no_such_route}
    )


async def _realtime(gateway: Gateway, websocket: WebSocket) -> None:
    """Check the caller at the door, then hand the connection to a session."""
    offered = websocket.scope.get("subprotocols", [])
    try:
        is_keyed = not gateway.keys.is_open
        allowed = gateway.config.allowed_origins
        check_origin(websocket.headers, allowed, is_keyed=is_keyed)
        entry = gateway.keys.check(client_key(websocket.headers, offered))
        if (reason := gateway.not_ready()) is not None:
            raise Overloaded(f"expected a server that is ready, found that {reason}")
        returns = websocket.query_params.get("voiceloop.returns", "")
        late, tickets = gateway.late_calls, gateway.tickets
        is_returning = late.knows(returns) or tickets.knows(returns, entry.tenant)
        place = gateway.admission.place(is_returning=is_returning)
        # Where the door is open any key is taken: no name of a caller's choice is counted.
        tenant = entry.tenant if is_keyed else ""
        hello = _hello(websocket, entry, gateway.quotas.allowance(tenant))
        with gateway.quotas.call(tenant, is_returning=is_returning), place:
            late.take(returns)  # only now: who finds no place dials again
            tickets.let_in(returns, entry.tenant)
            if not is_returning:
                await gateway.until_it_begins(waiting_at(websocket))
            await websocket.accept(subprotocol=subprotocol(offered))
            await gateway.serve_session(SocketTransport(websocket, hello))
    except VoiceLoopError as error:
        gateway.metrics.refused.labels(code=error.wire_code).inc()
        await websocket.send_denial_response(error_response(error))


def _hello(websocket: WebSocket, entry: Entry, allowance: Allowance) -> Hello:
    """Raises: InvalidRequest."""
    query = websocket.query_params
    greeting = query.get("greeting")
    if greeting not in (None, "0", "1"):
        raise expected("greeting", "0 or 1", greeting)
    is_transcription = query.get("intent") == "transcription"
    return Hello(
        model=query.get("model", "voiceloop")[:256],
        intent="transcription" if is_transcription else "realtime",
        beta=websocket.headers.get("openai-beta", "") == "realtime=v1",
        timeline=query.get("voiceloop.timeline") == "1",
        partials=query.get("voiceloop.partials") == "1",
        notices=query.get("voiceloop.notices") == "1",
        sources=query.get("voiceloop.sources") == "1",
        slots=query.get("voiceloop.slots") == "1",
        resume=query.get("voiceloop.resume") == "1",
        is_returning=bool(query.get("voiceloop.returns")),
        session=entry.session,
        max_session_s=entry.max_session_s,
        greeting=None if greeting is None else greeting == "1",
        tenant=entry.tenant,
        allowance=allowance,
    )
