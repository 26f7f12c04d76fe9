"""The way of gateways in to a worker: TCP, TLS unless both are on one machine, proof of the key.

Owns the listening socket's threads: a handshake waits for the network, and the worker's loop does
not wait for anything. What has come in is handed over; a pipe wakes the loop for it.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from voiceloop.cluster import handshake
from voiceloop.cluster.handshake import Challenge, HandshakeError, Join, Refused, Word
from voiceloop.cluster.tls import Seal, channel_of
from voiceloop.strangers import OnceAMinute, network_of
from voiceloop.workers.messages import LENGTH_BYTES
from voiceloop.workers.peer import Peer

log = logging.getLogger(__name__)
STRANGERS_LOG = logging.getLogger(f"{__name__}.strangers")
STRANGERS_LOG.addFilter(OnceAMinute())

HANDSHAKE_S = 5.0  # a gateway on the other side of the world needs one
# Handshakes at once. Where there are more the oldest is given up: one of ours takes milliseconds.
MOST_ENTERING = 16
MOST_OF_ONE = 4  # of one network, so that who says nothing leaves room for the others
UNACKNOWLEDGED_MS = 15_000  # the kernel's own bound on a peer that is gone


@dataclass(eq=False, slots=True)
class _Entering:
    """A handshake that goes on. line: the connection, with TLS once that is begun."""

    line: socket.socket
    network: str


class NetworkDoor:
    """A listening socket's gateways. Close it to end its thread.

    keys: a gateway has one of them, as `handshake.stretched` makes it. seal: of a line from another
    machine; None where the socket listens at loopback alone.
    """

    def __init__(
        self,
        listening: socket.socket,
        keys: Sequence[bytes],
        seal: Seal | None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._listening = listening
        self._keys = tuple(keys)
        self._seal = seal
        self._clock = clock
        self._counting = threading.Lock()
        self._entering = deque[_Entering]()  # the oldest first
        self._inside = deque[Peer]()  # agreed with, not yet taken
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        listening.setblocking(True)
        threading.Thread(target=self._accept, name="door", daemon=True).start()

    def fileno(self) -> int:
        return self._reading

    def take(self) -> list[Peer]:
        """Return who has come in since."""
        try:
            os.read(self._reading, 4096)
        except BlockingIOError:
            return []
        taken = []
        while self._inside:
            taken.append(self._inside.popleft())
        return taken

    def close(self) -> None:
        """Stop taking connections."""
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listening.accept()
            except OSError as error:
                if self._listening.fileno() < 0:
                    return
                log.error("expected to take a connection, found: %s", error)
                threading.Event().wait(1.0)  # no descriptor is to be had now; asking spins
                continue
            network = network_of(address[0]) or address[0]  # each of this machine's own for itself
            entering = _Entering(connection, network)
            if self._count_in(entering):
                self._begin(entering, f"{address[0]}:{address[1]}")
            else:
                STRANGERS_LOG.warning("%s is not let in: too many of its network are", address[0])
                connection.close()

    def _count_in(self, entering: _Entering) -> bool:
        """False where too many handshakes of its network go on."""
        with self._counting:
            if sum(one.network == entering.network for one in self._entering) >= MOST_OF_ONE:
                return False
            if len(self._entering) >= MOST_ENTERING:
                with suppress(OSError):
                    self._entering.popleft().line.shutdown(socket.SHUT_RDWR)  # its thread ends
            self._entering.append(entering)
            return True

    def _count_out(self, entering: _Entering) -> bool:
        """False where it was given up meanwhile."""
        with self._counting:
            if entering not in self._entering:
                return False
            self._entering.remove(entering)
            return True

    def _begin(self, entering: _Entering, name: str) -> None:
        try:
            threading.Thread(
                target=self._enter, args=(entering, name), name=name, daemon=True
            ).start()
        except RuntimeError as error:  # no thread is to be had now
            log.error("%s is not let in: %s", name, error)
            self._count_out(entering)
            entering.line.close()

    def _enter(self, entering: _Entering, address: str) -> None:
        """One handshake, from the first byte to the handing over."""
        try:
            entering.line.settimeout(HANDSHAKE_S)
            set_line_options(entering.line)
            channel = self._shake(entering)
            name = self._agree(entering.line, channel)
        except (OSError, HandshakeError) as error:
            if isinstance(error, ConnectionError):  # as a gateway that dialled while we loaded
                STRANGERS_LOG.info("%s hung up before it was let in", address)
            else:
                STRANGERS_LOG.warning("%s is not let in: %s", address, error)
            self._count_out(entering)
            entering.line.close()
            return
        if not self._count_out(entering):
            entering.line.close()
            return
        log.info("gateway %s comes in from %s", name, address)
        self._inside.append(Peer(entering.line, f"gateway {name}", self._clock))
        os.write(self._writing, b".")

    def _shake(self, entering: _Entering) -> bytes:
        """Agree on TLS where the line leaves this machine. Returns its channel. Raises: OSError."""
        seal = self._seal
        if seal is None or not network_of(entering.line.getpeername()[0]):
            return channel_of(None)
        sealed = seal.context.wrap_socket(
            entering.line, server_side=True, do_handshake_on_connect=False
        )
        with self._counting:
            entering.line = sealed
        sealed.do_handshake()  # within the line's timeout, all of it
        return seal.channel

    def _agree(self, connection: socket.socket, channel: bytes) -> str:
        """Returns what the gateway calls itself. Raises: OSError, HandshakeError."""
        deadline = self._clock() + HANDSHAKE_S
        nonce = handshake.new_nonce()
        _say(connection, Challenge(handshake.PROTOCOL, nonce))
        try:
            joining = handshake.decode(self._hear(connection, deadline), Join)
            welcome = handshake.admit(self._keys, nonce, joining, channel)
        except HandshakeError as error:
            _say(connection, Refused(str(error)))
            raise
        _say(connection, welcome)
        return joining.gateway[: handshake.MAX_NAME]

    def _hear(self, connection: socket.socket, deadline: float) -> bytes:
        """One word's bytes, all of them in time: one byte a second is no gateway."""
        head = self._read(connection, LENGTH_BYTES, deadline)
        return self._read(connection, handshake.length(head), deadline)

    def _read(self, connection: socket.socket, n_bytes: int, deadline: float) -> bytes:
        found = b""
        while len(found) < n_bytes:
            left_s = deadline - self._clock()
            if left_s <= 0:
                raise TimeoutError("expected a handshake in time, found none")
            connection.settimeout(left_s)
            data = connection.recv(n_bytes - len(found))
            if not data:
                raise HandshakeError("expected a handshake, found the connection closed")
            found += data
        return found


def _say(connection: socket.socket, word: Word) -> None:
    connection.sendall(handshake.encode(word))


def set_line_options(connection: socket.socket) -> None:
    """Set a connection between a gateway and a worker up: nothing waits, and a dead line is
    noticed.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
