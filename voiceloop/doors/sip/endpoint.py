"""The gateway's end of SIP: messages over UDP and TCP, each request answered once, or asked again.

Owns the sockets, what is repeated because UDP loses it, and how little a stranger's message may
cost. What a message means for a call is the leg's (`leg`); who gets one is the door's.

Source: RFC 3261, 17 and 18; RFC 3581 (answers go back to where a request came from).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import socket
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from aiosipua.headers import Via, parse_via, stringify_via
from aiosipua.message import SipMessage, SipRequest, SipResponse, missing_required_headers

from voiceloop.admission.bucket import Bucket
from voiceloop.errors import ConfigError

log = logging.getLogger(__name__)

Address = tuple[str, int]
T1_S, T2_S, GIVE_UP_S = 0.5, 4.0, 32.0  # RFC 3261, 17.1.1.1: first and longest pause, 64 times T1
MAX_MESSAGE_BYTES = 64 * 1024
MAX_ANSWERED = 4096  # requests whose repetition is known
MAX_CONNECTIONS = 128  # over TCP
MAX_STRANGERS = 32  # of these: who only connects keeps no exchange out
IDLE_S = 7200.0  # of such a connection: a call may say nothing for as long as it lasts
FIRST_MESSAGE_S = 10.0
# Messages of hosts that nobody named: each costs a look into it, some 0.2 ms, and one answer.
STRANGERS_PER_S, STRANGERS_AT_ONCE = 20.0, 40.0
# Of all others together; a call takes some ten, and an exchange that goes mad sends thousands.
MESSAGES_PER_S, MESSAGES_AT_ONCE = 1000.0, 2000.0
REASONS = {
    100: "Trying", 180: "Ringing", 200: "OK", 202: "Accepted", 400: "Bad Request",
    401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    415: "Unsupported Media Type", 420: "Bad Extension", 422: "Session Interval Too Small",
    480: "Temporarily Unavailable", 481: "Call/Transaction Does Not Exist", 486: "Busy Here",
    487: "Request Terminated", 488: "Not Acceptable Here", 489: "Bad Event", 491: "Request Pending",
    500: "Server Internal Error", 503: "Service Unavailable", 603: "Decline",
}  # fmt: skip
METHODS = "INVITE, ACK, BYE, CANCEL, OPTIONS, UPDATE, INFO, REFER, NOTIFY"

Key = tuple[str, str, str]
Headers = Sequence[tuple[str, str]]
T = TypeVar("T")


class NoAnswer(Exception):
    """A request was sent as often as may be, and nothing came back."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The two addresses between which messages of one far end travel. name: UDP or TCP."""

    name: str
    host: str
    port: int
    write: Callable[[bytes], None]

    @property
    def is_reliable(self) -> bool:
        return self.name == "TCP"


class Handler(Protocol):
    """An object that receives messages. Each may raise; that answers 500 and ends nothing else."""

    def is_known(self, host: str) -> bool: ...

    def handle(self, request: SipRequest, flow: Flow) -> None: ...

    def handle_stray(self, response: SipResponse, flow: Flow) -> None: ...


class Endpoint:
    """The SIP endpoint of one gateway. address: the host by which others reach us; "": the
    machine's own.
    """

    def __init__(self, address: str, handler: Handler) -> None:
        self._address = address
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        clock = self._loop.time
        self._strangers = Bucket(STRANGERS_AT_ONCE, STRANGERS_PER_S, clock)
        self._messages = Bucket(MESSAGES_AT_ONCE, MESSAGES_PER_S, clock)
        self._answered: OrderedDict[Key, bytes] = OrderedDict()
        self._repeated: dict[Key, asyncio.TimerHandle] = {}
        self._asked: dict[tuple[str, str], asyncio.Queue[SipResponse]] = {}
        self._udp: asyncio.DatagramTransport | None = None
        self._server: asyncio.Server | None = None
        self._connections: dict[Address, Flow] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tag_key = secrets.token_bytes(16)
        self.port = 0

    # --- sockets ---

    async def open(self, host: str, port: int) -> None:
        """Listen over UDP and TCP at one port; 0: any. Raises: ConfigError: it is taken."""
        try:
            self._udp, _ = await self._loop.create_datagram_endpoint(
                lambda: _Datagrams(self), local_addr=(host, port)
            )
            self.port = self._udp.get_extra_info("sockname")[1]
            self._server = await asyncio.start_server(self._serve, host, self.port)
        except OSError as error:
            self.close()
            found = f"{host}:{port} ({error})"
            raise ConfigError(f"sip.port: expected a free port, found {found}") from None
        log.info("calls by SIP come in at port %d, over UDP and TCP", self.port)

    def close(self) -> None:
        """Give the port back; idempotent."""
        for timer in self._repeated.values():
            timer.cancel()
        self._repeated.clear()
        if self._udp is not None:
            self._udp.close()
            self._udp = None
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._tasks:
            task.cancel()

    def udp(self, host: str, port: int) -> Flow:
        """The way to this address over UDP."""

        def write(data: bytes) -> None:
            if self._udp is not None:
                self._udp.sendto(data, (host, port))

        return Flow("UDP", host, port, write)

    async def reach(self, host: str, port: int, transport: str) -> Flow:
        """The way to a host. Raises: OSError: it has no address, or takes no connection."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        address: Address = (str(found[0][4][0]), port)
        if transport.upper() != "TCP":
            return self.udp(*address)
        if (flow := self._connections.get(address)) is not None:
            return flow
        async with asyncio.timeout(FIRST_MESSAGE_S):
            reader, writer = await asyncio.open_connection(*address)
        flow = self._connect(address, writer)
        self.spawn(self._read_all(reader, writer, flow))
        return flow

    def address_for(self, flow: Flow) -> str:
        """The host by which this far end reaches us."""
        return self._address or local_address(flow.host)

    def contact(self, flow: Flow) -> str:
        """The URI of ours for this far end."""
        at = f"sip:voiceloop@{bracketed(self.address_for(flow))}:{self.port}"
        return f"<{at};transport=tcp>" if flow.is_reliable else f"<{at}>"

    def via(self, flow: Flow) -> str:
        """The top of a request of ours."""
        branch = f"z9hG4bK{secrets.token_hex(8)}"
        host = bracketed(self.address_for(flow))
        return f"SIP/2.0/{flow.name} {host}:{self.port};branch={branch};rport"

    def _connect(self, address: Address, writer: asyncio.StreamWriter) -> Flow:
        flow = Flow("TCP", *address, writer.write)
        self._connections[address] = flow
        return flow

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do this beside the calls, until the port is given back."""
        task = asyncio.create_task(work)
        self._keep(task)
        return task

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = writer.get_extra_info("peername")[:2]
        is_stranger = not self._handler.is_known(address[0])
        is_full = len(self._connections) >= MAX_CONNECTIONS
        if is_full or (is_stranger and not self._has_room_for_strangers()):
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._keep(task)
        await self._read_all(reader, writer, self._connect(address, writer))

    def _has_room_for_strangers(self) -> bool:
        """Whether one more may connect, which costs as much as a message."""
        if self._strangers.is_empty:
            return False
        self._strangers.take()
        hosts = (host for host, _ in self._connections)
        return sum(not self._handler.is_known(host) for host in hosts) < MAX_STRANGERS

    async def _read_all(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: Flow
    ) -> None:
        wait_s = FIRST_MESSAGE_S
        try:
            while True:
                async with asyncio.timeout(wait_s):
                    data = await _read_message(reader)
                if data:
                    self.receive(data, flow)
                    is_known = self._handler.is_known(flow.host)
                    wait_s = IDLE_S if is_known else FIRST_MESSAGE_S
                await writer.drain()
        except (OSError, EOFError, ValueError, TimeoutError):
            pass
        finally:
            if self._connections.get((flow.host, flow.port)) is flow:
                del self._connections[flow.host, flow.port]
            writer.close()

    # --- what comes ---

    def receive(self, data: bytes, flow: Flow) -> None:
        """One message of anybody."""
        if not data.strip():
            return  # a keep-alive (RFC 5626, 3.5.1)
        bucket = self._messages if self._handler.is_known(flow.host) else self._strangers
        if bucket.is_empty:
            return
        bucket.take()
        try:
            message = SipMessage.parse(data)
            if isinstance(message, SipRequest):
                self._request(message, flow)
            else:
                self._response(message, flow)
        except ValueError as error:
            log.info("a message of %s is no SIP (%s)", flow.host, str(error)[:120])

    def _request(self, request: SipRequest, flow: Flow) -> None:
        if "via" in (missing := missing_required_headers(request)):
            return
        _stamp(request, flow)
        if missing or request.cseq is None or request.cseq.method != request.method:
            self.refuse(request, flow, 400)
            return
        key = key_of(request)
        if request.method == "ACK":
            self.stop_repeating((key[0], key[1], "INVITE"))
        elif (answered := self._answered.get(key)) is not None:
            if answered:
                flow.write(answered)
            return
        try:
            self._handler.handle(request, flow)
        except Exception:
            log.exception("a request by SIP could not be handled")
            if request.method != "ACK":
                self.refuse(request, flow, 500)

    def _response(self, response: SipResponse, flow: Flow) -> None:
        vias, cseq = response.via, response.cseq
        if len(vias) != 1 or cseq is None:
            return
        waiting = self._asked.get((vias[0].branch or "", cseq.method))
        if waiting is None:
            self._handler.handle_stray(response, flow)
        elif not waiting.full():
            waiting.put_nowait(response)

    # --- what goes ---

    def refuse(self, request: SipRequest, flow: Flow, status: int, headers: Headers = ()) -> None:
        """Answer and remember nothing; repeated, it is answered alike (RFC 3261, 8.2.7)."""
        if request.method != "ACK":
            tag = hashlib.blake2b("".join(key_of(request)).encode(), key=self._tag_key).hexdigest()
            flow.write(bytes(response_to(request, status, tag[:16], headers)))

    def expect(self, request: SipRequest) -> None:
        """Expect its answer: a repetition is absorbed until then."""
        self._remember(key_of(request), b"")

    def respond(self, request: SipRequest, flow: Flow, response: SipResponse) -> None:
        """Answer, and again each time that the request is repeated."""
        data = bytes(response)
        self._remember(key_of(request), data)
        flow.write(data)

    def respond_until_acknowledged(
        self, request: SipRequest, flow: Flow, response: SipResponse, give_up: Callable[[], None]
    ) -> Key:
        """The final answer to an INVITE: repeated until its ACK comes, or nobody sends one.

        Success is repeated over TCP as well: it may have passed a proxy that is not.
        """
        self.respond(request, flow, response)
        key, data = key_of(request), bytes(response)
        end_s = self._loop.time() + GIVE_UP_S

        def repeat(pause_s: float) -> None:
            del self._repeated[key]
            if self._loop.time() >= end_s:
                give_up()
                return
            flow.write(data)
            pause_s = min(2.0 * pause_s, T2_S)
            self._repeated[key] = self._loop.call_later(pause_s, repeat, pause_s)

        self._repeated[key] = self._loop.call_later(T1_S, repeat, T1_S)
        return key

    def stop_repeating(self, key: Key) -> None:
        if (timer := self._repeated.pop(key, None)) is not None:
            timer.cancel()

    async def ask(self, request: SipRequest, flow: Flow) -> SipResponse:
        """Send a request of ours; returns its final answer.

        An INVITE is asked for as long as the far end rings; the failure of one is acknowledged.
        Raises: NoAnswer.
        """
        key = (request.via[0].branch or "", request.method)
        waiting = self._asked[key] = asyncio.Queue(16)
        data, pause_s, left_s = bytes(request), T1_S, GIVE_UP_S
        is_invite, rings = request.method == "INVITE", False
        try:
            flow.write(data)
            while True:
                try:
                    async with asyncio.timeout(None if rings else pause_s):
                        response = await waiting.get()
                except TimeoutError:
                    if (left_s := left_s - pause_s) <= 0.0:
                        raise NoAnswer(request.method) from None
                    if not flow.is_reliable:
                        flow.write(data)
                    pause_s = 2.0 * pause_s if is_invite else min(2.0 * pause_s, T2_S)
                    continue
                if response.status_code >= 200:
                    if is_invite and response.status_code >= 300:
                        flow.write(bytes(follow_up(request, response, "ACK")))
                    return response
                rings = is_invite
        finally:
            del self._asked[key]

    def _remember(self, key: Key, data: bytes) -> None:
        self._answered[key] = data
        self._answered.move_to_end(key)
        if len(self._answered) > MAX_ANSWERED:
            self._answered.popitem(last=False)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._endpoint.receive(data, self._endpoint.udp(addr[0], addr[1]))


def response_to(
    request: SipRequest, status: int, tag: str = "", headers: Headers = ()
) -> SipResponse:
    """An answer with what each must hold. tag: ours, where the request has none."""
    response = SipResponse(status_code=status, reason_phrase=REASONS.get(status, "Unknown"))
    for name in ("Via", "From", "Call-ID", "CSeq", "Record-Route"):
        for value in request.headers.get(name):
            response.headers.append(name, value)
    to = request.headers.get_first("to") or ""
    has_tag = ";tag=" in to.lower().rpartition(">")[2]
    response.headers.append("To", to if has_tag or not tag or status == 100 else f"{to};tag={tag}")
    for name, value in headers:
        response.headers.append(name, value)
    return response


def follow_up(invite: SipRequest, response: SipResponse | None, method: str) -> SipRequest:
    """The CANCEL of an INVITE of ours, or the ACK of its failure: they share its branch."""
    request = SipRequest(method=method, uri=invite.uri)
    request.headers.append("Via", invite.headers.get("via")[0])
    for name in ("From", "Call-ID", "Max-Forwards", "Route"):
        for value in invite.headers.get(name):
            request.headers.append(name, value)
    to = (response or invite).headers.get_first("to") or ""
    request.headers.append("To", to)
    assert invite.cseq is not None
    request.headers.append("CSeq", f"{invite.cseq.seq} {method}")
    return request


def key_of(request: SipRequest) -> Key:
    """Return what a repetition of the request has in common with it (RFC 3261, 17.2.3)."""
    via = request.via[0]
    call = (
        f"{request.call_id} {request.headers.get_first('cseq')}" if not via.branch else via.branch
    )
    return call, f"{via.host}:{via.port}", request.method


def local_address(host: str) -> str:
    """The machine's own address on the way to a host; nothing is sent."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock, suppress(OSError):
        sock.connect((host, 9))
        return str(sock.getsockname()[0])
    return "127.0.0.1"


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _stamp(request: SipRequest, flow: Flow) -> None:
    """Note where the request came from, as its answer goes there (RFC 3581, 4)."""
    first, *others = request.headers.get("via")
    via: Via = parse_via(first)
    via.params["received"] = flow.host
    if "rport" in via.params:
        via.params["rport"] = str(flow.port)
    request.headers.remove("Via")
    for value in (stringify_via(via), *others):
        request.headers.append("Via", value)


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    """The next message of a stream; nothing: a keep-alive.

    Raises: EOFError, OSError, ValueError: it is longer than may be.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise ValueError("expected the head of a message, found too much") from None
    if not head.strip():
        return b""
    n_bytes = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() in (b"content-length", b"l"):
            n_bytes = int(value)
    if not 0 <= n_bytes <= MAX_MESSAGE_BYTES:
        raise ValueError(f"expected a body of at most {MAX_MESSAGE_BYTES} bytes")
    return head + await reader.readexactly(n_bytes)
