"""The worker's end of one gateway's connection: messages in order, streams, calls, unsent bytes.

Nothing here blocks. A gateway that does not read what its streams make loses its streams, and after
a while its connection. The other gateways of the worker do not notice.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from voiceloop.workers.messages import (
    MAX_MESSAGE_BYTES,
    FrameError,
    FrameReader,
    FromWorker,
    StreamEvent,
    StreamFailed,
    ToWorker,
    decode_to_worker,
    encode,
)
from voiceloop.workers.waits import call_of

log = logging.getLogger(__name__)

READ_BYTES = 256 * 1024
# Messages taken in within a step, and their bytes; beyond that they stay on the socket. The longest
# message there is fits.
MAX_READ_AHEAD = 1024
MAX_READ_AHEAD_BYTES = MAX_MESSAGE_BYTES
# What may wait for a gateway that is held up: the speech of 64 calls (48 kB/s at 24 kHz) for five
# seconds, which is longer than any stall that a call survives.
MAX_WAITING_BYTES = 16 * 1024 * 1024
# The gateway always reads; when it has not for this long it is gone or stuck, and so are its calls.
UNREAD_S = 10.0
SENT_AT_ONCE = 256 * 1024
# A call without a stream is one still for so long: hardly anybody is silent or speaks for longer.
CALL_S = 30.0

WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Peer:
    """The worker's end of one connection. is_parent: of the process that started the worker."""

    def __init__(
        self,
        connection: socket.socket,
        name: str,
        clock: Callable[[], float],
        *,
        is_parent: bool = False,
    ) -> None:
        connection.setblocking(False)
        self.name = name
        self.is_parent = is_parent
        self.inbox = deque[ToWorker]()  # arrived, not yet passed on
        self._sizes = deque[int]()  # of each in the inbox, in bytes
        self._n_inbox_bytes = 0
        self.streams = set[str]()
        self._calls_left: dict[str, float] = {}  # of calls, when one's last stream had ended
        self.is_gone = False
        self._connection = connection
        self._clock = clock
        self._frames = FrameReader()
        self._waiting = bytearray()
        self._unread_since: float | None = None

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def awaits(self) -> int:
        """Return what to poll its socket for."""
        is_full = len(self.inbox) >= MAX_READ_AHEAD or self._n_inbox_bytes >= MAX_READ_AHEAD_BYTES
        return (0 if is_full else select.POLLIN) | (select.POLLOUT if self._waiting else 0)

    @property
    def is_overfull(self) -> bool:
        return len(self._waiting) > MAX_WAITING_BYTES

    def open(self, stream_id: str) -> None:
        self.streams.add(stream_id)

    def forget(self, stream_id: str) -> None:
        """The stream is over; what was read of its call may be needed again."""
        self.streams.discard(stream_id)
        named, _, _ = stream_id.partition("/")  # behind that, which gateway asks
        if "." in named:  # else no call's
            self._calls_left[call_of(stream_id)] = self._clock()

    def n_calls(self) -> int:
        """Calls that have a stream, or had one within `CALL_S`; a request over HTTP is one while it
        lasts."""
        since_s = self._clock() - CALL_S
        self._calls_left = {call: at_s for call, at_s in self._calls_left.items() if at_s > since_s}
        return len({call_of(stream_id) for stream_id in self.streams} | self._calls_left.keys())

    def read(self) -> None:
        """Take in what has arrived; a connection that has ended is gone.

        So is one whose bytes are no protocol: behind an impossible length nothing is told apart.
        """
        n_left = READ_BYTES
        try:
            while n_left > 0:  # TLS gives 16 kB at a time
                data = self._connection.recv(n_left)
                n_left -= len(data) or n_left
                self.is_gone = not data
                for body in self._frames.feed(data):
                    self._take_in(body)
        except WOULD_BLOCK:
            return
        except (OSError, FrameError) as error:
            self._lose(error)

    def _take_in(self, body: bytes) -> None:
        try:
            self.inbox.append(decode_to_worker(body))
        except FrameError as error:
            log.error("a message of %d bytes is passed over: %s", len(body), error)
            return
        self._sizes.append(len(body))
        self._n_inbox_bytes += len(body)

    def take(self) -> ToWorker:
        """Return what has arrived first. Raises: IndexError where nothing has."""
        self._n_inbox_bytes -= self._sizes.popleft()
        return self.inbox.popleft()

    def send(self, messages: Iterable[FromWorker]) -> list[str]:
        """Write what the socket takes, and keep the rest for `flush`.

        Returns the streams that are over, for an event that the gateway would not take.
        """
        refused: list[str] = []
        if self.is_gone:
            return refused
        for message in messages:
            try:
                self._waiting += encode(message)
            except FrameError as error:
                if not isinstance(message, StreamEvent):
                    raise
                log.error("an event of the stream %s is not sent: %s", message.stream_id, error)
                self._waiting += encode(StreamFailed(message.stream_id, str(error), False))
                refused.append(message.stream_id)
        self.flush()
        return refused

    def flush(self) -> None:
        """Write on; a gateway that has read nothing for `UNREAD_S` is gone."""
        n_sent = 0
        try:
            while n_sent < len(self._waiting):
                part = memoryview(self._waiting)[n_sent : n_sent + SENT_AT_ONCE]
                with part:
                    n_sent += self._connection.send(part)
        except WOULD_BLOCK:
            pass
        except OSError as error:
            self._lose(error)
            return
        del self._waiting[:n_sent]
        now = self._clock()
        if n_sent or not self._waiting:
            self._unread_since = now if self._waiting else None
        elif self._unread_since is None:
            self._unread_since = now
        elif now - self._unread_since > UNREAD_S:
            self._lose(TimeoutError(f"it has read nothing for {UNREAD_S:.0f} s"))

    def close(self) -> None:
        self.is_gone = True
        self._connection.close()

    def _lose(self, error: Exception) -> None:
        self.is_gone = True
        # To hang up is how a connection ends: with something unread, it is reset.
        level = logging.INFO if isinstance(error, ConnectionError) else logging.WARNING
        log.log(level, "the connection of %s has ended: %s", self.name, error)


class Door(Protocol):
    """The place where gateways of other processes and machines come in."""

    def fileno(self) -> int:
        """Return what becomes readable when somebody has come in."""

    def take(self) -> Sequence[Peer]:
        """Return who has come in since, proven to be a gateway of ours. It does not wait."""
