"""The door at ``/v1/realtime``: a WebSocket that is a call, or one that sits beside a call.

Owns the refusal, an HTTP answer before the upgrade. Who passes the entrance
(`doors/entrance.py`) is a session's caller.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from voiceloop.access.keys import Entry, subprotocol
from voiceloop.call.connection import Hello
from voiceloop.doors.entrance import Server, check_key, hello_of, let_in, returns_of
from voiceloop.doors.routes import Doors as Doors  # those besides this one
from voiceloop.doors.sideband import sit_beside
from voiceloop.errors import VoiceLoopError
from voiceloop.http.gate import error_response
from voiceloop.server.websocket import SocketTransport, waiting_at

if TYPE_CHECKING:
    from voiceloop.doors.carriers.door import CarrierDoor
    from voiceloop.doors.pbx.door import AsteriskDoor


def realtime_route(server: Server, doors: Doors) -> WebSocketRoute:
    """``/v1/realtime``: check the caller, then hand the connection to a session.

    doors: of the calls beside which ``?call_id=`` sits.
    """

    async def realtime(websocket: WebSocket) -> None:
        offered = websocket.scope.get("subprotocols", [])

        async def accept(hello: Hello) -> SocketTransport:
            await websocket.accept(subprotocol=subprotocol(offered))
            return SocketTransport(websocket, hello)

        async def beside(entry: Entry, call_id: str) -> None:
            line = doors.calls.find(call_id, entry.tenant)
            with line.side() as side:
                await sit_beside(await accept(hello_of(websocket, entry, "websocket")), line, side)

        try:
            entry = check_key(server, websocket, offered)
            if (call_id := websocket.query_params.get("call_id")) is not None:
                await beside(entry, call_id)
                return
            asked = hello_of(websocket, entry, "websocket")
            wait, returns = waiting_at(websocket), returns_of(websocket)
            async with let_in(server, asked, wait, returns) as hello:
                await server.serve_session(await accept(hello))
        except VoiceLoopError as error:
            server.metrics.refused.labels(code=error.wire_code).inc()
            await websocket.send_denial_response(error_response(error))

    return WebSocketRoute("/v1/realtime", realtime)


def phone_routes(doors: Doors) -> list[WebSocketRoute]:
    """The WebSockets of carriers and exchanges, which prove themselves to their own doors."""
    found = doors.telephones.sockets
    return [WebSocketRoute(f"{one.path}/stream", partial(_phone, one)) for one in found]


async def _phone(door: CarrierDoor | AsteriskDoor, websocket: WebSocket) -> None:
    async def accept() -> SocketTransport:
        offered = websocket.scope.get("subprotocols", [])
        await websocket.accept(door.subprotocol if door.subprotocol in offered else None)
        return SocketTransport(websocket, Hello(door="phone"))

    try:
        await door.serve_stream(websocket, accept)
    except VoiceLoopError as error:  # the upgrade is refused; the door has counted it
        await websocket.send_denial_response(error_response(error))
