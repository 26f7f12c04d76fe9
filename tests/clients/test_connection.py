"""The client's end of the wire, against a real socket on the loopback."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from clients.connection import RATE_HZ, RealtimeConnection, own_key, realtime_url
from clients.errors import ConnectionFailed
from clients.server_process import free_port, http_status, running_server
from tests.clients.mock_server import mock_server
from tests.tables import each_row


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        ("localhost:8080", "ws://localhost:8080/v1/realtime"),
        ("http://host", "ws://host/v1/realtime"),
        ("https://host/", "wss://host/v1/realtime"),
        ("http://host:8080/v1", "ws://host:8080/v1/realtime"),
        ("http://host:8080/v1/?model=m", "ws://host:8080/v1/realtime?model=m"),
        ("wss://host/other?model=m", "wss://host/other?model=m"),
    ],
)
def test_a_persons_url_is_completed(given: str, completed: str) -> None:
    assert realtime_url(given) == completed


def test_extras_join_the_query() -> None:
    url = realtime_url("ws://host/v1/realtime?model=m", {"voiceloop.timeline": "1"})
    assert url == "ws://host/v1/realtime?model=m&voiceloop.timeline=1"


@each_row(
    "url",
    ["ftp://host", "ws://", "://", "", "ws://:80", "ws://[bad", "ws://host:99999", "host:port"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConnectionFailed, match="expected an address as ws://host:port"):
        realtime_url(url)


@pytest.mark.parametrize(
    ("status", "told"), [(401, "VOICELOOP_KEYS"), (503, "loading, full"), (404, "/v1/realtime")]
)
async def test_a_server_that_refuses_is_there_and_says_why(status: int, told: str) -> None:
    def refuses(socket: ServerConnection, request: Request) -> Response:
        return socket.respond(status, "no")

    async def never(socket: ServerConnection) -> None: ...

    async with serve(never, "127.0.0.1", 0, process_request=refuses) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match=f"HTTP {status}: .*{told}"):
            await RealtimeConnection.open(url)


def self_signed(folder: Path) -> tuple[Path, Path]:
    certfile, keyfile = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
         "-keyout", keyfile, "-out", certfile],
        check=True, capture_output=True,
    )  # fmt: skip
    return certfile, keyfile


async def test_a_certificate_of_ones_own_is_refused_and_trusted_by_the_variable_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certfile, keyfile = self_signed(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certfile, keyfile)

    async def leaves(socket: ServerConnection) -> None: ...

    async with serve(leaves, "127.0.0.1", 0, ssl=tls) as server:
        url = f"wss://localhost:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match="a certificate that .*SSL_CERT_FILE=") as told:
            await RealtimeConnection.open(url)
        assert "voiceloop serve" not in str(told.value)
        monkeypatch.setenv("SSL_CERT_FILE", str(certfile))
        await (await RealtimeConnection.open(url)).close()


async def test_tls_to_a_server_without_it_says_so() -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(16)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")  # as uvicorn does
        writer.close()

    async with await asyncio.start_server(answers, "127.0.0.1", 0) as server:
        url = f"wss://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match="expected TLS .*reached by ws://"):
            await RealtimeConnection.open(url)


@pytest.mark.parametrize("key", ["schl\u00fcssel", "two\nlines"])
async def test_a_key_that_no_header_carries_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConnectionFailed, match="printable ASCII") as refused:
        await RealtimeConnection.open("ws://127.0.0.1:1", key=key)
    assert key not in str(refused.value)


@pytest.mark.parametrize("frame", ["hello", "[]", b"\x00\xff"])
async def test_a_server_that_speaks_something_else_is_one_sentence(frame: str | bytes) -> None:
    async def says(socket: ServerConnection) -> None:
        await socket.send(frame)

    async with serve(says, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = await RealtimeConnection.open(f"ws://127.0.0.1:{port}")
        with pytest.raises(ConnectionFailed, match="expected events of the Realtime protocol"):
            await anext(connection.events())
        await connection.close()


async def test_events_arrive_in_order_and_end_with_the_connection() -> None:
    async with mock_server() as (url, sessions):
        connection = await RealtimeConnection.open(url)
        await connection.send({"type": "session.update", "session": {"type": "realtime"}})
        types, samples = [], np.zeros(0, dtype=np.int16)
        async for received in connection.events():
            types.append(received.type)
            if received.type == "response.output_audio.delta":
                samples = received.samples
                await connection.close()
    assert types[:3] == ["session.created", "session.updated", "response.created"]
    assert len(samples) == RATE_HZ * 40 // 1000
    assert len(sessions) == 1


async def test_a_server_that_is_not_there_is_one_sentence() -> None:
    port = free_port()
    with pytest.raises(ConnectionFailed, match="No server answers at"):
        await RealtimeConnection.open(f"ws://127.0.0.1:{port}")
    assert await http_status(port, "/readyz") is None


@pytest.mark.virtual_time
async def test_a_status_that_does_not_come_in_time_leaves_no_connection() -> None:
    hung_up = asyncio.Event()

    async def serve_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        hung_up.set()
        writer.close()

    async with await asyncio.start_server(serve_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert await http_status(port, "/readyz") is None
        async with asyncio.timeout(5.0):
            await hung_up.wait()


async def test_a_server_process_that_ends_says_why(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from clients.errors import ServerDidNotStart

    command = ("sh", "-c", "echo a line; echo the port is taken >&2; exit 2")
    with pytest.raises(ServerDidNotStart, match="exit code 2: the port is taken"):
        async with running_server(command=command, log=tmp_path / "log"):
            pass


async def test_a_server_process_that_is_not_ready_says_for_how_long_it_was_waited_for(
    tmp_path: Path,
) -> None:
    from clients.errors import ServerDidNotStart

    command = ("sh", "-c", "echo loading; exec sleep 60")
    told = r"ready in 0 s \(is this machine busy\?\), last log: "
    with pytest.raises(ServerDidNotStart, match=told):
        async with running_server(command=command, log=tmp_path / "log", ready_timeout_s=0.0):
            pass


STARTS_A_SERVER = """
import asyncio, sys
from clients import server_process
async def ready(*_): pass
server_process._wait_until_ready = ready
async def main():
    async with server_process.running_server(command=("sh", "-c", "exec sleep 60")) as server:
        print(server.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_ends_with_whoever_started_it(number: signal.Signals) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS_A_SERVER], stdout=subprocess.PIPE, text=True
    )
    with starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        server = os.pidfd_open(pid)
        starter.send_signal(number)
    ended, _, _ = select.select([server], [], [], 10.0)  # a pidfd can be read once it has ended
    os.close(server)
    assert ended


def test_the_key_sent_by_itself_is_the_first_that_the_server_lets_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VOICELOOP_KEYS", "first-key, second-key")
    for url in ("ws://127.0.0.1:8080", "http://localhost/v1", "ws://[::1]:80"):
        assert own_key(url) == "first-key"
    for url in ("wss://voice.example.com/v1", "ws://127.0.0.1@example.com", "ws://10.0.0.7"):
        assert own_key(url) is None  # not ours: it is not told
    monkeypatch.setenv("VOICELOOP_KEYS", "")
    assert own_key("ws://127.0.0.1:8080") is None
    monkeypatch.delenv("VOICELOOP_KEYS")
    assert own_key("ws://127.0.0.1:8080") is None
