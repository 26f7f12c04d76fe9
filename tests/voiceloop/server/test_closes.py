"""How a call ends: by a close frame that its client can read, or by the client's own line."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from asyncio.transports import BaseTransport
from collections.abc import Callable
from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.fakes import instant_backends
from tests.voiceloop.server.test_app import Running, event, running
from tests.voiceloop.server.test_connections import EMPTY_PING, UPGRADE
from voiceloop.call.connection import Transport
from voiceloop.capabilities import Capabilities
from voiceloop.server import app
from voiceloop.server.app import Gateway
from voiceloop.server.websocket import MAX_REASON_BYTES, SLICE_BYTES, BoundedWebSocket, short

pytestmark = pytest.mark.virtual_time

UNREAD = bytes(24 << 20)  # more than the kernel holds for a connection over the loopback


def frame_head(n_bytes: int) -> bytes:
    """Of a text frame of a client's, masked with zeros."""
    return b"\x81\xff" + n_bytes.to_bytes(8, "big") + b"\0\0\0\0"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[BoundedWebSocket]:
    """The server's ends of the connections of this test."""
    made: list[BoundedWebSocket] = []
    make = BoundedWebSocket.connection_made

    def remember(self: BoundedWebSocket, transport: BaseTransport) -> None:
        make(self, transport)
        made.append(self)

    monkeypatch.setattr(BoundedWebSocket, "connection_made", remember)
    return made


async def dial(server: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(UPGRADE)
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer


async def code_read(reader: asyncio.StreamReader) -> int:
    """The code of the close frame that comes last.

    Raises:
        ConnectionResetError: the server has reset the line. A client that writes at that moment is
            told so before it has read, and never sees the frame.
    """
    async with asyncio.timeout(20):
        _, _, close = (await reader.read()).rpartition(b"\x88")
    return int.from_bytes(close[1:3], "big")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (2000 * EMPTY_PING, 1008),
        (frame_head(16 << 20), 1009),
        (b"\xff\xff", 1002),
    ],
    ids=["a flood", "too large a frame", "no frame"],
)
async def test_a_client_that_is_closed_as_it_writes_can_read_why(sent: bytes, code: int) -> None:
    async with running() as server:
        reader, writer = await dial(server)
        writer.write(sent + UNREAD)
        assert await code_read(reader) == code
        writer.transport.abort()


@pytest.mark.parametrize(
    ("close", "code"),
    [
        (BoundedWebSocket.shutdown, 1012),
        (lambda line: line.drop(1013, "the client does not read"), 1013),
    ],
    ids=["the server ends", "a client is dropped"],
)
async def test_a_client_whose_words_lie_unread_can_read_why_it_is_closed(
    close: Callable[[BoundedWebSocket], None], code: int, lines: list[BoundedWebSocket]
) -> None:
    over = asyncio.Event()

    class Deaf(Gateway):
        """A server whose sessions read nothing: what is sent stays in the kernel."""

        async def serve_session(self, transport: Transport) -> None:
            await over.wait()

    async with running(kind=Deaf) as server:
        reader, writer = await dial(server)
        writer.write(24 * (frame_head(1 << 20) + bytes(1 << 20)))
        async with asyncio.timeout(20):
            while not lines[0].read_paused:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        close(lines[0])
        assert await code_read(reader) == code
        over.set()
        writer.transport.abort()


async def test_who_floods_behind_a_close_frame_is_not_listened_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[BoundedWebSocket] = []
    handle = BoundedWebSocket.handle_ping

    def count(self: BoundedWebSocket) -> None:
        heard.append(self)
        handle(self)

    monkeypatch.setattr(BoundedWebSocket, "handle_ping", count)

    class Over(Gateway):
        """A server that closes every call at once, and waits for the client to close too."""

        async def serve_session(self, transport: Transport) -> None:
            await transport.close(1001, "over")

    async with running(kind=Over) as server:
        reader, writer = await dial(server)
        await reader.readuntil(b"over")
        writer.write(20_000 * EMPTY_PING)
        async with asyncio.timeout(20):
            await reader.read()
        writer.transport.abort()
    assert 0 < len(heard) <= 2 * SLICE_BYTES / len(EMPTY_PING)


async def test_a_call_whose_session_cannot_begin_is_closed_with_a_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*args: object, **options: object) -> None:
        raise OSError("too many open files")

    async with running() as server:
        with monkeypatch.context() as patched:
            patched.setattr(app, "Session", broken)
            async with server.connect() as client:
                assert await closed_by(client) == (1011, "internal error")
        async with server.connect() as client:
            assert (await event(client))["type"] == "session.created"


async def test_a_frame_that_the_server_cannot_read_is_an_end_with_a_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: BoundedWebSocket, frame: object) -> None:
        raise ValueError("no such frame")

    async with running() as server, server.connect() as client:
        await event(client)
        monkeypatch.setattr(BoundedWebSocket, "handle_text", broken)
        await client.send("{}")
        assert await closed_by(client) == (1011, "internal error")


async def closed_by(client: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            await event(client)
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, caught.value.rcvd.reason


async def test_a_reason_in_letters_of_several_bytes_still_fits_its_frame() -> None:
    backends = replace(instant_backends(), known=lambda: Capabilities(voices=frozenset({"ava"})))
    async with running(backends=backends) as server:
        session = {"audio": {"output": {"voice": 60 * "ü"}}}
        secret = server.gateway.keys.issue(None, 60, session)
        headers = {"Authorization": f"Bearer {secret.value}"}
        async with server.connect(additional_headers=headers) as client:
            code, reason = await closed_by(client)
        assert code == 1008 and "üü" in reason
    assert len(short(100 * "ü").encode()) <= MAX_REASON_BYTES


async def hang_up(client: ClientConnection) -> None:
    await client.close(4001, "not a word of this")


async def leave(client: ClientConnection) -> None:
    client.transport.write_eof()


async def reset(client: ClientConnection) -> None:
    own: socket.socket = client.transport.get_extra_info("socket")
    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.transport.abort()


async def flood(client: ClientConnection) -> None:
    client.transport.write(2000 * EMPTY_PING)


@pytest.mark.parametrize(
    ("end", "told", "code"),
    [
        (hang_up, "the client hung up with 4001", 1000),
        (leave, "the line broke: it ended without a close frame (1006)", 1006),
        (reset, "the line broke: [Errno 104] Connection reset by peer (1006)", 1006),
        (flood, "expected at most 10 control frames a second, found more (1008)", 1008),
    ],
)
async def test_the_log_says_how_a_call_ended_and_the_metrics_count_it(
    end: Callable[[ClientConnection], asyncio.Future[None]],
    told: str,
    code: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "voiceloop.call")
    over = asyncio.Event()

    class Watched(Gateway):
        async def serve_session(self, transport: Transport) -> None:
            await super().serve_session(transport)
            over.set()

    async with running(kind=Watched) as server, server.connect() as client:
        await event(client)
        await end(client)
        await asyncio.wait_for(over.wait(), 20)
        counted = generate_latest(server.gateway.metrics.registry).decode()
    [line] = [one.getMessage() for one in caplog.records if one.name.startswith("voiceloop.call")]
    assert line.endswith(f"turns: 0; {told}")
    assert f'voiceloop_closed_total{{code="{code}"}} 1.0' in counted
