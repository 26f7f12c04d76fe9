"""The TCP connections of a server: how many, from whom, and how fast each has to ask and to read.

Owns the count of open connections, whoever serves them, the deadline of a request's head, and the
least rates of a body and of an answer's reader: what comes before any check of ours, and so what
anybody can do without a key. The last tenth of the connections answers probes only, so that an
operator still sees a server that is full.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import struct
from asyncio import Transport
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, cast

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from voiceloop.errors import Overloaded
from voiceloop.http.gate import error_response
from voiceloop.strangers import LOG_EVERY_S, OnceAMinute, network_of

log = logging.getLogger(__name__)

HEAD_S = 5.0  # from a connection, or its last answer's next byte, to the end of a request's head
MAX_HEAD_BYTES = 65_536  # uvicorn's own
BODY_S = 30.0  # an upload of 25 MiB at 7 Mbit/s
SLOW_BODY_S = 5.0  # a body may be behind the least rate by so much, and a reader by the other
SLOW_READER_S = 10.0
LEAST_BYTES_PER_S = 8_000  # a telephone's sound
# Descriptors that are no connections: workers, model files, what asyncio accepts in one go.
RESERVED_DESCRIPTORS = 160
MOST_DESCRIPTORS = 65_536
LEAST_CONNECTIONS = 16
PROBES_SHARE = 0.1
MOST_RESTING = 256  # on which nothing is asked: with TLS 80 MB, and a caller asks at once
PROBES = frozenset(("/healthz", "/readyz", "/metrics"))
RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER for no time
FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: %s\r\nConnection: close\r\n\r\n"
BAD = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n"


STRANGERS_LOG = logging.getLogger("uvicorn.error.strangers")
STRANGERS_LOG.setLevel(logging.WARNING)
STRANGERS_LOG.addFilter(OnceAMinute())


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files as far as it may go; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return soft


@dataclass(eq=False, slots=True)
class Place:
    """One open connection's among all. cut: ends it at once, whoever has it at the moment.

    is_for_probes: it is one of the last, which answer probes only.
    """

    network: str
    cut: Callable[[], object]
    is_for_probes: bool
    _opened: Connections

    def rest(self) -> None:
        """Rest: nothing has been asked on it yet, or no more, so it makes room where that is
        needed.
        """
        self._opened.resting[self] = None

    def work(self) -> None:
        """Something is being answered."""
        self._opened.resting.pop(self, None)

    def leave(self) -> None:
        """Count it out; idempotent."""
        self._opened.release(self)


class Connections:
    """The open connections of one server. n_most in all, n_address from one address.

    Of those on which nothing is asked the longest at rest makes room for one more: whoever floods
    the server with silent ones loses them, and a caller, who asks at once, gets in.
    """

    def __init__(self, n_most: int, n_address: int, clock: Callable[[], float] = monotonic) -> None:
        self.n_most = n_most
        self._n_address = n_address
        self._clock = clock
        self._places: set[Place] = set()
        self._of_network: Counter[str] = Counter()
        self.resting: OrderedDict[Place, None] = OrderedDict()
        self._logged_at = -LOG_EVERY_S

    def __len__(self) -> int:
        return len(self._places)

    def admit(self, address: str, cut: Callable[[], object]) -> Place | None:
        """Count a new connection in; None where there are too many of them, here or from there."""
        network = network_of(address)
        n_asked = self.n_most * (1.0 - PROBES_SHARE)
        if network and self._of_network[network] >= self._n_address:
            self.log_refusal("too many are of one address")
            return None
        if self.resting and (len(self) + 1 > n_asked or len(self.resting) >= MOST_RESTING):
            oldest = next(iter(self.resting))
            oldest.leave()
            oldest.cut()
        if len(self) >= self.n_most:
            self.log_refusal("there are too many")
            return None
        place = Place(network, cut, len(self) + 1 > n_asked, self)
        self._places.add(place)
        self._of_network[network] += 1
        place.rest()
        return place

    def release(self, place: Place) -> None:
        self.resting.pop(place, None)
        if place not in self._places:
            return
        self._places.remove(place)
        self._of_network[place.network] -= 1
        if not self._of_network[place.network]:
            del self._of_network[place.network]

    def log_refusal(self, why: str) -> None:
        """Log at most one line a minute, however many refusals come."""
        now = self._clock()
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            n_open, most = len(self), self.n_most
            log.warning("connections are refused (%s): %d of at most %d open", why, n_open, most)


class _StrictHttp(h11.Connection):
    """Refuse a request with two lengths: a proxy may take the other one, and so what follows the
    body for another request than we do. Source: RFC 9112, 6.1 and 6.3."""

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("expected one length of the body, found two")
            if b"transfer-encoding" in names and event.http_version < b"1.1":
                raise h11.RemoteProtocolError("expected no chunks in HTTP/1.0, found some")
        return event


class BoundedHttp(H11Protocol):
    """One connection until it is upgraded or ends; the application finds it as
    ``scope["state"]["connection"]``."""

    def __init__(self, place: Place, **options: Any) -> None:
        super().__init__(**options)
        self.conn = _StrictHttp(
            h11.SERVER, self.config.h11_max_incomplete_event_size or MAX_HEAD_BYTES
        )
        self.app_state = {**self.app_state, "connection": self}
        self.logger = STRANGERS_LOG
        self.place = place
        self._deadline: asyncio.TimerHandle | None = None
        self._phase: str = ""  # what the deadline is for
        self._body_began_s = 0.0
        self._n_body_bytes = 0
        self._unread: asyncio.TimerHandle | None = None  # set while the client does not read

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.place.cut = transport.abort
        self.place.rest()
        if self.place.is_for_probes:
            self.app = cast(ASGI3Application, _ProbesOnly(cast(ASGIApp, self.app)))
            self.ws_protocol_class = None
        self._expect("head", HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect("", 0.0)
        self._hurry(None)
        self.place.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._n_body_bytes += len(data)
        self._watch_phase()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_phase()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._expect("", 0.0)
        self.place.work()  # until the call is over: it has deadlines of its own
        super().handle_websocket_upgrade(event)
        protocol = cast(WebSocketsSansIOProtocol, self.transport.get_protocol())
        if not protocol.handshake_initiated:  # a body, too many headers: it would wait for ever
            self.transport.write(BAD)
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None:  # what is being answered has no end that could be trusted
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        super().send_400_response(msg)

    def pause_writing(self) -> None:
        """The client reads slower than is written. Too slow a one would not take a close either."""
        super().pause_writing()
        n_bytes = self.transport.get_write_buffer_size()
        self._hurry(SLOW_READER_S + n_bytes / LEAST_BYTES_PER_S)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._hurry(None)

    def _hurry(self, seconds: float | None) -> None:
        if self._unread is not None:
            self._unread.cancel()
        self._unread = self.loop.call_later(seconds, self._reset) if seconds else None

    def _reset(self) -> None:
        """End it at once: what the kernel holds for a reader this slow, it would hold for hours."""
        line = self.transport.get_extra_info("socket")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        self.transport.abort()

    def _watch_phase(self) -> None:
        """Have a deadline for what is being waited for: a head, a body, or nothing.

        After an upgrade nothing: h11, which is told no more of the connection, stays in the state
        of one whose body is to come.
        """
        if self.transport.get_protocol() is not self:
            return
        if self.conn.their_state is h11.IDLE:
            self.place.rest()
        else:
            self.place.work()
        has_begun = bool(self.conn.trailing_data[0])
        if self.conn.their_state is h11.SEND_BODY:
            if self._phase != "body":
                self._body_began_s, self._n_body_bytes = self.loop.time(), 0
            self._expect("body", SLOW_BODY_S)
        elif self.conn.their_state is h11.IDLE and has_begun:
            self._expect("head", HEAD_S)
        else:
            self._expect("", 0.0)  # uvicorn's own timer ends a connection kept alive for nothing

    def _expect(self, phase: str, seconds: float) -> None:
        if phase == self._phase:
            return
        self._phase = phase
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self._give_up) if phase else None

    def _give_up(self) -> None:
        if self.transport.is_closing():
            return
        if self._phase == "body" and (left_s := self._left_for_body_s()) > 0.0:
            self._deadline = self.loop.call_later(left_s, self._give_up)
            return
        self.transport.write(LATE)
        self.transport.close()

    def _left_for_body_s(self) -> float:
        if self.flow.read_paused:
            return SLOW_BODY_S  # it is we who do not read
        most_s = min(BODY_S, SLOW_BODY_S + self._n_body_bytes / LEAST_BYTES_PER_S)
        return self._body_began_s + most_s - self.loop.time()


class _ProbesOnly:
    """The application, of which only the probes answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = self._app
        if scope["path"] not in PROBES:
            app = error_response(
                Overloaded("This server keeps its last connections for probes. Try again later.")
            )
        await app(scope, receive, send)
