"""The WebSocket under a session: uvicorn's protocol with our buffers, and the session's transport.

Owns back-pressure: small write buffers, so that pacing reaches the client and a client that stops
reading is noticed; and the end of such a client, who cannot be asked to close.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio.transports import BaseTransport
from contextlib import suppress
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from voiceloop.admission.bucket import Bucket
from voiceloop.admission.places import Wait
from voiceloop.call.connection import HUNG_UP, LINE_BROKE, Disconnected, Hello

log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES = 32 * 1024  # half a second of base64 PCM16 at 24 kHz
# Ten callers' worth of 20 ms frames; a file sent for manual commit goes at 40 times real time.
FRAMES_PER_S = 500.0
BYTES_PER_S = 2.5e6
# What is no message of ours costs the parser as much as one: pings and pongs of a client, and the
# frames of one message. A browser sends neither; other clients ping once in 20 s.
CONTROL_FRAMES_PER_S = 10.0
CONTROL_FRAMES_AT_ONCE = 40.0
MAX_FRAGMENTS = 64  # 2 MiB in pieces of 32 KiB
SLICE_BYTES = 8 * 1024  # parsed between two looks at those: 1,400 empty pings, 8 ms
CLOSE_GRACE_S = 3.0  # for the close frame to be read before the connection is cut
# Of silence before our half is shut: asyncio, which stock clients use, is not to meet the end of
# the stream while it writes. Its transport then ends twice, and `abort` raises (CPython 3.11).
WRITTEN_OUT_S = 0.2
MAX_REASON_BYTES = 123  # of a close frame, by RFC 6455, 5.5: 125 less two for the code


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """One connection; the application finds it as ``scope["state"]["connection"]``.

    ending: how it ended, once it has: a close code and words for the log.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._controls = Bucket(CONTROL_FRAMES_AT_ONCE, CONTROL_FRAMES_PER_S, self.loop.time)
        self._heard_at = self.loop.time()  # when something came last
        self._is_leaving = False  # the close frame is out, and nothing is read any more
        self.lost = asyncio.Event()  # the other end has gone
        self.ending: tuple[int, str] | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
        self.app_state["connection"].place.leave()
        self._end(LINE_BROKE, f"the line broke: {exc or 'it ended without a close frame'}")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        for start in range(0, len(data), SLICE_BYTES):
            if self._is_leaving or self.transport.is_closing():
                return
            try:
                super().data_received(data[start : start + SLICE_BYTES])
            except Exception:  # asyncio would cut the line without a close frame
                if not self.handshake_complete:
                    raise
                log.exception("a client's frame could not be read")
                self.drop(1011, "internal error")

    def keepalive_timeout(self) -> None:
        """End the call of a client that sends neither a pong nor anything else.

        Under overload we are late to read, and the pong stands behind a caller's sound.
        """
        if self.read_paused or self._heard_at > self.ping_sent_at:
            self.stop_keepalive()
            self.send_keepalive_ping()
        else:
            self.drop(1011, "keepalive ping timeout")

    def handle_ping(self) -> None:
        if self._controls.take() > 0.0:
            most = f"{CONTROL_FRAMES_PER_S:.0f} control frames a second"
            self.drop(1008, f"expected at most {most}, found more")
        elif not self._is_leaving:
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        if self._controls.take() > 0.0:
            self.drop(1008, "expected a pong to each ping, found more")
        else:
            super().handle_pong(event)

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MAX_FRAGMENTS:
            self.drop(1008, f"expected a message of at most {MAX_FRAGMENTS} frames, found more")
        else:
            super().handle_cont(event)

    def handle_close(self, event: Frame) -> None:
        if not self.close_sent and self.conn.close_rcvd is not None:
            self._end(HUNG_UP, f"the client hung up with {self.conn.close_rcvd.code}")
        super().handle_close(event)

    def handle_parser_exception(self) -> None:
        """Close a connection that sent no frame of the protocol, or too large a one; its close
        frame is ready.
        """
        assert self.conn.close_sent is not None
        self._leave(self.conn.close_sent.code, self.conn.close_sent.reason)

    async def run_asgi(self) -> None:
        self.scope["state"]["connection"] = self
        await super().run_asgi()

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # a refusal is an answer, not an error to be logged

    def shutdown(self) -> None:
        """The server ends; uvicorn's own would not wait for what the client still sends."""
        if self.handshake_complete:
            self.drop(1012, "the server restarts")
        else:
            super().shutdown()

    def drop(self, code: int, reason: str) -> None:
        """Close without waiting: the frame goes behind what is buffered, then the line is cut.

        Where a close frame is out already, its answer is not waited for any more.
        """
        if self._is_leaving or self.transport.is_closing():
            return
        if not self.close_sent:
            self.conn.send_close(code, short(reason))
        self._leave(code, reason)

    def _leave(self, code: int, reason: str) -> None:
        """Write the close frame and no more, read nothing more, and cut the line after a while.

        Bytes still come in meanwhile and are thrown away: a kernel that closes a connection over
        unread ones resets it, and a client that writes at that moment never sees the close frame.
        """
        if self._is_leaving or self.transport.is_closing():
            return
        self._is_leaving = self.close_sent = True
        self._end(code, reason)
        self.stop_keepalive()
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.transport.can_write_eof():  # of TLS it cannot: the client closes, or we do
            self._heard_at = self.loop.time()
            self._shut_once_silent()
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_later(CLOSE_GRACE_S, self.transport.abort)

    def _shut_once_silent(self) -> None:
        """Shut our half once the client has written what it had to write."""
        if self.transport.is_closing():
            return
        left_s = self._heard_at + WRITTEN_OUT_S - self.loop.time()
        if left_s > 0.0:
            self.loop.call_later(left_s, self._shut_once_silent)
        else:
            self.transport.write_eof()

    def _end(self, code: int, how: str) -> None:
        if self.ending is None:
            self.ending = code, how
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": how})


def waiting_at(websocket: WebSocket) -> Wait:
    """Waits so many seconds, or until the client leaves, where the server tells of that."""
    connection: BoundedWebSocket | None = websocket.scope["state"].get("connection")
    if connection is None:
        return asyncio.sleep

    async def wait(seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await connection.lost.wait()

    return wait


def short(reason: str) -> str:
    """As much of a reason as a close frame holds."""
    return reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")


class SocketTransport:
    """``connection.Transport`` over Starlette's WebSocket."""

    line = None
    phone = None

    def __init__(self, websocket: WebSocket, hello: Hello) -> None:
        self.hello = hello
        clock = asyncio.get_running_loop().time
        self._frames = Bucket(2 * FRAMES_PER_S, FRAMES_PER_S, clock)
        self._bytes = Bucket(4 * BYTES_PER_S, BYTES_PER_S, clock)
        self._websocket = websocket
        state = websocket.scope.get("state", {})
        self._connection: BoundedWebSocket | None = state.get("connection")
        self._is_closed = False
        self._wait_s = 0.0

    async def receive(self) -> str | bytes:
        """Wait for the next frame. Raises Disconnected.

        A client that sends too fast is read slowly: TCP tells it, and nothing is lost.
        """
        if self._is_closed:
            raise self._disconnected()
        if self._wait_s > 0.0:
            await asyncio.sleep(self._wait_s)
        message: Any = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            self._is_closed = True
            raise self._disconnected()
        text = message.get("text")
        frame: str | bytes = text if text is not None else message["bytes"]
        self._wait_s = max(self._frames.take(), self._bytes.take(len(frame)))
        return frame

    async def send(self, data: str | bytes) -> None:
        """Send one frame; waits while the client does not read. Raises Disconnected."""
        if self._is_closed:
            raise self._disconnected()
        try:
            if isinstance(data, bytes):
                await self._websocket.send_bytes(data)
            else:
                await self._websocket.send_text(data)
        except (WebSocketDisconnect, RuntimeError):  # RuntimeError: closed from our side
            self._is_closed = True
            raise self._disconnected() from None

    def _disconnected(self) -> Disconnected:
        ending = self._connection.ending if self._connection is not None else None
        return Disconnected(*ending) if ending is not None else Disconnected()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection; idempotent, never raises Disconnected, never waits for the peer."""
        if self._is_closed:
            return
        self._is_closed = True
        connection = self._connection
        if connection is not None and not connection.writable.is_set():
            connection.drop(code, reason)  # the peer does not read: it will not take a close either
            return
        try:
            await self._websocket.close(code, short(reason))
        except (WebSocketDisconnect, RuntimeError):
            pass  # gone already
