"""Connections to a listening socket: counted as accepted, silent until they speak, then served.

Owns a connection until its first byte has come and TLS is agreed. Nobody has shown a key by then,
so each costs as little as can be: until its first byte a socket and a timer, and only then buffers.
Few handshakes go on at once; those of one network wait for each other.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from voiceloop.admission.places import retry_after
from voiceloop.server.connections import FULL, HEAD_S, LATE, Connections, Place

log = logging.getLogger(__name__)

ACCEPTED_AT_ONCE = 64  # between two looks at everything else
NO_DESCRIPTOR_S = 0.1  # until the next try where the system has none left
TLS_RECORD = b"\x16"  # of a handshake; source: RFC 8446, 5.1
# asyncio's buffers are 316 KB for each connection with TLS.
HANDSHAKES = 64
HANDSHAKES_OF_NETWORK = 8
# For a client to answer our close of TLS; asyncio's own is 30 s.
TLS_CLOSE_S = 3.0


class Listener:
    """The listener of one socket, which listens already and is closed with this.

    serve: makes the protocol of one connection. tls: None where nothing is encrypted.
    """

    def __init__(
        self,
        sock: socket.socket,
        opened: Connections,
        serve: Callable[[Place], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._sock = sock
        self._opened = opened
        self._serve = serve
        self._tls = tls
        seconds = {"ssl_handshake_timeout": HEAD_S, "ssl_shutdown_timeout": TLS_CLOSE_S}
        self._secured: dict[str, Any] = {} if tls is None else {"ssl": tls, **seconds}
        self._loop = asyncio.get_running_loop()
        self._silent: dict[_Silent, Place] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._agreeing: OrderedDict[Place, None] = OrderedDict()
        self._turns = WeakValueDictionary[str, asyncio.Semaphore]()
        self._again: asyncio.TimerHandle | None = None
        self.start()

    def start(self) -> None:
        self._loop.add_reader(self._sock, self._accept)

    def let_go(self) -> None:
        """Take no connection any more; those there are go on.

        The kernel resets what waits in its queue as this closes: that is taken in first.
        """
        if self._sock.fileno() < 0:
            return
        while self._accept():
            pass
        self._loop.remove_reader(self._sock)
        if self._again is not None:
            self._again.cancel()
        self._sock.close()

    def close(self) -> None:
        """Take no connection any more, and end those on which nothing was asked yet."""
        self.let_go()
        for one in list(self._silent):
            one.cut()
        for task in self._starting:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._starting, return_exceptions=True)

    def _accept(self) -> bool:
        """Whether more may wait."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return False
            except OSError as error:  # no descriptor, or no memory for one
                self._opened.log_refusal(error.strerror or "")
                self._loop.remove_reader(self._sock)
                self._again = self._loop.call_later(NO_DESCRIPTOR_S, self.start)
                return False
            connection.setblocking(False)
            silent = _Silent(connection, self._loop, self._hear, b"" if self._tls else LATE)
            place = self._opened.admit(peer[0] if peer else "", silent.cut)
            if place is None:
                silent.refuse(b"" if self._tls else FULL % retry_after().encode())
                continue
            self._silent[silent] = place
            silent.wait()
        return True

    def _hear(self, silent: _Silent, has_come: bool) -> None:
        """Hear that it is no longer silent, or is over."""
        place = self._silent.pop(silent)
        if has_come and self._tls is not None:
            with suppress(OSError):
                has_come = silent.connection.recv(1, socket.MSG_PEEK) == TLS_RECORD
        if not has_come:
            place.leave()
            silent.connection.close()
            return
        task = self._loop.create_task(self._start(silent.connection, place), name="connection")
        place.cut = task.cancel
        self._starting.add(task)
        task.add_done_callback(partial(self._started, silent.connection, place))

    async def _start(self, connection: socket.socket, place: Place) -> None:
        async with asyncio.timeout(HEAD_S), self._turn(place):
            kind = connection.family, connection.type, connection.proto
            given = socket.socket(*kind, fileno=connection.detach())  # asyncio closes this one
            await self._loop.connect_accepted_socket(
                lambda: self._serve(place), given, **self._secured
            )

    def _started(self, connection: socket.socket, place: Place, task: asyncio.Task[None]) -> None:
        self._starting.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            return
        connection.close()
        place.leave()
        # Else it left, was too slow, or spoke no TLS of ours.
        if not isinstance(error, OSError | asyncio.CancelledError):
            log.error("a connection failed", exc_info=error)

    @asynccontextmanager
    async def _turn(self, place: Place) -> AsyncIterator[None]:
        """Wait for the turn of one handshake. Of all that go on the oldest makes room for one
        more.
        """
        if self._tls is None:
            yield
            return
        # A proxy on this machine, whose network is "", stands for many.
        n_most = HANDSHAKES_OF_NETWORK if place.network else sys.maxsize
        async with self._turns.setdefault(place.network, asyncio.Semaphore(n_most)):
            if len(self._agreeing) >= HANDSHAKES:
                self._agreeing.popitem(last=False)[0].cut()
            self._agreeing[place] = None
            place.work()
            try:
                yield
            finally:
                self._agreeing.pop(place, None)


class _Silent:
    """An accepted socket from which nothing has come.

    hear: called once, with whether something has come; late: said to it where nothing comes.
    """

    def __init__(
        self,
        connection: socket.socket,
        loop: asyncio.AbstractEventLoop,
        hear: Callable[[_Silent, bool], None],
        late: bytes,
    ) -> None:
        self.connection = connection
        self._loop = loop
        self._hear = hear
        self._late = late

    def wait(self) -> None:
        self._loop.add_reader(self.connection, self._end, True)
        self._deadline = self._loop.call_later(HEAD_S, self._give_up)

    def cut(self) -> None:
        """End it at once."""
        self._end(False)

    def refuse(self, why: bytes) -> None:
        """End one that has no place."""
        with suppress(OSError):
            self.connection.send(why)
        self.connection.close()

    def _give_up(self) -> None:
        with suppress(OSError):
            self.connection.send(self._late)
        self._end(False)

    def _end(self, has_come: bool) -> None:
        self._loop.remove_reader(self.connection)
        self._deadline.cancel()
        self._hear(self, has_come)
