"""The WebSocket under a session: uvicorn's protocol with our buffers, and the session's transport.

Owns back-pressure: small write buffers, so that pacing reaches the client and a client that stops
reading is noticed; and the end of such a client, who cannot be asked to close.
"""

from __future__ import annotations

import asyncio
import time
from asyncio.transports import BaseTransport
from collections.abc import Callable
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from voiceloop.admission.slots import Pace
from voiceloop.call.connection import Disconnected, Hello
from voiceloop.server.connections import Connections

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
CLOSE_GRACE_S = 1.0  # for the close frame to leave before the connection is cut


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """One connection; the application finds it as ``scope["state"]["connection"]``."""

    def __init__(self, open_connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._open_connections = open_connections
        self._controls = Pace(CONTROL_FRAMES_PER_S, CONTROL_FRAMES_AT_ONCE, self.loop.time)
        self._heard_at = self.loop.time()  # when something came last
        self._cutting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._cutting is not None:
            self._cutting.cancel()  # a transport that is gone cannot be aborted
        self._open_connections.release(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        for start in range(0, len(data), SLICE_BYTES):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + SLICE_BYTES])

    def keepalive_timeout(self) -> None:
        """A pong is missing: that ends the call of a client of whom nothing else comes either.

        Under overload we are late to read, and the pong stands behind a caller's sound.
        """
        if self.read_paused or self._heard_at > self.ping_sent_at:
            self.stop_keepalive()
            self.send_keepalive_ping()
        else:
            super().keepalive_timeout()

    def handle_ping(self) -> None:
        if self._controls.take() > 0.0:
            most = f"{CONTROL_FRAMES_PER_S:.0f} control frames a second"
            self.drop(1008, f"expected at most {most}, found more")
        else:
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

    async def run_asgi(self) -> None:
        self.scope["state"]["connection"] = self
        await super().run_asgi()

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # a refusal is an answer, not an error to be logged

    def drop(self, code: int, reason: str) -> None:
        """Close without waiting: the frame goes behind what is buffered, then the line is cut."""
        if self.transport.is_closing():
            return
        self.stop_keepalive()
        if not self.close_sent:
            self.conn.send_close(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self.transport.close()
        self._cutting = self.loop.call_later(CLOSE_GRACE_S, self.transport.abort)


class SocketTransport:
    """``connection.Transport`` over Starlette's WebSocket."""

    def __init__(
        self, websocket: WebSocket, hello: Hello, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.hello = hello
        self._frames = Pace(FRAMES_PER_S, 2 * FRAMES_PER_S, clock)
        self._bytes = Pace(BYTES_PER_S, 4 * BYTES_PER_S, clock)
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
            raise Disconnected
        if self._wait_s > 0.0:
            await asyncio.sleep(self._wait_s)
        message: Any = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            self._is_closed = True
            raise Disconnected
        text = message.get("text")
        frame: str | bytes = text if text is not None else message["bytes"]
        self._wait_s = max(self._frames.take(), self._bytes.take(len(frame)))
        return frame

    async def send(self, data: str) -> None:
        """Send one text frame; waits while the client does not read. Raises Disconnected."""
        if self._is_closed:
            raise Disconnected
        try:
            await self._websocket.send_text(data)
        except (WebSocketDisconnect, RuntimeError):  # RuntimeError: closed from our side
            self._is_closed = True
            raise Disconnected from None

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
            await self._websocket.close(code, reason)
        except (WebSocketDisconnect, RuntimeError):
            pass  # gone already
