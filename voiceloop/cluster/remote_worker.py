"""A worker of another process or machine, as a gateway has it: joined, watched, joined anew.

Owns the connection's life. How healthy the worker's process is, its own host judges; here only the
line is watched: one that is closed or dead loses its streams, which say `WorkerLost`, and is
redialled for ever with a growing pause.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import cast

from voiceloop.backends import RoleName
from voiceloop.child import restart_pause_s
from voiceloop.cluster import handshake
from voiceloop.cluster.address import Address
from voiceloop.cluster.door import set_line_options
from voiceloop.cluster.handshake import Challenge, HandshakeError, Welcome
from voiceloop.cluster.tls import channel_of
from voiceloop.operation import WorkerLoad
from voiceloop.strangers import network_of
from voiceloop.workers.client import WorkerClient, WorkerConnection
from voiceloop.workers.messages import LENGTH_BYTES, CallResumed, Ready
from voiceloop.workers.status import WorkerState, load_of

log = logging.getLogger(__name__)

# A worker that is loading does not open its door yet: it is dialled again.
JOIN_S = 6.0
WATCH_EVERY_S = 1.0
# A worker's host kills what hangs after 2 s and what spins after 15 s, and the line breaks with it.
# Where nothing at all is heard for longer, host and line are gone together.
SILENT_S = 20.0
REDIAL_S = 0.1  # at least, before a worker that was lost is dialled again
MOST_FAILURES = 3  # counted: 2 s are the longest pause, for a dial costs less than a start
UNANSWERED = f"expected an answer within {JOIN_S:g} s, found none: it loads its models, or hangs"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The proof that a gateway shows to workers.

    keys: as `handshake.stretched` makes each; shown one after the other. tls: of a line to another
    machine.
    """

    keys: tuple[bytes, ...]
    gateway: str
    tls: ssl.SSLContext


class RemoteWorker:
    """One address across the restarts of what listens there. ``run`` lasts until cancelled."""

    def __init__(
        self,
        address: Address,
        roles: frozenset[RoleName],
        credentials: Credentials,
        clock: Callable[[], float] = monotonic,
        *,
        objection: Callable[[RemoteWorker, Ready], str | None] = lambda worker, ready: None,
        on_resumed: Callable[[CallResumed], None] = lambda call: None,
        silent_s: float = SILENT_S,
    ) -> None:
        """objection: why a worker that says this of itself is not joined. on_resumed: as of
        `WorkerConnection`. silent_s: after which its line is given up.
        """
        self.address = address
        self.roles = roles
        self.client = WorkerClient(str(address))
        self.state: WorkerState = "starting"
        self.trouble = ""  # why it is not ready, for a person to read
        self.n_lost = 0
        self.is_leaving = False  # named no more: it ends with its last stream
        self._credentials = credentials
        self._n_refused = 0  # keys, one after the other
        self._objection = objection
        self._on_resumed = on_resumed
        self._silent_s = silent_s
        self._clock = clock

    async def run(self) -> None:
        """Keep the worker joined, until it is to be left and nothing is open there."""
        n_failures = 0
        while not self.is_leaving:
            try:
                connection = await self._join()
            except (
                OSError,
                ValueError,
                HandshakeError,
            ) as error:  # a name that is none: ValueError
                self._tell_trouble(str(error) or UNANSWERED)
                if isinstance(error, TimeoutError):  # it was waited for already
                    n_failures = 0
            else:
                n_failures, self.trouble, self.state = 0, "", "ready"
                log.info("worker %s is joined", self.client.name)
                self.client.attach(connection)
                try:
                    await self._watch(connection)
                finally:
                    connection.close()
                    self.client.detach()
                if not self.is_leaving:
                    self.n_lost += 1
                    self._tell_trouble("the connection has ended")
            if self.is_leaving:
                return
            self.state = "restarting"
            await asyncio.sleep(restart_pause_s(n_failures, REDIAL_S))
            n_failures = min(n_failures + 1, MOST_FAILURES)

    def load(self) -> WorkerLoad:
        """How busy it is, and how far behind, for this gateway's calls."""
        restarts = {"lost": self.n_lost} if self.n_lost else {}
        client = self.client
        return load_of(
            client.name, sorted(self.roles), self.state, restarts, client.connection, self.trouble
        )

    async def _join(self) -> WorkerConnection:
        """Dial, agree, hear what it holds. Raises: OSError, TimeoutError, HandshakeError."""
        connection = WorkerConnection(
            self.client.name, self._clock, is_here=False, on_resumed=self._on_resumed
        )
        keys = self._credentials.keys
        key = keys[self._n_refused % len(keys)]
        joining = _Joining(key, self._credentials.gateway, connection)
        async with asyncio.timeout(JOIN_S):
            line = await _dialled(self.address)
            is_plain = not network_of(line.getpeername()[0])
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: joining,
                sock=line,
                ssl=None if is_plain else self._credentials.tls,
                server_hostname=None if is_plain else self.address.host,
            )
            try:
                await self._agree(joining)
                while connection.ready is None and not connection.lost.is_set():
                    connection.changed.clear()
                    await connection.changed.wait()
                self._check(connection.ready)
            except BaseException:
                transport.abort()
                raise
        return connection

    async def _agree(self, joining: _Joining) -> None:
        """Raises: HandshakeError; the next dial shows the next key then."""
        try:
            await joining.agreed
        except HandshakeError:
            self._n_refused += 1
            raise

    def _check(self, ready: Ready | None) -> None:
        if ready is None:
            raise HandshakeError("expected the worker to say what it holds, found it gone")
        held = {role.role for role in ready.roles}
        if not self.roles <= held:
            raise HandshakeError(
                f"expected the roles {', '.join(sorted(self.roles))}, found {', '.join(held)}"
            )
        if (objection := self._objection(self, ready)) is not None:
            raise HandshakeError(objection)

    async def _watch(self, connection: WorkerConnection) -> None:
        """Return once the line is closed, has been dead for too long, or is needed no more."""
        while not connection.lost.is_set():
            if self.is_leaving and not connection.n_streams:
                return
            try:
                async with asyncio.timeout(WATCH_EVERY_S):
                    await connection.lost.wait()
            except TimeoutError:
                if connection.pulse.silence_s(self._clock()) > self._silent_s:
                    told = "worker %s has said nothing for %.0f s"
                    log.error(told, self.client.name, self._silent_s)
                    return

    def _tell_trouble(self, trouble: str) -> None:
        if trouble != self.trouble:  # once, and not at each attempt
            log.warning("worker %s: %s", self.client.name, trouble)
        self.trouble = trouble


async def _dialled(address: Address) -> socket.socket:
    """A connection to the first place of that name that answers. Raises: OSError."""
    loop = asyncio.get_running_loop()
    refused = OSError(f"expected a place of the name {address.host}, found none")
    places = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, place in places:
        line = socket.socket(family, kind, protocol)
        line.setblocking(False)
        try:
            await loop.sock_connect(line, place)
        except OSError as error:
            line.close()
            refused = error
        except BaseException:
            line.close()
            raise
        else:
            return line
    raise refused


class _Joining(asyncio.Protocol):
    """The handshake at the gateway's end; afterwards the line is the connection's."""

    def __init__(self, key: bytes, gateway: str, connection: WorkerConnection) -> None:
        self.agreed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._key, self._gateway = key, gateway
        self._connection = connection
        self._nonce = handshake.new_nonce()
        self._challenge: Challenge | None = None
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        line = transport.get_extra_info("socket")
        if isinstance(line, socket.socket) or hasattr(line, "setsockopt"):
            set_line_options(line)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.agreed.done():
            self.agreed.set_exception(HandshakeError("expected a worker, found it hangs up"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while not self.agreed.done() and (body := self._word()) is not None:
                self._hear(body)
        except HandshakeError as error:
            self.agreed.set_exception(error)

    def _word(self) -> bytes | None:
        if len(self._buffer) < LENGTH_BYTES:
            return None
        end = LENGTH_BYTES + handshake.length(bytes(self._buffer[:LENGTH_BYTES]))
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[LENGTH_BYTES:end])
        del self._buffer[:end]
        return body

    def _hear(self, body: bytes) -> None:
        assert self._transport is not None
        key, tls = self._key, self._transport.get_extra_info("ssl_object")
        channel = channel_of(tls.getpeercert(binary_form=True) if tls is not None else None)
        if self._challenge is None:
            self._challenge = handshake.decode(body, Challenge)
            said = handshake.join(key, self._challenge, self._nonce, self._gateway, channel)
            self._transport.write(handshake.encode(said))
            return
        welcome = handshake.decode(body, Welcome)
        handshake.check_welcome(key, self._challenge, self._nonce, welcome, channel)
        self._transport.set_protocol(self._connection)
        self._connection.connection_made(self._transport)
        self.agreed.set_result(None)
        if self._buffer:  # what it said right after its welcome
            self._connection.data_received(bytes(self._buffer))
