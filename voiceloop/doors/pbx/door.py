"""The exchange's doors: Asterisk's WebSocket with a password, and AudioSocket with a UUID of ours.

Owns how such a call proves itself, and the TCP port of AudioSocket, which opens with the first
UUID. Where a caller is to be transferred, the dial plan asks for the target once its channel ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from urllib.parse import parse_qsl
from uuid import uuid4

from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from voiceloop.call.connection import Disconnected
from voiceloop.doors.body import read_body
from voiceloop.doors.calls import Calls
from voiceloop.doors.carriers.dialect import Dialect
from voiceloop.doors.carriers.door import MAX_BODY_BYTES, PATH, Accept, opening, serve_leg
from voiceloop.doors.carriers.legs import Leg, Legs
from voiceloop.doors.carriers.signatures import check_basic
from voiceloop.doors.carriers.stream import Socket
from voiceloop.doors.entrance import Server
from voiceloop.doors.pbx.asterisk import AsteriskStream
from voiceloop.doors.pbx.audiosocket import AudioSocketStream, TcpSocket
from voiceloop.errors import Overloaded, Unproved, VoiceLoopError
from voiceloop.http.gate import error_response
from voiceloop.telephony import PhoneCall

log = logging.getLogger(__name__)

SUBPROTOCOL = "media"  # that Asterisk offers
OWN = ("from", "to", "call", "returned")  # of what the dial plan tells; the rest are headers


class PbxDoor:
    """Of one gateway and one kind of exchange.

    name: ``asterisk`` or ``audiosocket``. password: of HTTP Basic authentication.
    """

    def __init__(
        self,
        server: Server,
        calls: Calls,
        name: str,
        password: str,
        dialect: Callable[[], Dialect],
    ) -> None:
        self._server = server
        self._calls = calls
        self._name = name
        self._password = password
        self._dialect = dialect
        self._legs = Legs()
        self.path = f"{PATH}/{name}"

    def routes(self) -> Sequence[Route]:
        return (Route(f"{self.path}/after", self._after, methods=["POST"]),)

    async def _asked(self, request: Request) -> list[tuple[str, str]]:
        """The fields of a form, of an exchange that has the password. Raises: Unproved."""
        check_basic(request.headers.get("authorization"), self._password)
        body = await read_body(request, MAX_BODY_BYTES)
        return parse_qsl(body.decode("utf-8", "replace"))

    async def _after(self, request: Request) -> Response:
        """Where the caller of this call is to be connected; an empty text: nowhere."""
        try:
            fields = dict(await self._asked(request))
        except VoiceLoopError as error:
            return self.refuse(error)
        leg = self._legs.find(fields.get("call", ""))
        target = leg.target if leg is not None else ""
        if leg is not None:
            leg.target = ""
        return PlainTextResponse(target)

    def refuse(self, error: VoiceLoopError) -> Response:
        self._server.metrics.refused.labels(code=error.wire_code).inc()
        log.info("%s: a call was refused: %s", self._name, error.message)
        return error_response(error)

    def ring(self, fields: Sequence[tuple[str, str]]) -> Leg:
        """A call of which the exchange tells. Raises: Unproved: it goes on already."""
        told = dict(fields)
        headers = {name: value for name, value in fields if name not in OWN}
        caller, called = told.get("from", ""), told.get("to", "")
        ids = {"call": told.get("call") or str(uuid4())}
        call = PhoneCall(self._name, caller, called, headers, ids, told.get("returned", ""))
        known = self._legs.find(ids["call"])
        now_s = asyncio.get_running_loop().time()
        if known is not None and known.may_return:
            return self._legs.again(known, call, now_s)
        return self._legs.ring(call, now_s)

    async def serve_stream(self, connection: HTTPConnection, accept: Accept) -> None:
        """Asterisk's WebSocket. Raises: Unproved: it was not let in."""
        try:
            check_basic(connection.headers.get("authorization"), self._password)
            leg = self.ring(list(connection.query_params.multi_items()))
        except VoiceLoopError as error:
            self.refuse(error)
            raise
        await self.serve(await accept(), lambda call_id: leg)

    async def serve(self, socket: Socket, leg_of: Callable[[str], Leg | None]) -> None:
        """A connection to its end. leg_of: by what its start names. Raises: Unproved."""
        try:
            begun = await opening(socket, self._dialect())
            if (leg := leg_of(begun.started.call)) is None:
                raise Unproved("expected a call that was announced, found another")
            leg = self._legs.take(leg.ticket, leg.call.ids["call"], self._now_s)
            await serve_leg(self._server, self._calls, socket, begun, leg)
        except VoiceLoopError as error:
            self.refuse(error)
            await socket.close(error.close_code or 1008, error.message)
        except Disconnected:
            await socket.close()

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


class AudioSocketDoor(PbxDoor):
    """AudioSocket's: `POST /v1/phone/audiosocket` gives a UUID for a call, and opens the port."""

    def __init__(self, server: Server, calls: Calls, password: str, host: str, port: int) -> None:
        super().__init__(server, calls, "audiosocket", password, AudioSocketStream)
        self._host = host
        self._port = port
        self._listening: asyncio.Server | None = None
        self._opening = asyncio.Lock()

    def routes(self) -> Sequence[Route]:
        return (*super().routes(), Route(self.path, self._give, methods=["POST"]))

    async def _give(self, request: Request) -> Response:
        """The UUID with which the exchange has 30 s to connect."""
        try:
            fields = await self._asked(request)
            if (lack := self._server.not_ready() or self._server.admission.lack()) is not None:
                raise Overloaded(f"expected room for a call, found {lack}")
            await self._listen()
            leg = self.ring([(name, value) for name, value in fields if name != "call"])
        except VoiceLoopError as error:
            return self.refuse(error)
        return PlainTextResponse(leg.call.ids["call"])

    async def _listen(self) -> None:
        """Open the port, once for all calls. Raises: Overloaded: somebody else has it."""
        async with self._opening:
            if self._listening is None:
                try:
                    self._listening = await asyncio.start_server(self._take, self._host, self._port)
                except OSError as error:
                    wanted = f"expected the port {self._port} of phone.audiosocket"
                    raise Overloaded(f"{wanted}, found {error.strerror}") from None

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.serve(TcpSocket(reader, writer), self._legs.find)

    def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None


def asterisk_door(server: Server, calls: Calls, password: str) -> PbxDoor:
    return PbxDoor(server, calls, "asterisk", password, AsteriskStream)
