"""One UDP port for all calls of a gateway, and each call's share of it.

Owns the sockets, which call a datagram belongs to (the name in a connectivity check, then the
address that passed one), and our end of ICE, which is lite: the peer checks us, and we answer what
it has signed. We send nothing to an address before that, and ask no server about ourselves.

Source: RFC 8445, 2.5 and appendix A (lite); RFC 8489 (STUN); RFC 7983 (who is who on one port).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import string
from collections.abc import Callable

from aioice import stun
from aioice.ice import get_host_addresses

from voiceloop.admission.bucket import Bucket
from voiceloop.doors.webrtc.offer import Address
from voiceloop.errors import ConfigError

log = logging.getLogger(__name__)

ICE_CHARACTERS = string.ascii_letters + string.digits
RECEIVE_BUFFER_BYTES = 1 << 20  # 20 calls' packets of two seconds: a loop that hesitates loses none
MAX_WAITING = 256  # datagrams of one call: five seconds of sound
MAX_ADDRESSES = 8  # of one call; a phone that changes networks has three or four
# Of one call: fifty are sound, the rest events and checks; a burst of a large event is 250.
DATAGRAMS_PER_S, DATAGRAMS_AT_ONCE = 400.0, 1000.0
# Of all whose address has passed no check yet: each costs a look into it, some 15 us. A peer that
# connects sends twenty a second to each of our addresses.
CHECKS_PER_S, CHECKS_AT_ONCE = 1000.0, 2000.0
N_PORTS = 16  # tried from the one that is asked for on: gateways of one machine have one each
ANY = ("", "0.0.0.0", "::")


class IceLine:
    """One call's share of the port; under its DTLS it is the transport.

    is_checked: set once the peer has passed a check and named its path. heard_s: when it last did.
    """

    role = "controlled"  # a lite end always is

    def __init__(self, mux: Mux, clock: Callable[[], float]) -> None:
        self.ufrag, self.password = _random(8), _random(24)
        self.is_checked = asyncio.Event()
        self.heard_s = clock()
        self._mux = mux
        self._clock = clock
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_WAITING)
        self._rate = Bucket(DATAGRAMS_AT_ONCE, DATAGRAMS_PER_S, clock)
        self._path: tuple[asyncio.DatagramTransport, Address] | None = None
        self._is_closed = False

    def check(
        self, request: stun.Message, address: Address, transport: asyncio.DatagramTransport
    ) -> bool:
        """Answer a check of the peer; False where it is not signed by it, and gets no answer."""
        if self._is_closed or not request.check_message_integrity(self.password.encode()):
            return False
        response = stun.Message(
            stun.Method.BINDING, stun.Class.RESPONSE, transaction_id=request.transaction_id
        )
        response.attributes["XOR-MAPPED-ADDRESS"] = address
        response.add_message_integrity(self.password.encode())
        transport.sendto(bytes(response), address)
        self.heard_s = self._clock()
        if "USE-CANDIDATE" in request.attributes:
            self._path = transport, address
            self.is_checked.set()
        return True

    def receive(self, data: bytes) -> None:
        """A datagram that came from one of its addresses; more than it may send is dropped."""
        if not self._waiting.full() and self._rate.has(1.0):
            self._rate.take()
            self._waiting.put_nowait(data)

    @property
    def has_unread(self) -> bool:
        return not self._waiting.empty()

    def send(self, data: bytes) -> None:
        """Send a datagram to the peer, once it has named its path."""
        if self._path is not None and not self._is_closed:
            transport, address = self._path
            transport.sendto(data, address)

    def close(self) -> None:
        """Give the share back; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._mux.drop(self)
            if self._waiting.full():
                self._waiting.get_nowait()
            self._waiting.put_nowait(None)

    # What aiortc's DTLS asks of its transport.

    async def _recv(self) -> bytes:
        """The next datagram. Raises: ConnectionError: the line is closed."""
        if (data := await self._waiting.get()) is None:
            raise ConnectionError
        return data

    async def _send(self, data: bytes) -> None:
        self.send(data)


class Mux:
    """The port. clock: of the calls."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._strangers = Bucket(CHECKS_AT_ONCE, CHECKS_PER_S, clock)
        self._by_ufrag: dict[str, IceLine] = {}
        self._by_address: dict[Address, IceLine] = {}
        self._sockets: list[asyncio.DatagramTransport] = []

    @property
    def port(self) -> int:
        """0 before `open`."""
        return self._sockets[0].get_extra_info("sockname")[1] if self._sockets else 0

    async def open(self, host: str, port: int) -> None:
        """Bind the port, or one of the next that is free; 0: any. Nothing where it is bound.

        Raises: ConfigError: none of them is free.
        """
        if self._sockets:
            return
        socks = _bind(host, port)
        loop = asyncio.get_running_loop()
        for sock in socks:
            transport, _ = await loop.create_datagram_endpoint(lambda: _Socket(self), sock=sock)
            self._sockets.append(transport)
        log.info("calls over WebRTC come in at UDP port %d", self.port)

    def close(self) -> None:
        for transport in self._sockets:
            transport.close()
        self._sockets = []

    def line(self) -> IceLine:
        """A new call's share."""
        line = IceLine(self, self._clock)
        self._by_ufrag[line.ufrag] = line
        return line

    def candidates(self, address: str) -> list[Address]:
        """Return where peers reach the port: at this address, else at those that it is bound to.

        Raises: ConfigError: the machine does not say which it has.
        """
        found: list[Address] = []
        for transport in self._sockets:
            host, port = transport.get_extra_info("sockname")[:2]
            if address:
                return [(address, port)]
            is_v6 = ":" in host
            try:
                here = get_host_addresses(not is_v6, is_v6) if host in ANY else [host]
            except OSError as error:  # as under systemd without AF_NETLINK
                wanted = "webrtc.address: expected one where the machine tells none of its own"
                raise ConfigError(f"{wanted}, found none ({error})") from None
            found += [(one, port) for one in here]
        return found or [("127.0.0.1", self.port)]  # a machine without a network

    def drop(self, line: IceLine) -> None:
        """Forget a call's share."""
        self._by_ufrag.pop(line.ufrag, None)
        kept = {at: one for at, one in self._by_address.items() if one is not line}
        self._by_address = kept

    def receive(self, data: bytes, address: Address, transport: asyncio.DatagramTransport) -> None:
        """A datagram from anybody. A stranger costs a look into it, and gets no answer."""
        if data and data[0] < 4:  # RFC 7983: STUN
            self._check(data, address, transport)
        elif (line := self._by_address.get(address)) is not None:
            line.receive(data)

    def _check(self, data: bytes, address: Address, transport: asyncio.DatagramTransport) -> None:
        if address not in self._by_address:
            if self._strangers.is_empty:
                return
            self._strangers.take()
        try:
            request = stun.parse_message(data)
        except ValueError:
            return
        named = request.attributes.get("USERNAME", "").partition(":")[0]
        line = self._by_ufrag.get(named)
        is_check = request.message_class is stun.Class.REQUEST
        if line is None or not is_check or request.message_method is not stun.Method.BINDING:
            return
        if line.check(request, address, transport):
            self._place(line, address)

    def _place(self, line: IceLine, address: Address) -> None:
        """Assign everything that comes from there to this call from now on."""
        if self._by_address.get(address) is line:
            return
        known = [at for at, one in self._by_address.items() if one is line]
        for oldest in known[: max(0, len(known) + 1 - MAX_ADDRESSES)]:
            del self._by_address[oldest]
        self._by_address[address] = line


class _Socket(asyncio.DatagramProtocol):
    """One family's end of the port."""

    def __init__(self, mux: Mux) -> None:
        self._mux = mux
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._mux.receive(data, (addr[0], addr[1]), self._transport)


def _bind(host: str, port: int) -> list[socket.socket]:
    """A socket of each family that the host means, all at one port. Raises: ConfigError."""
    hosts = ["0.0.0.0", "::"] if host in ANY and _has_v6() else ["0.0.0.0" if host in ANY else host]
    error: OSError | None = None
    for number in range(port, port + (N_PORTS if port else 1)):
        socks: list[socket.socket] = []
        try:
            for one in hosts:
                at = socks[0].getsockname()[1] if socks else number
                socks.append(_socket(one, at))
            return socks
        except OSError as taken:
            error = taken
            for sock in socks:
                sock.close()
    raise ConfigError(f"webrtc.port: expected a free UDP port, found {host}:{port} ({error})")


def _socket(host: str, port: int) -> socket.socket:
    """Raises: OSError."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    sock = socket.socket(family, kind, proto)
    try:
        if family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        sock.bind(address)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _has_v6() -> bool:
    """Whether a socket of version 6 can be bound here."""
    try:
        _socket("::", 0).close()
    except OSError:
        return False
    return True


def _random(n_characters: int) -> str:
    return "".join(secrets.choice(ICE_CHARACTERS) for _ in range(n_characters))
