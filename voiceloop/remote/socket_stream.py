"""A stream over a WebSocket of its own, and how such connections are made.

Owns the connection: dialled with typed errors, one kept ready ahead where that spares a caller the
handshake, what is sent bounded, what comes parsed. What the messages mean is each vendor's file.
"""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, ClassVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.protocol import State

from voiceloop.errors import BackendError, BackendRefused, BackendTimeout, Overloaded
from voiceloop.event_stream import EventT, TaskStream
from voiceloop.log_form import keyless
from voiceloop.remote.circuit_breaker import CircuitBreaker

CONNECT_S = 3.0
MAX_MESSAGES = 500  # of audio 20 s that the service did not take
MAX_MESSAGE_BYTES = 4 << 20  # a second of sound in base64 is 64 KB, with its words' times


async def dial(url: str, headers: Mapping[str, str], what: str) -> ClientConnection:
    """A connection. what: is expected there, for errors.

    Raises: BackendError (nobody there), BackendTimeout, BackendRefused (key, address).
    """
    host = keyless(url)
    try:
        async with asyncio.timeout(CONNECT_S):
            return await connect(
                url,
                additional_headers=dict(headers),
                compression=None,  # sound in base64 hardly shrinks
                max_size=MAX_MESSAGE_BYTES,
            )
    except InvalidStatus as error:
        found = f"expected {what} at {host}, found: {error}"
        if error.response.status_code in (400, 401, 403, 404):
            raise BackendRefused(found) from error
        raise BackendError(found) from error
    except TimeoutError as error:
        wanted = f"expected {what} from {host} in {CONNECT_S:.0f} s, found none"
        raise BackendTimeout(wanted) from error
    except (OSError, InvalidHandshake, InvalidURI, ConnectionClosed) as error:
        raise BackendError(f"expected {what} at {host}, found: {keyless(str(error))}") from error


class Dialler:
    """Connections to one service; the next to the same address is dialled ahead.

    what: see `dial`. It stops asking a service that keeps failing (`CircuitBreaker`).
    """

    def __init__(
        self, headers: Mapping[str, str], what: str, clock: Callable[[], float] = monotonic
    ) -> None:
        self._headers, self._what = headers, what
        self._breaker = CircuitBreaker(clock)
        self._spare_url = ""
        self._spare: asyncio.Task[ClientConnection] | None = None

    @property
    def reachable(self) -> bool:
        """False while the service is left alone; after that the next call finds out."""
        return self._breaker.state != "open"

    async def take(self, url: str) -> ClientConnection:
        """One to this address, which nobody else uses. Raises: as `dial`."""
        spare, is_same = self._spare, self._spare_url == url
        self._spare = None
        connection = await _ready(spare) if is_same else None
        if not is_same:
            await _drop(spare)
        if connection is None:
            with self._breaker.request(keyless(url)):
                connection = await dial(url, self._headers, self._what)
        self.prepare(url)
        return connection

    def prepare(self, url: str) -> None:
        """Dial the next one ahead; whoever takes it finds out whether that failed."""
        if self._spare is None:
            self._spare_url = url
            self._spare = asyncio.create_task(dial(url, self._headers, self._what), name="dial")

    async def close(self) -> None:
        spare, self._spare = self._spare, None
        await _drop(spare)


async def _ready(spare: asyncio.Task[ClientConnection] | None) -> ClientConnection | None:
    """Return what was dialled ahead, unless that failed or the service has hung up since."""
    if spare is None:
        return None
    try:
        connection = await spare
    except BackendError:
        return None
    return connection if connection.state is State.OPEN else None


async def _drop(spare: asyncio.Task[ClientConnection] | None) -> None:
    if spare is None:
        return
    spare.cancel()
    outcome = (await asyncio.gather(spare, return_exceptions=True))[0]
    if not isinstance(outcome, BaseException):
        await outcome.close()


class SocketStream(TaskStream[EventT]):
    """One stream on one connection, which ends with it.

    service: its name or address, for errors. idle_s: after so long without a message `_idle` is
    sent; None: never.
    """

    _idle: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        stream_id: str,
        service: str,
        socket: ClientConnection,
        idle_s: float | None = None,
    ) -> None:
        super().__init__(stream_id)
        self._service = service
        self._socket = socket
        self._idle_s = idle_s
        self._is_over = False  # nothing more is expected of it
        self._outgoing: asyncio.Queue[Mapping[str, Any] | bytes] = asyncio.Queue(MAX_MESSAGES)
        self._keep(self._send(), f"{service} out")
        self._keep(self._receive(), f"{service} in")

    async def close(self) -> None:
        await super().close()
        await self._socket.close()

    def _post(self, message: Mapping[str, Any] | bytes) -> None:
        """Raises: Overloaded when the service takes nothing."""
        if not self.live:
            return
        try:
            self._outgoing.put_nowait(message)
        except asyncio.QueueFull:
            raise Overloaded(
                f"expected {self._service} to take what is sent, found {MAX_MESSAGES} messages "
                "waiting"
            ) from None

    async def _send(self) -> None:
        try:
            while True:
                message = await self._next()
                await self._socket.send(
                    message if isinstance(message, bytes) else json.dumps(message)
                )
        except ConnectionClosed as error:
            self._lose(error)

    async def _next(self) -> Mapping[str, Any] | bytes:
        try:
            async with asyncio.timeout(self._idle_s):
                return await self._outgoing.get()
        except TimeoutError:
            return self._idle

    async def _receive(self) -> None:
        try:
            while self.live and not self._is_over:
                await self._may_go_on.wait()
                self._observe(parse(await self._socket.recv(), self._service))
        except ConnectionClosed as error:
            self._lose(error)
        except BackendError as error:
            self.fail(error)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            self.fail(
                BackendError(f"expected an event of {self._service}, found {type(error).__name__}")
            )

    def _lose(self, error: ConnectionClosed) -> None:
        if not self._is_over:
            found = f"expected {self._service} to stay, found the connection lost: {error}"
            self.fail(BackendError(found))

    @abstractmethod
    def _observe(self, event: dict[str, Any]) -> None:
        """Take one event. Raises: BackendError when the service reports a failure."""


def parse(frame: str | bytes, service: str) -> dict[str, Any]:
    """Raises: BackendError when it is no JSON object."""
    try:
        event = json.loads(frame)
    except ValueError as error:
        raise BackendError(f"expected a JSON event of {service}, found {error}") from error
    if not isinstance(event, dict):
        raise BackendError(f"expected a JSON object of {service}, found {type(event).__name__}")
    return event
