"""The door at ``/v1/realtime``: who gets in before the upgrade, and what a caller asks for there.

Owns the order of the checks and the refusal, an HTTP answer. Who passes is a session's caller.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from voiceloop.access.keys import Entry, KeyRing, client_key, subprotocol
from voiceloop.access.origins import check_origin
from voiceloop.access.quotas import Quotas
from voiceloop.admission.allowance import Allowance
from voiceloop.admission.places import CallAdmission
from voiceloop.call.connection import Hello, Transport
from voiceloop.config import Config
from voiceloop.errors import Overloaded, VoiceLoopError, expected
from voiceloop.http.gate import error_response
from voiceloop.resume.ticket import Tickets
from voiceloop.server.websocket import SocketTransport, waiting_at
from voiceloop.telemetry.metrics import Metrics


class Server(Protocol):
    """The server behind the door. not_ready: what keeps calls out, None when nothing does."""

    config: Config
    keys: KeyRing
    quotas: Quotas
    admission: CallAdmission
    metrics: Metrics

    @property
    def tickets(self) -> Tickets: ...
    def not_ready(self) -> str | None: ...
    async def serve_session(self, transport: Transport) -> None: ...


def realtime_route(server: Server) -> WebSocketRoute:
    """``/v1/realtime``: check the caller, then hand the connection to a session."""

    async def realtime(websocket: WebSocket) -> None:
        offered = websocket.scope.get("subprotocols", [])
        try:
            is_keyed = not server.keys.is_open
            check_origin(websocket.headers, server.config.allowed_origins, is_keyed=is_keyed)
            entry = server.keys.check(client_key(websocket.headers, offered))
            if (reason := server.not_ready()) is not None:
                raise Overloaded(f"expected a server that is ready, found that {reason}")
            returns = websocket.query_params.get("voiceloop.returns", "")
            late, tickets = server.admission.late_calls, server.tickets
            has_ticket = tickets.knows(returns, entry.tenant)
            is_returning = has_ticket or late.knows(entry.tenant, returns)
            lacks_place = server.admission.lack() is not None
            place = server.admission.place(is_returning=is_returning)
            # Where the door is open any key is taken: no name of a caller's choice is counted.
            tenant = entry.tenant if is_keyed else ""
            hello = _hello(websocket, entry, tenant, server.quotas.allowance(tenant))
            with server.quotas.call(tenant, has_ticket=has_ticket) as is_beyond, place:
                if has_ticket and (is_beyond or lacks_place):
                    hello = replace(hello, owes_resume=True)
                late.take(entry.tenant, returns)  # only now: who finds no place dials again
                tickets.let_in(returns, entry.tenant)
                if not is_returning:
                    await server.admission.until_it_begins(waiting_at(websocket))
                await websocket.accept(subprotocol=subprotocol(offered))
                await server.serve_session(SocketTransport(websocket, hello))
        except VoiceLoopError as error:
            server.metrics.refused.labels(code=error.wire_code).inc()
            await websocket.send_denial_response(error_response(error))

    return WebSocketRoute("/v1/realtime", realtime)


def _hello(websocket: WebSocket, entry: Entry, tenant: str, allowance: Allowance) -> Hello:
    """tenant: "" where any key is taken. Raises: InvalidRequest."""
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
        confirmations=query.get("voiceloop.confirmations") == "1",
        resume=query.get("voiceloop.resume") == "1",
        is_returning=bool(query.get("voiceloop.returns")),
        session=entry.session,
        max_session_s=entry.max_session_s,
        lock=entry.lock,
        key=tenant,
        secret=entry.secret,
        claims=entry.asserted,
        greeting=None if greeting is None else greeting == "1",
        tenant=entry.tenant,
        allowance=allowance,
    )
