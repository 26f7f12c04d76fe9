"""What a connection may cost before anybody has shown a key: its number, its time, its frames."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.serving import gateway_of, serving
from voiceloop.admission.places import Beginnings
from voiceloop.config import Config, Limits
from voiceloop.http import health
from voiceloop.http.gate import Stream
from voiceloop.server import connections, process
from voiceloop.server.app import build_app
from voiceloop.server.connections import (
    BODY_S,
    HEAD_S,
    LEAST_BYTES_PER_S,
    SLOW_BODY_S,
    STRANGERS_LOG,
    Connections,
    Place,
)
from voiceloop.server.listener import HANDSHAKES, HANDSHAKES_OF_NETWORK
from voiceloop.server.websocket import CLOSE_GRACE_S, CONTROL_FRAMES_AT_ONCE, MAX_FRAGMENTS
from voiceloop.strangers import OnceAMinute

pytestmark = pytest.mark.virtual_time

KEY = base64.b64encode(os.urandom(16)).decode()
UPGRADE = (
    "GET /v1/realtime HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
).encode()
BODY_BEGUN = b"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{"
EMPTY_PING = b"\x89\x80\0\0\0\0"
EMPTY_TEXT_BEGUN, EMPTY_CONTINUATION = b"\x01\x80\0\0\0\0", b"\x00\x80\0\0\0\0"


@dataclass(slots=True)
class Line:
    """A client that writes bytes and reads until the server ends the connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read_all(self) -> bytes:
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""


Connect = Callable[..., "asyncio.Future[Line]"]


@asynccontextmanager
async def connecting(
    monkeypatch: pytest.MonkeyPatch, n_descriptors: int = 10_000, config: Config | None = None
) -> AsyncIterator[Connect]:
    monkeypatch.setattr(process, "raise_descriptor_limit", lambda: n_descriptors)
    gateway = gateway_of(config=config)
    lines: list[Line] = []
    async with serving(build_app(gateway), gateway.config) as port:

        async def connect(**options: Any) -> Line:
            lines.append(Line(*await asyncio.open_connection("127.0.0.1", port, **options)))
            return lines[-1]

        try:
            yield connect  # type: ignore[misc]
        finally:
            for line in lines:
                line.writer.transport.abort()


@pytest.mark.parametrize("sent", [b"", b"GET /v1/realtime HTTP/1.1\r\nHost: a"])
async def test_a_request_without_an_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float], sent: bytes
) -> None:
    async with connecting(monkeypatch) as connect:
        line = await connect()
        line.writer.write(sent)
        began = clock()
        assert (await line.read_all()).startswith(b"HTTP/1.1 408")
        assert clock() - began == pytest.approx(HEAD_S, abs=0.5)


CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    "ambiguous",
    [
        b"POST /healthz HTTP/1.1\r\nContent-Length: 5\r\n" + CHUNKED,
        b"POST /healthz HTTP/1.0\r\nConnection: keep-alive\r\n" + CHUNKED,
        b"POST /healthz HTTP/1.1\r\n" + 2 * CHUNKED,
        UPGRADE[:-2] + CHUNKED,
        UPGRADE[:-2] + b"Content-Length: 5\r\n",
        UPGRADE[:-2] + 200 * b"X: y\r\n",
    ],
    ids=["two lengths", "chunks in 1.0", "chunked twice", "upgrade", "upgrade, length", "headers"],
)
async def test_a_request_whose_end_is_ambiguous_is_refused_with_all_that_follows_it(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float], ambiguous: bytes
) -> None:
    host = b"" if b"\r\nHost" in ambiguous else b"Host: a\r\n"
    async with connecting(monkeypatch) as connect:
        line, began_s = await connect(), clock()
        line.writer.write(ambiguous + host + b"\r\n0\r\n\r\n")
        line.writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = await line.read_all()
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1
    assert clock() - began_s < 1.0


async def test_what_strangers_send_that_is_no_http_brings_one_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    STRANGERS_LOG.filters.clear()
    STRANGERS_LOG.addFilter(OnceAMinute())
    async with connecting(monkeypatch) as connect:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n" + CHUNKED
        for sent in 5 * [b"\0\0\r\n\r\n", head + b"\r\nzz\r\n"]:
            line = await connect()
            line.writer.write(sent)
            assert (await line.read_all()).startswith(b"HTTP/1.1 400")
    assert len(caplog.records) == 1


async def test_a_head_that_drips_in_is_given_up_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]
) -> None:
    async with connecting(monkeypatch) as connect:
        line = await connect()
        began = clock()

        async def drip() -> None:
            for byte in b"GET / HTTP/1.1\r\nX-Long: " + 1000 * b"a":
                line.writer.write(bytes([byte]))
                await asyncio.sleep(1.0)

        dripping = asyncio.create_task(drip())
        await line.read_all()  # 408, or what its own next byte makes of a closed line
        dripping.cancel()
        await asyncio.wait([dripping])
        assert clock() - began == pytest.approx(HEAD_S, abs=1.5)


async def test_a_body_that_drips_is_given_up_and_one_at_the_least_rate_is_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]
) -> None:
    def begun(n_bytes: int) -> bytes:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        return head + b"Content-Length: %d\r\n\r\n" % n_bytes

    async with connecting(monkeypatch) as connect:
        dripping, began = await connect(), clock()
        dripping.writer.write(begun(400_000))
        ended = asyncio.create_task(dripping.read_all())
        while not ended.done() and clock() - began < BODY_S:
            dripping.writer.write(b" " * 1000)
            await asyncio.sleep(1.0)
        assert (await ended).startswith(b"HTTP/1.1 408")
        assert clock() - began == pytest.approx(SLOW_BODY_S, abs=2.0)
        slow, began = await connect(), clock()
        slow.writer.write(begun(20 * LEAST_BYTES_PER_S))
        for _ in range(20):
            slow.writer.write(b" " * LEAST_BYTES_PER_S)
            await asyncio.sleep(1.0)
        assert (await slow.reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 400")  # no JSON


async def test_an_answer_that_is_read_by_drops_gives_its_place_to_another(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]
) -> None:
    closed: list[str] = []
    n_pieces, piece = 40, b"m" * 8_000

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            for _ in range(n_pieces):
                yield piece
        finally:
            closed.append("source")

    monkeypatch.setattr(process, "SEND_BUFFER_BYTES", 4096)
    monkeypatch.setattr(health, "generate_latest", lambda registry: b"")
    monkeypatch.setattr(health, "Response", lambda body, media_type: Stream(pieces(), media_type))
    async with connecting(monkeypatch) as connect:
        port = (await connect()).writer.get_extra_info("peername")[1]
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", port))
            sock.setblocking(False)
            sock.send(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            began, n_read = clock(), 0
            with suppress(ConnectionResetError):
                while n_read < n_pieces * len(piece):
                    await asyncio.sleep(1.0)
                    with suppress(BlockingIOError):
                        if not (got := sock.recv(LEAST_BYTES_PER_S // 5)):
                            break
                        n_read += len(got)
        assert n_read < n_pieces * len(piece) and closed == ["source"]
        assert clock() - began < 60.0


def make_certificate(config: Config) -> None:
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    made += ["-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made += ["-keyout", str(config.keyfile), "-out", str(config.certfile)]
    subprocess.run(made, check=True, capture_output=True)


needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes a certificate with openssl"
)


@needs_openssl
async def test_tls_that_is_not_agreed_is_given_up_as_soon(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float], tmp_path: Path
) -> None:
    config = Config(certfile=tmp_path / "cert.pem", keyfile=tmp_path / "key.pem")
    make_certificate(config)
    async with connecting(monkeypatch, config=config) as connect:
        line = await connect()
        began = clock()
        await line.read_all()
        assert clock() - began == pytest.approx(HEAD_S, abs=0.5)


async def test_a_call_is_not_held_to_the_time_of_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "PING_S", 10 * BODY_S)  # nobody here answers a ping
    async with connecting(monkeypatch) as connect:
        line = await connect()
        line.writer.write(UPGRADE)
        assert (await line.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        ended = asyncio.create_task(line.read_all())  # at_eof is false while anything is unread
        await asyncio.sleep(max(HEAD_S, BODY_S) + 1.0)
        assert not ended.done()
        ended.cancel()


async def test_a_line_that_answers_no_ping_is_free_again_in_25_s(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]
) -> None:
    async with connecting(monkeypatch) as connect:
        line = await connect()
        line.writer.write(UPGRADE)
        began = clock()
        await line.read_all()
        assert clock() - began <= 25.0


async def test_a_caller_whose_pong_stands_behind_sound_is_not_taken_for_gone(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]
) -> None:
    async with connecting(monkeypatch) as connect:
        line = await connect()
        line.writer.write(UPGRADE)
        await line.reader.readuntil(b"\r\n\r\n")
        ended = asyncio.create_task(line.read_all())
        for _ in range(60):  # it answers no ping, but something comes
            line.writer.write(EMPTY_PING)
            await asyncio.sleep(1.0)
        assert not ended.done()
        fell_silent = clock()
        await ended
        assert clock() - fell_silent <= 25.0


@pytest.mark.parametrize(
    "flood",
    [
        2000 * EMPTY_PING,
        2000 * EMPTY_PING.replace(b"\x89", b"\x8a"),
        EMPTY_TEXT_BEGUN + 2000 * EMPTY_CONTINUATION,
    ],
    ids=["pings", "pongs", "fragments"],
)
async def test_a_flood_of_frames_that_say_nothing_ends_the_call(
    monkeypatch: pytest.MonkeyPatch, flood: bytes
) -> None:
    async with connecting(monkeypatch) as connect:
        line = await connect()
        line.writer.write(UPGRADE)
        await line.reader.readuntil(b"\r\n\r\n")
        line.writer.write(flood)
        assert (1008).to_bytes(2, "big") in await line.read_all()


async def test_a_client_that_leaves_as_it_is_dropped_leaves_nothing_to_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, told: failed.append(told))
    async with connecting(monkeypatch) as connect:
        line = await connect()
        line.writer.write(UPGRADE)
        await line.reader.readuntil(b"\r\n\r\n")
        line.writer.write(2000 * EMPTY_PING)
        await line.read_all()
        await asyncio.sleep(2 * CLOSE_GRACE_S)
    assert not failed


async def test_a_client_may_ping_and_cut_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connecting(monkeypatch) as connect:
        line = await connect()
        line.writer.write(UPGRADE)
        await line.reader.readuntil(b"\r\n\r\n")
        n_pings = int(CONTROL_FRAMES_AT_ONCE)
        pieces = EMPTY_TEXT_BEGUN + (MAX_FRAGMENTS - 2) * EMPTY_CONTINUATION
        line.writer.write(n_pings * EMPTY_PING + pieces + b"\x80\x80\0\0\0\0")
        assert b"invalid_value" in await line.reader.readuntil(
            b"invalid_value"
        )  # it was read whole


async def test_the_last_connections_answer_probes_and_one_more_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connecting(monkeypatch, n_descriptors=0) as connect:  # 16 connections: 14 and 2
        for _ in range(14):
            (await connect()).writer.write(BODY_BEGUN)
        await asyncio.sleep(0.01)
        for path, status in (("/healthz", b"200"), ("/v1/models", b"503")):
            line = await connect()
            line.writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            assert (await line.reader.readuntil(b"\r\n")).split()[1] == status
            line.writer.write(BODY_BEGUN)  # else it rests, and makes room
            await asyncio.sleep(0.01)
        refused = await connect()
        assert (await refused.read_all()).startswith(b"HTTP/1.1 503")


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nX-Long: "], ids=["silent", "dripping"])
async def test_connections_that_ask_nothing_make_room_for_a_caller(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float], sent: bytes
) -> None:
    async with connecting(monkeypatch, n_descriptors=0) as connect:  # 16 connections
        began_s = clock()
        for _ in range(40):
            (await connect()).writer.write(sent)
        caller = await connect()
        caller.writer.write(UPGRADE)
        assert (await caller.reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 101")
        for _ in range(40):  # and its call is none of those that make room
            (await connect()).writer.write(sent)
        await asyncio.sleep(0.01)
        assert not caller.reader.at_eof() and clock() - began_s < 1.0


def tls_of(folder: Path) -> tuple[Config, ssl.SSLContext]:
    config = Config(certfile=folder / "cert.pem", keyfile=folder / "key.pem")
    make_certificate(config)
    return config, ssl.create_default_context(cafile=str(config.certfile))


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(
            incoming, outgoing, server_hostname="a"
        ).do_handshake()
    return outgoing.read()


async def is_answered(line: Line) -> bool:
    line.writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return (await line.reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")


@needs_openssl
async def test_sockets_that_agree_no_tls_are_counted_and_make_room_for_a_caller(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float], tmp_path: Path
) -> None:
    config, trusting = tls_of(tmp_path)
    async with connecting(monkeypatch, n_descriptors=0, config=config) as connect:
        began_s = clock()
        silent = [await connect() for _ in range(60)]
        await asyncio.sleep(0.01)
        assert sum(line.reader.at_eof() for line in silent) >= 60 - 16
        assert await is_answered(await connect(ssl=trusting, server_hostname="localhost"))
        assert clock() - began_s < 1.0


@needs_openssl
async def test_few_handshakes_go_on_at_once_for_one_network_and_another_has_its_own(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float], tmp_path: Path
) -> None:
    monkeypatch.setattr(connections, "network_of", lambda address: address)
    config, trusting = tls_of(tmp_path)
    async with connecting(monkeypatch, config=config) as connect:
        hello, began_s = client_hello(), clock()
        theirs = [await connect(local_addr=("127.0.0.2", 0)) for _ in range(30)]
        for line in theirs:
            line.writer.write(hello)
        await asyncio.sleep(0.5)
        answered = [line for line in theirs if line.reader._buffer]  # type: ignore[attr-defined]
        assert len(answered) == HANDSHAKES_OF_NETWORK
        assert await is_answered(await connect(ssl=trusting, server_hostname="localhost"))
        assert clock() - began_s < 1.0
        for line in theirs:
            await line.read_all()
        assert clock() - began_s <= HEAD_S + 0.1


@needs_openssl
async def test_of_more_handshakes_than_the_server_has_at_once_the_oldest_makes_room(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float], tmp_path: Path
) -> None:
    config, trusting = tls_of(tmp_path)
    async with connecting(monkeypatch, config=config) as connect:
        hello, began_s = client_hello(), clock()
        theirs = [await connect() for _ in range(HANDSHAKES + 5)]
        for line in theirs:
            line.writer.write(hello)
        assert await is_answered(await connect(ssl=trusting, server_hostname="localhost"))
        assert clock() - began_s < 1.0
        await asyncio.gather(*(line.read_all() for line in theirs[:5]))
        assert clock() - began_s < 1.0


class OutOfDescriptors(socket.socket):
    """A listening socket of a system that has no descriptor left, for a while."""

    n_left = 3

    def accept(self) -> Any:
        self.n_left -= 1
        if self.n_left >= 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_without_a_descriptor_a_caller_waits_a_moment_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float], caplog: pytest.LogCaptureFixture
) -> None:
    whole = process.listen
    monkeypatch.setattr(
        "tests.serving.listen",
        lambda host, port: OutOfDescriptors(fileno=whole(host, port).detach()),
    )
    async with connecting(monkeypatch) as connect:
        began_s = clock()
        assert await is_answered(await connect())
        assert clock() - began_s < 1.0
    assert caplog.text.count("Too many open files") == 1


async def test_one_address_has_its_share_and_this_machine_s_proxy_none() -> None:
    def let_in(opened: Connections, address: str) -> Place | None:
        place = opened.admit(address, lambda: None)
        if place is not None:
            place.work()
        return place

    opened = Connections(n_most=10, n_address=2)
    theirs = [let_in(opened, "192.0.2.7") for _ in range(3)]
    assert theirs[0] and theirs[1] and theirs[2] is None
    assert let_in(opened, "192.0.2.8")
    theirs[0].leave()
    theirs[0].leave()
    assert let_in(opened, "192.0.2.7")
    # One customer's network of IPv6 is one address; an IPv4 one may come in its clothes.
    other = Connections(n_most=10, n_address=2)
    for theirs_too in (("2001:db8:1:2::1", "2001:db8:1:2:9::7"), ("192.0.2.9", "::ffff:192.0.2.9")):
        assert all(let_in(other, one) for one in theirs_too)
        assert not let_in(other, theirs_too[1])
    assert all(let_in(other, "::ffff:127.0.0.1") for _ in range(5))
    assert all(let_in(opened, "127.0.0.1") for _ in range(7))
    assert not let_in(opened, "127.0.0.1")


async def test_a_caller_who_leaves_while_waiting_at_the_door_gives_the_place_to_another(
    monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]
) -> None:
    @contextmanager
    def a_minute(self: Beginnings, n_inside: int, n_places: int) -> Iterator[float]:
        yield 60.0

    monkeypatch.setattr(Beginnings, "wait", a_minute)
    config = Config(limits=Limits(max_sessions=1))
    async with connecting(monkeypatch, config=config) as connect:
        began_s, waiting = clock(), await connect()
        waiting.writer.write(UPGRADE)

        async def is_refused() -> bool:
            asking = await connect()
            asking.writer.write(UPGRADE)
            try:
                async with asyncio.timeout(1.0):
                    return b" 503 " in await asking.reader.readline()
            except TimeoutError:
                asking.writer.transport.abort()
                return False

        while not await is_refused():
            pass
        waiting.writer.transport.abort()
        while await is_refused():  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        assert clock() - began_s < 30.0
