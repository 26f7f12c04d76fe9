"""The exchange's doors: Asterisk's WebSocket with a password, and AudioSocket with a UUID of ours.

Owns how such a call proves itself, and the TCP port of AudioSocket, which opens with the first
UUID. Where a caller is to be transferred, the dial plan asks for the target once its channel ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from urllib.parse import parse_qsl
from uuid import uuid4

from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from voiceloop.doors.calls import Calls
from voiceloop.doors.carriers.dialect import Dialect, Started
from voiceloop.doors.carriers.door import MAX_BODY_BYTES, Accept, StreamDoor, host_of
from voiceloop.doors.carriers.legs import Leg
from voiceloop.doors.carriers.signatures import check_basic
from voiceloop.doors.entrance import Server
from voiceloop.doors.pbx.asterisk import AsteriskStream
from voiceloop.doors.pbx.audiosocket import AudioSocketStream, TcpSocket
from voiceloop.errors import Overloaded, Unproved, VoiceLoopError
from voiceloop.http.body import read_body
from voiceloop.telephony import PhoneCall

OWN = ("from", "to", "call", "returned")  # of what the dial plan tells; the rest are headers


class PbxDoor(StreamDoor):
    """The door of one kind of exchange, ``asterisk`` or ``audiosocket``. password: of HTTP Basic
    authentication.
    """

    def __init__(
        self,
        server: Server,
        calls: Calls,
        name: str,
        password: str,
        dialect: Callable[[], Dialect],
    ) -> None:
        super().__init__(server, calls, name, dialect)
        self._password = password

    def routes(self) -> Sequence[Route]:
        return (Route(f"{self.path}/after", self._after, methods=["POST"]),)

    async def _asked(self, request: Request) -> list[tuple[str, str]]:
        """The fields of a form, of an exchange that has the password. Raises: Unproved."""
        check_basic(request.headers.get("authorization"), self._password)
        body = await read_body(request, MAX_BODY_BYTES)
        return parse_qsl(body.decode("utf-8", "replace"))

    async def _after(self, request: Request) -> Response:
        """Return where the caller of this call is to be connected; an empty text: nowhere."""
        try:
            fields = dict(await self._asked(request))
        except VoiceLoopError as error:
            return self._refuse(error)
        leg = self._legs.find(fields.get("call", ""))
        target = leg.target if leg is not None else ""
        if leg is not None:
            leg.target = ""
        return PlainTextResponse(target)

    def _ring(self, fields: Sequence[tuple[str, str]]) -> Leg:
        """A call of which the exchange tells. Raises: Unproved: it goes on already."""
        told = dict(fields)
        headers = {name: value for name, value in fields if name not in OWN}
        caller, called = told.get("from", ""), told.get("to", "")
        call_id = told.get("call") or str(uuid4())
        call = PhoneCall(self._name, caller, called, headers, call_id, told.get("returned", ""))
        known = self._legs.find(call_id)
        if known is not None and known.may_return:
            return self._legs.again(known, call, self._now_s)
        return self._legs.ring(call, self._now_s)

    def _take(self, leg: Leg) -> Leg:
        """Take its stream, which is there. Raises: Unproved."""
        return self._legs.take(leg.ticket, leg.call.id, self._now_s)


class AsteriskDoor(PbxDoor):
    """Asterisk's WebSocket."""

    subprotocol = "media"

    def __init__(self, server: Server, calls: Calls, password: str) -> None:
        super().__init__(server, calls, "asterisk", password, AsteriskStream)

    async def serve_stream(self, connection: HTTPConnection, accept: Accept) -> None:
        """A channel from its upgrade to its end. Raises: Unproved: it was not let in."""
        try:
            check_basic(connection.headers.get("authorization"), self._password)
            leg = self._ring(list(connection.query_params.multi_items()))
        except VoiceLoopError as error:
            self._refuse(error)
            raise
        await self._serve(await accept(), host_of(connection), lambda started: self._take(leg))


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
            if (lack := self._lack()) is not None:
                raise Overloaded(f"No room for a call: {lack}.")
            await self._listen()
            leg = self._ring([(name, value) for name, value in fields if name != "call"])
        except VoiceLoopError as error:
            return self._refuse(error)
        return PlainTextResponse(leg.call.id)

    async def _listen(self) -> None:
        """Open the port, once for all calls. Raises: Overloaded: somebody else has it."""
        async with self._opening:
            if self._listening is None:
                try:
                    self._listening = await asyncio.start_server(
                        self._accept, self._host, self._port
                    )
                except OSError as error:
                    wanted = f"expected the port {self._port} of phone.audiosocket_at"
                    raise Overloaded(f"{wanted}, found {error.strerror}") from None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = str(writer.get_extra_info("peername")[0])
        await self._serve(TcpSocket(reader, writer), host, self._leg_of)

    def _leg_of(self, started: Started) -> Leg:
        """Raises: Unproved."""
        if (leg := self._legs.find(started.call)) is None:
            raise Unproved("The exchange did not announce this call.")
        return self._take(leg)

    def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None
