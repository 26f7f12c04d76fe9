"""Where gateways come in to a worker: TCP, TLS if it has a certificate, then proof of the key.

Owns the listening socket's threads: a handshake waits for the network, and the worker's loop does
not wait for anything. What has come in is handed over; a pipe wakes the loop for it.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
from collections import Counter, deque
from collections.abc import Callable
from time import monotonic

from voiceloop.cluster import handshake
from voiceloop.cluster.handshake import Challenge, HandshakeError, Join, Refused, Word
from voiceloop.workers.messages import LENGTH_BYTES
from voiceloop.workers.peer import Peer

log = logging.getLogger(__name__)

HANDSHAKE_S = 5.0  # a gateway on the other side of the world needs one
# Gateways that may wait to be taken in at once; one that redials for ever would take them all.
MOST_ENTERING = 16
MOST_OF_ONE = 4  # of one address, so that one that says nothing leaves room for the others
UNACKNOWLEDGED_MS = 15_000  # the kernel's own bound on a peer that is gone


class NetworkDoor:
    """A listening socket's gateways. Close it to end its thread."""

    def __init__(
        self,
        listening: socket.socket,
        key: bytes,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._listening = listening
        self._key = key
        self._tls = tls
        self._clock = clock
        self._counting = threading.Lock()
        self._entering = Counter[str]()  # by address: in their handshake, or not yet taken
        self._inside = deque[tuple[str, Peer]]()  # agreed with, not yet taken
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        listening.setblocking(True)
        threading.Thread(target=self._accept, name="door", daemon=True).start()

    def fileno(self) -> int:
        return self._reading

    def take(self) -> list[Peer]:
        """Who has come in since."""
        try:
            os.read(self._reading, 4096)
        except BlockingIOError:
            return []
        taken = []
        while self._inside:
            host, peer = self._inside.popleft()
            taken.append(peer)
            self._count_out(host)
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
            host = address[0]
            with self._counting:
                is_full = sum(self._entering.values()) >= MOST_ENTERING
                if is_full or self._entering[host] >= MOST_OF_ONE:
                    log.warning("%s is not let in: too many are at the door", host)
                    connection.close()
                    continue
                self._entering[host] += 1
            name = f"{host}:{address[1]}"
            try:
                threading.Thread(
                    target=self._enter, args=(connection, host, name), name=name, daemon=True
                ).start()
            except RuntimeError as error:  # no thread is to be had now
                log.error("%s is not let in: %s", name, error)
                connection.close()
                self._count_out(host)

    def _count_out(self, host: str) -> None:
        with self._counting:
            self._entering[host] -= 1
            if not self._entering[host]:
                del self._entering[host]

    def _enter(self, connection: socket.socket, host: str, address: str) -> None:
        """One handshake, from the first byte to the handing over."""
        try:
            connection.settimeout(HANDSHAKE_S)
            set_line_options(connection)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            name = self._agree(connection)
        except (OSError, HandshakeError) as error:
            log.warning("%s is not let in: %s", address, error)
            connection.close()
            self._count_out(host)
            return
        log.info("gateway %s comes in from %s", name, address)
        self._inside.append((host, Peer(connection, f"gateway {name}", self._clock)))
        os.write(self._writing, b".")

    def _agree(self, connection: socket.socket) -> str:
        """Returns what the gateway calls itself. Raises: OSError, HandshakeError."""
        deadline = self._clock() + HANDSHAKE_S
        nonce = handshake.new_nonce()
        _say(connection, Challenge(handshake.PROTOCOL, nonce))
        try:
            joining = handshake.decode(self._hear(connection, deadline), Join)
            welcome = handshake.admit(self._key, nonce, joining)
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
    """Of a connection between a gateway and a worker: nothing waits, and a dead line is noticed."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
