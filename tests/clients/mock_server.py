"""A tiny Realtime server: an energy detector that answers every pause with a tone.

It lets the clients be tested without any of the house's own server: greeting, one reply a turn with
a transcript, paced audio, barge-in, and a timeline of marks. Behind a real socket (``mock_server``)
or on a virtual clock behind a pair of queues (``memory_call``).
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import numpy as np
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from clients.connection import RealtimeConnection

RATE_HZ = 24_000
CHUNK_MS = 40
SPEECH_DBFS = -45.0


def tone(ms: float) -> bytes:
    n = int(RATE_HZ * ms / 1000)
    return (8000 * np.sin(2 * np.pi * 300 * np.arange(n) / RATE_HZ)).astype("<i2").tobytes()


class MemorySocket:
    """One end of a connection that is two queues; what one end sends the other receives."""

    def __init__(self, incoming: asyncio.Queue[str | None], outgoing: asyncio.Queue[str | None]):
        self._incoming = incoming
        self._outgoing = outgoing
        self._closed = False

    async def send(self, data: str) -> None:
        if self._closed:
            raise ConnectionClosedOK(None, None)
        self._outgoing.put_nowait(data)

    async def recv(self) -> str:
        data = None if self._closed else await self._incoming.get()
        if data is None:
            self._closed = True
            raise ConnectionClosedOK(None, None)
        return data

    async def __aiter__(self) -> AsyncIterator[str]:
        while True:
            try:
                yield await self.recv()
            except ConnectionClosedOK:
                return

    async def close(self) -> None:
        self._closed = True
        self._outgoing.put_nowait(None)
        self._incoming.put_nowait(None)


class MockSession:
    """One connection. ``silence_ms`` ends a turn; a reply is a tone of ``reply_ms``."""

    def __init__(
        self,
        socket: ServerConnection | MemorySocket,
        silence_ms: float,
        reply_ms: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.socket = socket
        self.silence_ms = silence_ms
        self.reply_ms = reply_ms
        self.clock = clock
        self.heard_ms = 0.0
        self.quiet_ms = 0.0
        self.speaking = False
        self.n_replies = 0
        self.reply: asyncio.Task[None] | None = None
        self.marks: dict[str, float] = {}
        self.client_events: list[dict[str, Any]] = []

    async def send(self, type_: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": type_, "event_id": "event_1", **fields}))

    async def run(self) -> None:
        try:
            await self.send("session.created", session={"id": "sess_1"})
            async for frame in self.socket:
                event = json.loads(frame)
                if event["type"] == "input_audio_buffer.append":
                    await self.hear(base64.b64decode(event["audio"]))
                    continue
                self.client_events.append(event)
                if event["type"] == "session.update":
                    await self.send("session.updated", session=event["session"])
                    self.reply = asyncio.create_task(self.answer("Hello, Juniper Cafe."))
        except ConnectionClosed:
            pass
        finally:
            if self.reply is not None:
                self.reply.cancel()
                await asyncio.wait([self.reply])

    async def hear(self, audio: bytes) -> None:
        samples = np.frombuffer(audio, dtype="<i2").astype(np.float64)
        level = 10 * np.log10(max(float(np.mean(np.square(samples / 32768))), 1e-20))
        frame_ms = 1000 * len(samples) / RATE_HZ
        self.heard_ms += frame_ms
        if level > SPEECH_DBFS:
            self.quiet_ms = 0.0
            if not self.speaking:
                self.speaking = True
                await self.start_speech()
        elif self.speaking:
            self.quiet_ms += frame_ms
            if self.quiet_ms == frame_ms:
                self.marks = {"speech_end_detected": self.clock()}
            if self.quiet_ms >= self.silence_ms:
                self.speaking = False
                await self.end_speech()

    async def start_speech(self) -> None:
        if self.reply is not None:
            self.reply.cancel()
        await self.send(
            "input_audio_buffer.speech_started", item_id="u", audio_start_ms=int(self.heard_ms)
        )

    async def end_speech(self) -> None:
        self.marks["endpoint_decision"] = self.clock()
        await self.send(
            "conversation.item.input_audio_transcription.completed", item_id="u", transcript="words"
        )
        self.reply = asyncio.create_task(self.answer("A latte and a muffin, six, 5550142."))

    async def answer(self, text: str) -> None:
        self.n_replies += 1
        response_id, item_id = f"resp_{self.n_replies}", f"item_{self.n_replies}"
        ids = {"response_id": response_id, "item_id": item_id}
        status = "cancelled"
        await self.send("response.created", response={"id": response_id})
        try:
            await self.send("response.output_audio_transcript.delta", delta=text, **ids)
            self.marks["first_byte_on_wire"] = self.clock()
            for _ in range(int(self.reply_ms / CHUNK_MS)):
                audio = base64.b64encode(tone(CHUNK_MS)).decode()
                await self.send("response.output_audio.delta", delta=audio, **ids)
                await asyncio.sleep(CHUNK_MS / 1000)
            status = "completed"
        finally:
            timeline = {"marks": self.marks, "turn_id": response_id}
            with suppress(ConnectionClosed):
                await self.send("voiceloop.timeline", timeline=timeline)
                await self.send("response.done", response={"id": response_id, "status": status})


@asynccontextmanager
async def mock_server(
    silence_ms: float = 200.0, reply_ms: float = 400.0
) -> AsyncIterator[tuple[str, list[MockSession]]]:
    """Serve on a free loopback port; yields the URL and the sessions it has seen."""
    sessions: list[MockSession] = []

    async def handle(socket: ServerConnection) -> None:
        session = MockSession(socket, silence_ms, reply_ms)
        sessions.append(session)
        await session.run()

    async with serve(handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"ws://127.0.0.1:{port}/v1/realtime", sessions


@asynccontextmanager
async def memory_call(
    clock: Callable[[], float], silence_ms: float = 200.0, reply_ms: float = 400.0
) -> AsyncIterator[tuple[RealtimeConnection, MockSession]]:
    """A client's connection to a mock session, without a socket and on the test's clock."""
    up: asyncio.Queue[str | None] = asyncio.Queue()
    down: asyncio.Queue[str | None] = asyncio.Queue()
    session = MockSession(MemorySocket(up, down), silence_ms, reply_ms, clock)
    serving = asyncio.create_task(session.run())
    socket = cast(ClientConnection, MemorySocket(down, up))
    try:
        yield RealtimeConnection(socket, "memory", clock), session
    finally:
        await socket.close()
        await serving
