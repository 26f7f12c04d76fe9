"""The carriers' door: a ring over HTTP, a stream that shows its ticket, and what follows it.

Owns the order of the proofs: no session begins, and no model is asked for anything, before a stream
has shown the ticket of a ring that its carrier has signed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from audio.errors import AudioError
from voiceloop.call.connection import Disconnected
from voiceloop.doors.calls import Calls
from voiceloop.doors.carriers.dialect import Asked, Dialect, Heard, Started, Way
from voiceloop.doors.carriers.legs import Leg, Legs, LegState, LegStream
from voiceloop.doors.carriers.sound import FarSound
from voiceloop.doors.carriers.stream import Socket, StreamEnd
from voiceloop.doors.carriers.twilio import Twilio
from voiceloop.doors.carriers.vonage import Vonage
from voiceloop.doors.entrance import Server
from voiceloop.doors.phone import call_of, hello_of_call
from voiceloop.errors import Unproved, VoiceLoopError
from voiceloop.http.body import read_body
from voiceloop.http.gate import error_response
from voiceloop.strangers import network_of

log = logging.getLogger(__name__)

PATH = "/v1/phone"
MAX_BODY_BYTES = 64 * 1024
START_S = 5.0  # from the upgrade to the message that begins the stream
MOST_BEFORE_START = 256  # frames: five seconds of sound
MOST_UNPROVED = 64  # streams of a door at once that have not said what they are of
MOST_EARLY_BYTES = 512 * 1024  # of them: at 48 kHz and 16 bits

Carrier = Twilio | Vonage  # and what is made of the first
Accept = Callable[[], Awaitable[Socket]]
Waiting = deque[tuple[str, asyncio.Timeout]]  # networks of streams, the oldest first


@dataclass(slots=True)
class Open:
    """A stream that has said what it is of. early: its sound of before that."""

    dialect: Dialect
    started: Started
    early: list[Heard]


async def opening(socket: Socket, dialect: Dialect, peer: str, waiting: Waiting) -> Open:
    """Wait for the stream to say what it is of. peer: its address. waiting: those of a door that
    have not yet. Raises: Unproved, InvalidRequest, Disconnected.
    """
    early: list[Heard] = []
    n_bytes = 0
    within = asyncio.timeout(START_S)
    mine = network_of(peer), within
    try:
        async with within:
            if len(waiting) >= MOST_UNPROVED:
                _give_way(waiting)
            waiting.append(mine)
            for _ in range(MOST_BEFORE_START):
                match dialect.read(await socket.receive()):
                    case Started() as started:
                        return Open(dialect, started, early)
                    case Heard() as sound:
                        if (n_bytes := n_bytes + len(sound.payload)) > MOST_EARLY_BYTES:
                            raise Unproved("The stream sent sound before its start.")
                        early.append(sound)
    except TimeoutError:
        pass
    finally:
        with suppress(ValueError):  # it gave way
            waiting.remove(mine)
    raise Unproved(f"The stream did not start within {START_S:g} s.")


def _give_way(waiting: Waiting) -> None:
    """End the oldest of the network that has most: those of a stranger push out their own."""
    ((crowded, _),) = Counter(network for network, _ in waiting).most_common(1)
    oldest = next(one for one in waiting if one[0] == crowded)
    waiting.remove(oldest)
    if not oldest[1].expired():
        oldest[1].reschedule(0.0)


def host_of(connection: HTTPConnection) -> str:
    """The address of who connects; "" over a Unix socket."""
    return connection.client.host if connection.client is not None else ""


class StreamDoor:
    """The door of one gateway for one carrier or kind of exchange: its legs, and the streams of
    these.

    announces: whether its far end says something to whoever takes a transferred call. subprotocol:
    of its WebSocket, taken where it is offered.
    """

    announces = False
    subprotocol = ""

    def __init__(
        self, server: Server, calls: Calls, name: str, dialect: Callable[[], Dialect]
    ) -> None:
        self._server = server
        self._calls = calls
        self._name = name
        self._dialect = dialect
        self._legs = Legs()
        self._waiting: Waiting = deque()
        self.path = f"{PATH}/{name}"

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _lack(self) -> str | None:
        """Return what keeps one more call out, None when nothing does."""
        return self._server.not_ready() or self._server.admission.lack()

    def _refuse(self, error: VoiceLoopError) -> Response:
        self._server.metrics.refused.labels(code=error.wire_code).inc()
        log.info("%s: a call was refused: %s", self._name, error.message)
        return error_response(error)

    async def _serve(self, socket: Socket, peer: str, leg_of: Callable[[Started], Leg]) -> None:
        """A stream of this address to its end. leg_of: by what it says that it is of; raises:
        Unproved.
        """
        leg: Leg | None = None
        try:
            begun = await opening(socket, self._dialect(), peer, self._waiting)
            leg = leg_of(begun.started)
            await self._run(socket, begun, leg)
        except VoiceLoopError as error:
            self._refuse(error)
            if leg is not None:  # there is no place any more: the far end asks what follows
                leg.state = LegState.OVER
            code = error.close_code or (1008 if leg is None else 1013)
            await socket.close(code, error.message)
        except Disconnected:
            await socket.close()

    async def _run(self, socket: Socket, begun: Open, leg: Leg) -> None:
        """The call over this stream. Raises: Overloaded, RateLimited."""
        hello = replace(hello_of_call(self._server.config, leg.call), resume=True)
        resume, leg.resume = leg.resume, ""
        async with call_of(self._server, self._calls, hello, resume, leg.returns) as line:
            sound = FarSound(begun.started.encoding, begun.started.rate_hz)
            owner = LegStream(leg, leg.n_streams, self.announces)
            far = StreamEnd(socket, begun.dialect, sound, line, owner)
            line.far = line.phone = far
            for early in begun.early:
                with suppress(AudioError):  # as later, one bad frame ends no call
                    far.take(early)
            streaming = asyncio.create_task(far.run(), name="a telephone's stream")
            try:
                await self._server.serve_session(line)
            finally:
                streaming.cancel()
                await asyncio.gather(streaming, return_exceptions=True)


class CarrierDoor(StreamDoor):
    """The door of one carrier. public_url: where it reaches the gateway."""

    def __init__(self, server: Server, calls: Calls, carrier: Carrier, public_url: str) -> None:
        super().__init__(server, calls, carrier.name, carrier.stream)
        self._carrier = carrier
        self._url = public_url
        self.announces = carrier.announces

    def routes(self) -> Sequence[Route]:
        return (
            Route(self.path, partial(self._answer, self._ring), methods=["POST"]),
            Route(f"{self.path}/after", partial(self._answer, self._after), methods=["POST"]),
            Route(f"{self.path}/announce", partial(self._answer, self._announce), methods=["POST"]),
        )

    # --- over HTTP ---

    async def _answer(self, how: Callable[[Asked], str | None], request: Request) -> Response:
        try:
            body = await read_body(request, MAX_BODY_BYTES)
            asked = self._asked(request, "", body)
            self._carrier.prove(asked)
            told = how(asked)
        except VoiceLoopError as error:
            return self._refuse(error)
        if told is None:
            return Response(status_code=204)
        return Response(told, media_type=self._carrier.media_type)

    def _asked(self, request: HTTPConnection, scheme: str, body: bytes = b"") -> Asked:
        """Over the configured address: what a proxy says of the host is not believed."""
        url = self._url if not scheme else scheme + self._url.removeprefix("http")
        query = request.url.query
        url += request.url.path + (f"?{query}" if query else "")
        kind = request.headers.get("content-type", "").partition(";")[0]
        fields: list[tuple[str, str]] = []
        if kind == "application/x-www-form-urlencoded":
            fields = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
        return Asked(url, request.headers, time.time(), body, fields)

    def _ring(self, asked: Asked) -> str:
        call = self._carrier.ring(asked)
        if (lack := self._lack()) is not None:
            log.info("%s: a caller is told that the line is busy: %s", self._carrier.name, lack)
            self._server.metrics.refused.labels(code="server_overloaded").inc()
            return self._carrier.busy()
        return self._connect(self._legs.ring(call, self._now_s))

    def _after(self, asked: Asked) -> str | None:
        """A stream or a transfer is over: what becomes of the caller?"""
        left = self._carrier.after(asked)
        if left is None:
            return None
        leg = self._legs.find(left.call.id)
        if leg is None and left.is_live and not left.failed:
            return self._ring(asked)  # a server before this one had it, and has ended
        if leg is None or not left.is_live or leg.state is LegState.OVER:
            return self._carrier.over()
        if leg.target:
            target, leg.target, leg.state = leg.target, "", LegState.DIALLED
            return self._carrier.dial(leg.call, target, self._way(leg))
        is_done = leg.state is LegState.DIALLED and not left.failed
        if is_done or not leg.may_return:
            leg.state = LegState.OVER
            return self._carrier.over()
        back = replace(leg.call, returned=left.failed)
        return self._connect(self._legs.again(leg, back, self._now_s))

    def _announce(self, asked: Asked) -> str | None:
        """Return what whoever takes a transferred call hears first; its call is named in the
        address.
        """
        leg = self._legs.find(dict(parse_qsl(urlsplit(asked.url).query)).get("call", ""))
        if leg is None or not leg.announcement or not self.announces:
            return None
        return self._carrier.say(leg.announcement)

    def _connect(self, leg: Leg) -> str:
        return self._carrier.connect(leg.call, self._way(leg))

    def _way(self, leg: Leg) -> Way:
        socket = "ws" + self._url.removeprefix("http")
        here, call_id = f"{self._url}{self.path}", quote(leg.call.id, safe="")
        first = f"{here}/announce?call={call_id}" if leg.announcement else ""
        return Way(f"{socket}{self.path}/stream", leg.ticket, f"{here}/after", first)

    # --- the stream ---

    async def serve_stream(self, request: HTTPConnection, accept: Accept) -> None:
        """A stream from its upgrade to its end. Raises: Unproved: it was not let in."""
        try:
            self._carrier.prove_stream(self._asked(request, "ws"))
        except Unproved as error:
            self._refuse(error)
            raise
        await self._serve(await accept(), host_of(request), self._leg_of)

    def _leg_of(self, started: Started) -> Leg:
        """Raises: Unproved."""
        call_id = started.call if self._carrier.tells_call else None
        return self._legs.take(started.ticket, call_id, self._now_s)
