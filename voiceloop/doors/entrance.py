"""The entrance of every door: who gets in, in what order that is checked, and what they ask for.

Owns the checks before a call begins, whatever kind of line it comes by, and the reading of an
address (`hello_of`). What a door adds is its own line.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Literal, Protocol

from starlette.requests import HTTPConnection

from voiceloop.access.keys import Entry, KeyRing, client_key
from voiceloop.access.origins import check_origin
from voiceloop.access.quotas import Quotas
from voiceloop.admission.places import CallAdmission, Wait
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.call.connection import Hello, Transport
from voiceloop.config import Config
from voiceloop.errors import Overloaded, expected
from voiceloop.realtime.session_update import within_capabilities
from voiceloop.resume.ticket import Tickets
from voiceloop.telemetry.metrics import Metrics

Door = Literal["websocket", "webrtc"]  # of those whose caller shows a key


class Server(Protocol):
    """The server behind the doors. not_ready: what keeps calls out, None when nothing does."""

    config: Config
    keys: KeyRing
    quotas: Quotas
    admission: CallAdmission
    metrics: Metrics

    backends: Backends | None

    def session_agent(self, name: str) -> AgentConfig:
        """As a session of now has it. Raises: InvalidRequest: there is none of this name."""

    @property
    def tickets(self) -> Tickets: ...
    def not_ready(self) -> str | None: ...
    async def serve_session(self, transport: Transport) -> None: ...


def check_key(server: Server, connection: HTTPConnection, offered: Sequence[str] = ()) -> Entry:
    """Return what the caller's key opens; offered: subprotocols. Raises: Forbidden,
    Unauthorized.
    """
    is_keyed = not server.keys.is_open
    check_origin(connection.headers, server.config.allowed_origins, is_keyed=is_keyed)
    return server.keys.check(client_key(connection.headers, offered))


@asynccontextmanager
async def let_in(
    server: Server, hello: Hello, wait: Wait, returns: str = ""
) -> AsyncIterator[Hello]:
    """A caller who was checked, in a place and within its quota, for as long as it lasts.

    wait: for its turn to begin. returns: what it shows of a call that it comes back to. Raises:
    InvalidRequest, Overloaded, RateLimited.
    """
    if (reason := server.not_ready()) is not None:
        raise Overloaded(f"This server is not ready: {reason}.")
    late, tickets = server.admission.late_calls, server.tickets
    has_ticket = tickets.knows(returns, hello.tenant)
    is_returning = has_ticket or late.knows(hello.tenant, returns)
    lacks_place = server.admission.lack() is not None
    place = server.admission.place(is_returning=is_returning)
    # Where the door is open any key is taken: no name of a caller's choice is counted.
    tenant = "" if server.keys.is_open else hello.tenant
    server.session_agent(hello.agent)
    hello = replace(hello, key=tenant, allowance=server.quotas.allowance(tenant))
    with server.quotas.call(tenant, has_ticket=has_ticket) as is_beyond, place:
        if has_ticket and (is_beyond or lacks_place):
            hello = replace(hello, owes_resume=True)
        late.take(hello.tenant, returns)  # only now: who finds no place dials again
        tickets.let_in(returns, hello.tenant)
        if not is_returning:
            await server.admission.until_it_begins(wait)
        yield hello


def check_session(server: Server, hello: Hello) -> None:
    """Raises: InvalidRequest: the session that the caller asks for cannot be served."""
    backends = server.backends
    if backends is None:
        raise Overloaded("This server is not ready: it loads its models.")
    own = server.session_agent(hello.agent).session_settings(hello.model)
    within_capabilities(backends.capabilities, hello.settings_over(own))


def returns_of(connection: HTTPConnection) -> str:
    """Return what a caller shows of a call that it comes back to, for `let_in`."""
    return connection.query_params.get("voiceloop.returns", "")


def hello_of(connection: HTTPConnection, entry: Entry, door: Door) -> Hello:
    """Return what the caller's address and key say. Raises: Forbidden, InvalidRequest."""
    query = connection.query_params
    greeting = query.get("greeting")
    if greeting not in (None, "0", "1"):
        raise expected("greeting", "0 or 1", greeting)
    is_transcription = query.get("intent") == "transcription"
    return Hello(
        model=query.get("model", "voiceloop")[:256],
        agent=entry.named(query.get("agent", "")),
        intent="transcription" if is_transcription else "realtime",
        beta=connection.headers.get("openai-beta", "") == "realtime=v1",
        timeline=query.get("voiceloop.timeline") == "1",
        partials=query.get("voiceloop.partials") == "1",
        notices=query.get("voiceloop.notices") == "1",
        sources=query.get("voiceloop.sources") == "1",
        slots=query.get("voiceloop.slots") == "1",
        confirmations=query.get("voiceloop.confirmations") == "1",
        resume=query.get("voiceloop.resume") == "1",
        is_returning=bool(returns_of(connection)),
        session=entry.session,
        max_session_s=entry.max_session_s,
        lock=entry.lock,
        secret=entry.secret,
        claims=entry.asserted,
        greeting=None if greeting is None else greeting == "1",
        tenant=entry.tenant,
        door=door,
    )
