"""The gateway's end of a worker: Recognizer, LanguageModel and Voice over a Unix socket.

A ``WorkerClient`` stands for one worker across its restarts; a ``WorkerConnection`` is one process
of it. Streams are told apart by an id that is never used twice, so nothing of a closed stream can
reach its successor. Both directions are bounded for each stream alone: a stream whose events
nobody takes, or whose messages the worker does not read, fails with ``Overloaded`` and its
neighbours go on. When the process dies, its streams raise ``WorkerLost``; new ones go to the
restarted one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic
from typing import ClassVar, TypeVar, cast

from voiceloop.errors import (
    BackendError,
    BackendRefused,
    Overloaded,
    PromptTooLong,
    RequestUnserved,
    WorkerLost,
)
from voiceloop.event_stream import EventStream
from voiceloop.workers import messages
from voiceloop.workers.heartbeat import Hop, Pulse
from voiceloop.workers.messages import FrameError, FrameReader, FromWorker, ToWorker
from voiceloop.workers.waits import Waits

log = logging.getLogger(__name__)

# Bytes of one stream that wait for a worker to read: ten minutes of 16 kHz PCM16 and a history.
MAX_WAITING_BYTES = 24 * 1024 * 1024
SOCKET_BUFFER_BYTES = 1024 * 1024
# How long a new stream waits for a worker that is being restarted before the turn is given up.
OPEN_WAIT_S = 5.0

EventT = TypeVar("EventT")


class Settling:
    """Whether all workers have computed what they were asked for. Of a replay alone."""

    def __init__(self) -> None:
        self._n_asked = 0
        self._owed: dict[WorkerConnection, int] = {}  # of each the newest question

    @property
    def is_settled(self) -> bool:
        return not self._owed

    def ask(self, connection: WorkerConnection) -> None:
        """More has been asked of this one; once for all that goes out in one turn of the loop."""
        if self._owed.get(connection, 0) < 0:
            return
        self._owed[connection] = -1
        asyncio.get_running_loop().call_soon(self._send, connection)

    def _send(self, connection: WorkerConnection) -> None:
        self._n_asked += 1
        self._owed[connection] = self._n_asked
        connection.tell(messages.Settle(self._n_asked))

    def answer(self, connection: WorkerConnection, number: int) -> None:
        if self._owed.get(connection) == number:
            del self._owed[connection]

    def lose(self, connection: WorkerConnection) -> None:
        self._owed.pop(connection, None)


class WorkerConnection(asyncio.Protocol):
    """One worker process: demultiplexes its messages and bounds what waits for it.

    settling: told of all that is asked, where a replay wants to know what is not computed yet.
    """

    settling: ClassVar[Settling | None] = None

    def __init__(
        self,
        name: str,
        clock: Callable[[], float] = monotonic,
        *,
        is_here: bool = True,
        on_resumed: Callable[[messages.CallResumed], None] = lambda call: None,
    ) -> None:
        """on_resumed: told of a call that goes on at another gateway of this worker's."""
        self.name = name
        self._on_resumed = on_resumed
        # how far it said it has come
        self.startup: messages.Loading | messages.Ready | messages.LoadFailed | None = None
        self.fault: messages.Fault | None = None  # of the device, upon which the process ends
        self.is_draining = False  # about to end: what is new goes elsewhere
        self.pulse = Pulse()
        self.is_here = is_here  # on this machine, and no other gateway's
        self._hop = Hop(is_here)
        self.hop_ms = 0.0  # the last event's way from the step that made it to this process
        self.changed = asyncio.Event()  # set at each change of `startup`, and at the end
        self.lost = asyncio.Event()
        self.waits = Waits(clock)  # of callers; what is asked over HTTP is nobody's
        self._clock = clock
        self._frames = FrameReader()
        self._streams: dict[str, WorkerStream[object]] = {}
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._waiting: deque[tuple[WorkerStream[object], bytes]] = deque()

    @property
    def ready(self) -> messages.Ready | None:
        """Return what it said when all its roles were loaded; None before."""
        return self.startup if isinstance(self.startup, messages.Ready) else None

    @property
    def version(self) -> str:
        """The label it was started with."""
        return self.ready.version if self.ready is not None else ""

    @property
    def is_alive(self) -> bool:
        return self.ready is not None and not self.lost.is_set()

    @property
    def utilization(self) -> float:
        """Share of its time that the process computes, 0 to 1."""
        return self.pulse.utilization(self._clock())

    @property
    def silence_s(self) -> float:
        """Return the time since its last heartbeat."""
        return self.pulse.silence_s(self._clock())

    @property
    def n_streams(self) -> int:
        return len(self._streams)

    def register(self, stream: WorkerStream[object]) -> None:
        self._streams[stream.stream_id] = stream

    def forget(self, stream: WorkerStream[object]) -> None:
        self._streams.pop(stream.stream_id, None)
        self.waits.forget(stream.stream_id)

    def send(self, stream: WorkerStream[object], message: ToWorker) -> None:
        """Pass one message on at once; one that the worker would not take fails its stream.

        Raises: Overloaded when this stream has too many waiting.
        """
        if self._transport is None or self.lost.is_set():
            return  # the stream has failed already, or is about to: events() says so
        try:
            frame = messages.encode(message)
        except FrameError as error:
            stream.refuse(BackendRefused(f"worker {self.name}: {error}"))
            return
        if not stream.is_batch:
            self.waits.ask(stream.stream_id, message)
        if self.settling is not None:
            self.settling.ask(self)
        if not self._is_paused:
            self._transport.write(frame)
            return
        if stream.n_waiting_bytes + len(frame) > MAX_WAITING_BYTES:
            raise Overloaded(
                f"expected at most {MAX_WAITING_BYTES} bytes waiting for the worker {self.name}, "
                f"found {stream.n_waiting_bytes + len(frame)}"
            )
        stream.n_waiting_bytes += len(frame)
        self._waiting.append((stream, frame))

    def tell(self, message: ToWorker) -> None:
        """Pass on what belongs to no stream, when the process has just said Ready."""
        try:
            frame = messages.encode(message)
        except FrameError as error:
            log.warning("worker %s is not told: %s", self.name, error)
            return
        if self._transport is not None and not self.lost.is_set():
            self._transport.write(frame)

    def close(self) -> None:
        """Close the socket: the worker ends by itself."""
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=SOCKET_BUFFER_BYTES)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        while self._waiting and not self._is_paused and self._transport is not None:
            stream, frame = self._waiting.popleft()
            stream.n_waiting_bytes -= len(frame)
            self._transport.write(frame)

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._receive(messages.decode_from_worker(body))
        except FrameError as error:
            log.error("worker %s: %s", self.name, error)
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()
        if self.settling is not None:
            self.settling.lose(self)
        self.changed.set()
        self._waiting.clear()
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            self.waits.forget(stream.stream_id)
            stream.fail(WorkerLost(f"the worker {self.name} died; it is being restarted"))

    def _receive(self, message: FromWorker) -> None:
        match message:
            case messages.StreamEvent():
                stream = self._streams.get(message.stream_id)
                if stream is not None:
                    self.hop_ms = self._hop.measure_ms(message.sent_at, self._clock())
                    self.waits.answer(message.stream_id, message.event)
                    stream.deliver(message.event)
            case messages.StreamFailed():
                stream = self._streams.pop(message.stream_id, None)
                if stream is not None:
                    self.waits.forget(message.stream_id)
                    stream.fail(_failure(message))
            case messages.CallResumed():
                self._on_resumed(message)
            case messages.Draining():
                self.is_draining = True
                self.changed.set()
            case messages.Fault():
                self.fault = message
            case messages.Settled(number=number):
                if self.settling is not None:
                    self.settling.answer(self, number)
            case messages.Heartbeat():
                self.pulse.observe(message, self._clock())
            case messages.Loading() | messages.Ready() | messages.LoadFailed():
                self.startup = message
                if isinstance(message, messages.Ready):
                    self.pulse.begin(self._clock())
                self.changed.set()


def answers_of(connections: Iterable[WorkerConnection | None]) -> list[tuple[str, float]]:
    """Return what callers waited for since this was last called, with the seconds each took."""
    return [
        (ask.value, seconds)
        for connection in connections
        if connection is not None
        for ask, seconds in connection.waits.take_answers()
    ]


def _failure(failed: messages.StreamFailed) -> BackendError:
    if failed.is_request:
        return (PromptTooLong if failed.is_too_long else RequestUnserved)(failed.message)
    kind = BackendError if failed.retryable else BackendRefused
    return kind(failed.message)


class WorkerStream(EventStream[EventT]):
    """One stream of one worker process. is_batch: nobody waits for it in a call."""

    def __init__(
        self, connection: WorkerConnection, stream_id: str, *, is_batch: bool = False
    ) -> None:
        super().__init__(stream_id)
        self.is_batch = is_batch
        self.n_waiting_bytes = 0
        self._connection = connection
        self._as_stream = cast("WorkerStream[object]", self)
        connection.register(self._as_stream)

    def send(self, message: ToWorker) -> None:
        """Raises: Overloaded."""
        if self.live:
            self._connection.send(self._as_stream, message)

    def refuse(self, error: BackendRefused) -> None:
        """End a stream that asked for what its worker would not take."""
        if self.live:
            self._end()
            self.fail(error)

    def _pause(self, is_paused: bool) -> None:
        if self.is_batch:  # the sound of a call is taken at the pace at which it is heard
            self.send(messages.Pause(self.stream_id, is_paused))

    def _end(self) -> None:
        """Have the worker forget this stream. Closing is never refused for lack of room."""
        self._connection.forget(self._as_stream)
        self.n_waiting_bytes = 0
        self._connection.send(self._as_stream, messages.Close(self.stream_id))


class NewestFirst:
    """The line of those who wait for a process, the newest first.

    The newest call comes last and has the least to be heard again.
    """

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)

    def let_go(self) -> None:
        for waiter in reversed(self._waiters):
            if not waiter.done():
                waiter.set_result(None)


class WorkerClient:
    """One worker across its restarts; the supervisor says which process is the current one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.connection: WorkerConnection | None = None
        self._first: ToWorker | None = None  # what each process is told when it is ready
        self._waiting = NewestFirst()
        # Of a worker with several gateways each draws its own: no two name one stream alike.
        self._gateway = secrets.token_hex(4)
        self._serial = itertools.count()

    @property
    def is_alive(self) -> bool:
        return self.connection is not None and self.connection.is_alive

    def attach(self, connection: WorkerConnection) -> None:
        """New streams go to this process, which has said Ready."""
        self.connection = connection
        if self._first is not None:
            connection.tell(self._first)
        self._waiting.let_go()

    def tell_each(self, message: ToWorker) -> None:
        """Tell the process there is, and every one that takes its place, before any stream."""
        self._first = message
        if self.connection is not None and self.connection.is_alive:
            self.connection.tell(message)

    @property
    def utilization(self) -> float:
        """Share of its time that the process computes, 0 to 1; 0 while there is none."""
        return self.connection.utilization if self.connection is not None else 0.0

    @property
    def ready(self) -> messages.Ready | None:
        """Return what the process said when it was loaded; None while there is none."""
        return self.connection.ready if self.connection is not None else None

    def detach(self) -> None:
        """The process is gone: new streams wait for the next one."""
        self.connection = None

    async def alive(self) -> None:
        """Return once a process is attached; the streams of the newest calls go first."""
        if self.connection is None:
            await self._waiting.wait()

    def wire_id(self, stream_id: str) -> str:
        return f"{stream_id}/{self._gateway}.{next(self._serial)}"

    async def current(self, stream_id: str = "", prompt: bytes = b"") -> WorkerConnection:
        """The process for a new stream, waited for. Raises: WorkerLost when it is not ready."""
        if not self.is_alive:
            try:
                async with asyncio.timeout(OPEN_WAIT_S):
                    await self.alive()
            except TimeoutError:
                pass
        if self.connection is None or not self.connection.is_alive:
            raise WorkerLost(f"the worker {self.name} is not ready; it is being restarted")
        return self.connection
