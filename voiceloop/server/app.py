"""The application: one server's state, and what it answers.

Owns that state (`Gateway`) and how a session is handed its connection. Who gets in stands in
`door.py` and ``voiceloop/admission/``, what a session does in ``voiceloop/call/session.py``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from voiceloop.access.keys import KeyRing
from voiceloop.access.quotas import Quotas
from voiceloop.admission.places import CallAdmission, RequestAdmission
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.call.connection import Transport
from voiceloop.call.lifetime import Ending
from voiceloop.call.services import Answering, CallServices
from voiceloop.call.session import Session
from voiceloop.config import Config
from voiceloop.errors import VoiceLoopError
from voiceloop.http.routes import http_routes, no_such_route
from voiceloop.operation import WorkerLoad
from voiceloop.resume.ticket import Tickets
from voiceloop.server.agents import AgentPaths, Agents, ServedAgent
from voiceloop.server.door import Doors, phone_routes, realtime_route
from voiceloop.server.load_watch import LoadWatch
from voiceloop.server.observers import CallObservers, open_observers
from voiceloop.telemetry.metrics import Metrics
from voiceloop.tools.toolbox import Toolbox, toolbox_of

log = logging.getLogger(__name__)


def _told(lost: WorkerLoad) -> str:
    """A worker that is not ready, for a person to read."""
    why = f" ({lost.trouble})" if lost.trouble else ""
    return f"the worker {lost.name} is {lost.state}{why}"


@dataclass(slots=True)
class Gateway:
    """One server's state. ``backends`` is None until the models are loaded. ``others``: agents by
    name, that of whoever names none perhaps among them.
    """

    config: Config
    agent: AgentConfig
    backends: Backends | None = None
    others: Mapping[str, AgentConfig] = field(default_factory=dict)
    is_ready: Callable[[], bool] = lambda: True
    clock: Callable[[], float] = time.monotonic
    metrics: Metrics = field(init=False)
    keys: KeyRing = field(init=False)
    observers: CallObservers = field(init=False)
    calls: CallServices = field(init=False)  # what all of the first agent share
    agents: Agents = field(init=False)
    admission: CallAdmission = field(init=False)
    http_admission: RequestAdmission = field(init=False)
    load_watch: LoadWatch = field(init=False)
    quotas: Quotas = field(init=False)
    doors: Doors = field(init=False)
    _one_is_empty: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _sessions: list[Session] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        config = self.config
        self.keys = KeyRing(config.keys, shared=config.secret_key)
        self.metrics = Metrics(config.slo, config.prices, config.trial, self.workers)
        spent = self.metrics.quota_spent
        self.quotas = Quotas(self.config.quota, self.clock, lambda what: spent.labels(what).inc())
        self.observers = open_observers(config, self.agent, self.keys, self.metrics, self.clock)
        self.calls = CallServices(
            config=config,
            metrics=self.metrics,
            clock=self.clock,
            toolbox=self._toolbox(self.agent),
            level=lambda: self.load_watch.level,
            traces=self.observers.traces,
            tickets=Tickets(self.keys, time.time),
            recordings=self.observers.recordings,
            on_resumed=self._goes_on,
            lacks_place=lambda: self.admission.lacks_room(),
            agent_names=lambda: self.agents.names,
            another=self._answering,
        )
        self.agents = Agents(self.agent, self.calls, self.others, self._services, self._file_of)
        emptied = self._one_is_empty.set
        self.admission = CallAdmission(
            config.limits, config.slo.answer_ms / 1000.0,
            lambda: self.n_talking, self._places_taken, lambda: self.load_watch.level, self.clock,
            emptied, self._giving_way,
        )  # fmt: skip
        self.http_admission = RequestAdmission(self.admission, emptied)
        self.doors = Doors(self)
        self.load_watch = LoadWatch(
            self.workers,
            lambda: self.backends.take_answers() if self.backends is not None else (),
            self.admission.n_talking, self.admission.room, self.metrics, self.clock,
        )  # fmt: skip

    def _file_of(self, agent: AgentConfig) -> Path | None:
        """Return the agent's file; None of one that ships."""
        folder = self.config.agents
        name = next((name for name, one in self.others.items() if one is agent), None)
        return self.config.agent if folder is None or name is None else folder / f"{name}.toml"

    def _toolbox(self, agent: AgentConfig) -> Toolbox:
        """Return the agent's tools, beside whose file its Python modules may stand."""
        file = self._file_of(agent)
        folder = str(file.resolve().parent) if file is not None else ""
        return toolbox_of(agent, self.clock, folder=folder)

    def _services(self, name: str, agent: AgentConfig) -> CallServices:
        """Return what the calls of one of several agents share; the first has `calls`."""
        return self.calls.of_another(name, self._toolbox(agent))

    def not_ready(self) -> str | None:
        """Return what keeps calls out, None when nothing does."""
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
        """Return what keeps a new caller out at this moment, None when nothing does."""
        return self.not_ready() or self.admission.lack()

    def report(self) -> dict[str, Any]:
        """Return what an operator asks first; the same as in `/metrics`, for a person to read."""
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
                    "trouble": worker.trouble,
                }
                for worker in self.workers()
            ],
            "canary": msgspec.to_builtins(self.metrics.trial.status()),
        }

    def _headroom(self) -> float:
        """The share of all that bounds calls that is still free; 0: no new one is let in."""
        if self.not_ready_for_calls() is not None:
            return 0.0
        most = max(1, self.admission.n_for_new)
        return min(self.load_watch.headroom, max(0.0, 1.0 - self.n_sessions / most))

    @property
    def n_sessions(self) -> int:
        return len(self._sessions)

    @property
    def n_talking(self) -> int:
        """Calls in which somebody has spoken lately."""
        return sum(session.place_share == 1.0 for session in self._sessions)

    def _places_taken(self) -> float:
        return sum(session.place_share for session in self._sessions)

    def _giving_way(self) -> Callable[[], None] | None:
        """Return the first call whose client has said nothing: it gives way to another caller."""
        silent = next((one for one in self._sessions if one.gives_way), None)
        if silent is None:
            return self.doors.giving_way()
        return partial(silent.end, Ending.OVERLOADED)

    async def watch_load(self) -> None:
        """Look at the load for ever."""
        await self.load_watch.run(self._follow_load)

    def _follow_load(self) -> None:
        self.metrics.headroom.set(self._headroom())
        self.metrics.tasks.set(len(asyncio.all_tasks()))

    def session_agent(self, name: str = "") -> AgentConfig:
        """The agent of this name as a session of now has it: with the tools that its MCP servers
        list. Raises: InvalidRequest: there is none of this name.
        """
        return self.agents.named(name).completed

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
            session = Session(transport, self._answering(transport.hello.agent))
        except VoiceLoopError as error:  # a client secret's session that these models cannot serve
            await transport.close(error.close_code or 1008, error.message)
            return
        self._sessions.append(session)
        if not self.keys.knows(session.tenant):  # removed since it was checked, as peers connect
            session.end(Ending.REVOKED)
        try:
            await session.run()
        finally:
            self._sessions.remove(session)
            self.admission.late_calls.add(session.tenant, session.protocol.session_id)

    def _answering(self, name: str) -> Answering:
        """Return who answers a call that asks for this agent. Raises: InvalidRequest."""
        served = self.agents.named(name)
        return Answering(served.completed, served.services, self.backends_of(served))

    def backends_of(self, served: ServedAgent) -> Backends:
        """Return the models as this agent has them."""
        assert self.backends is not None
        backends = served.answered_by(self.backends)
        return served.spoken_by(backends) if self.others else backends

    def take_agent(self, agent: AgentConfig, served: ServedAgent | None = None) -> None:
        """Another one from now on: for new calls, and what an open one may take of it.

        served: in whose place; None: the first's.
        """
        served = served or self.agents.first
        served.take(agent)
        if served is self.agents.first:
            self.agent = agent
        for session in self._sessions:
            if self.agents.named(session.agent_name) is served:
                session.take_agent(agent)

    def revoke(self, tenants: frozenset[str]) -> None:
        """End the calls of these, whose keys are gone."""
        for session in self._sessions:
            if session.tenant in tenants:
                session.end(Ending.REVOKED)

    def _goes_on(self, call_id: str, by: str) -> None:
        """Go on with a call that was resumed here: what is left of it on a line that broke is
        over.
        """
        self.metrics.resumed.inc()
        for session in self._sessions:
            if call_id in (session.protocol.session_id, session.resumed_id):
                session.end(Ending.RESUMED)
        if self.backends is not None:
            self.backends.tell_resumed(call_id, by)

    def resumed_elsewhere(self, call_id: str, by: str) -> None:
        """Take in that a call was resumed at another gateway: it goes on once.

        Where it was resumed at both at the same time, one of the two keeps it.
        """
        for session in self._sessions:
            is_theirs = call_id == session.resumed_id and session.gives_up_to(by)
            if is_theirs or call_id == session.protocol.session_id:
                session.end(Ending.RESUMED)

    @property
    def tickets(self) -> Tickets:
        """Return the tickets of calls, to be resumed after a line has broken."""
        assert self.calls.tickets is not None
        return self.calls.tickets

    def prepare(self) -> None:
        """Do ahead what the first ticket, client secret and offer would hold all calls for."""
        self.keys.derive()
        self.doors.prepare()

    async def drain(self) -> None:
        """Take nothing new; let each session inside finish what is being said, and each answer."""
        self.admission.drain()
        self.http_admission.drain()
        for session in self._sessions:
            session.end()
        while self.admission.n_inside or self.http_admission.n_inside:
            self._one_is_empty.clear()
            await self._one_is_empty.wait()


def build_app(gateway: Gateway) -> Starlette:
    """The application over this state; tests give it fakes."""
    routes = http_routes(
        gateway.config,
        gateway.agent,
        lambda name: gateway.agents.named(name).agent,
        names=gateway.agents.names,
        keys=gateway.keys,
        quotas=gateway.quotas,
        admission=gateway.http_admission,
        backends=lambda: gateway.backends,
        not_ready=gateway.not_ready,
        not_ready_for_calls=gateway.not_ready_for_calls,
        report=gateway.report,
        registry=gateway.metrics.registry,
        observe_usage=lambda usage, model: gateway.metrics.model.observe(
            usage, "http", {model: usage}
        ),
        answered_by=lambda name, backends: gateway.agents.named(name).answered_by(backends),
    )
    return Starlette(
        routes=[
            *routes,
            *gateway.observers.routes,
            *gateway.doors.routes(),
            realtime_route(gateway, gateway.doors),
            *phone_routes(gateway.doors),
        ],
        exception_handlers={HTTPException: no_such_route},
        middleware=[Middleware(AgentPaths)],
    )
