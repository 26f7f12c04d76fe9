"""The server on real sockets: who gets in, what it says when it cannot, how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import generate_latest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from clients.connection import typed
from tests.fakes import instant_backends
from tests.serving import gateway_of, serving
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.call.connection import Disconnected, Transport
from voiceloop.capabilities import Capabilities
from voiceloop.config import Config, Limits
from voiceloop.errors import BackendRefused, ConfigError
from voiceloop.operation import WorkerLoad
from voiceloop.server.app import Gateway, build_app
from voiceloop.server.process import listen, serve

pytestmark = pytest.mark.virtual_time

KEY = "secret-key-1"
AGENT = AgentConfig(instructions="Be kind.")


class Running:
    """A server of this test."""

    def __init__(self, gateway: Gateway, port: int) -> None:
        self.gateway = gateway
        self.port = port
        self.http = f"http://127.0.0.1:{port}"

    def connect(self, query: str = "", base: str = "", **options: Any) -> connect:
        url = f"ws://127.0.0.1:{self.port}{base}/v1/realtime{query}"
        return connect(url, proxy=None, **options)


@asynccontextmanager
async def running(
    config: Config | None = None, backends: Backends | None = None, **state: Any
) -> AsyncIterator[Running]:
    loaded = state.pop("loaded", True)
    gateway = gateway_of(backends, config, **{"agent": AGENT, **state})
    gateway.backends = gateway.backends if loaded else None
    async with serving(build_app(gateway), gateway.config) as port:
        yield Running(gateway, port)


async def event(client: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(5):
        found: dict[str, Any] = json.loads(await client.recv())
        return found


async def until(client: ClientConnection, kind: str) -> dict[str, Any]:
    while (found := await event(client))["type"] != kind:
        pass
    return found


async def test_a_session_opens_with_its_settings_and_a_text_turn_is_answered() -> None:
    async with running() as server, server.connect("?model=gpt-realtime") as client:
        created = await event(client)
        assert created["type"] == "session.created"
        assert created["session"]["model"] == "gpt-realtime"
        assert created["session"]["instructions"] == "Be kind."
        await client.send(json.dumps({"type": "conversation.item.create", "item": typed("hello")}))
        asked = {"type": "response.create", "response": {"output_modalities": ["text"]}}
        await client.send(json.dumps(asked))
        done = await until(client, "response.done")
        assert done["response"]["status"] == "completed"
        assert done["response"]["output"][0]["content"][0]["text"]


REFUSED: list[tuple[dict[str, Any], int]] = [
    ({}, 401),
    ({"additional_headers": {"Authorization": "Bearer wrong-key-1"}}, 401),
    ({"subprotocols": ["realtime", "openai-insecure-api-key.wrong"]}, 401),
    ({"subprotocols": ["realtime", "openai-insecure-api-key.ek_invented"]}, 401),
    ({"additional_headers": {"Authorization": f"Bearer {KEY}", "Origin": "https://evil"}}, 403),
]


async def test_a_refusal_is_no_error_of_the_servers(caplog: pytest.LogCaptureFixture) -> None:
    async with running(Config(keys=(KEY,))) as server:
        with pytest.raises(InvalidStatus):
            async with server.connect():
                pass
    assert not caplog.records


async def test_who_may_not_come_in_is_refused_before_the_upgrade() -> None:
    async with running(Config(keys=(KEY,))) as server:
        for options, status in REFUSED:
            with pytest.raises(InvalidStatus) as caught:
                async with server.connect(**options):
                    pass
            response = caught.value.response
            assert response.status_code == status, options
            assert KEY not in (response.body or b"").decode()
            assert "error" in json.loads(response.body or b"")


async def test_a_browser_page_of_a_listed_origin_comes_in() -> None:
    config = Config(allowed_origins=("https://app.example.org",))
    async with running(config) as server:
        async with server.connect(origin="https://app.example.org") as client:
            assert (await event(client))["type"] == "session.created"
        with pytest.raises(InvalidStatus):
            async with server.connect(origin="https://other.example.org"):
                pass


async def test_the_address_says_whether_to_greet() -> None:
    async with running() as server:
        url = f"ws://127.0.0.1:{server.port}/v1/realtime?greeting="
        async with connect(url + "0") as client:
            assert (await event(client))["type"] == "session.created"
        with pytest.raises(InvalidStatus) as caught:
            async with connect(url + "yes"):
                pass
    answer = json.loads(caught.value.response.body or b"{}")
    assert answer["error"]["message"] == "greeting: expected 0 or 1, found 'yes'"


async def test_a_full_server_says_when_to_come_back() -> None:
    config = Config(limits=Limits(max_sessions=1))
    async with running(config) as server, server.connect() as client:
        await event(client)
        with pytest.raises(InvalidStatus) as caught:
            async with server.connect():
                pass
        response = caught.value.response
        assert response.status_code == 503 and int(response.headers["Retry-After"]) > 0


async def test_a_server_that_still_loads_is_alive_not_ready_and_takes_no_call() -> None:
    async with running(loaded=False) as server, httpx.AsyncClient(base_url=server.http) as http:
        assert (await http.get("/healthz")).status_code == 200
        ready = await http.get("/readyz")
        assert ready.status_code == 503 and ready.json()["reason"] == "the models are loading"
        with pytest.raises(InvalidStatus) as caught:
            async with server.connect():
                pass
        assert caught.value.response.status_code == 503
        server.gateway.backends = instant_backends()
        assert (await http.get("/readyz")).status_code == 200


@pytest.mark.parametrize("loaded", [True, False])
async def test_readyz_tells_a_stranger_the_status_alone(loaded: bool) -> None:
    config = Config(keys=(KEY,), metrics_key="the-operators-own")
    async with (
        running(config, loaded=loaded) as server,
        httpx.AsyncClient(base_url=server.http) as http,
    ):
        for header in ({}, {"authorization": f"Bearer {KEY}"}):
            found = await http.get("/readyz", headers=header)
            assert found.json() == {"status": "ready" if loaded else "not ready"}
            assert found.status_code == (200 if loaded else 503)
        own = {"authorization": "Bearer the-operators-own"}
        told = (await http.get("/readyz", headers=own)).json()
    assert "workers" in told and ("reason" in told) is not loaded


async def test_a_server_that_goes_on_without_a_reader_is_degraded() -> None:
    state = "starting"
    async with running(loaded=False) as server, httpx.AsyncClient(base_url=server.http) as http:
        server.gateway.backends = instant_backends(
            workers=lambda: [WorkerLoad("end reader", ("engine",), state)],
            judges=lambda: "voice" if state == "starting" else "words and voice",
        )
        found = await http.get("/readyz")
        told = found.json()
        assert (found.status_code, told["status"]) == (200, "degraded")
        assert told["end_of_turn_judged_by"] == "voice"
        state = "ready"
        assert (await http.get("/readyz")).json()["status"] == "ready"


async def test_a_worker_that_restarts_shows_in_readyz() -> None:
    async with running(is_ready=lambda: False) as server:
        async with httpx.AsyncClient(base_url=server.http) as http:
            assert (await http.get("/readyz")).json()[
                "reason"
            ] == "a model's service does not answer"


@pytest.mark.parametrize(
    ("metrics_key", "opens"), [("", KEY), ("the-operators-own", "the-operators-own")]
)
async def test_metrics_count_sessions_and_open_to_their_key_or_here_to_any(
    metrics_key: str, opens: str
) -> None:
    async with running(Config(keys=(KEY,), metrics_key=metrics_key)) as server:
        async with (
            httpx.AsyncClient(base_url=server.http) as http,
            server.connect(additional_headers={"Authorization": f"Bearer {KEY}"}) as client,
        ):
            await event(client)

            async def read(key: str | None, **headers: str) -> httpx.Response:
                if key is not None:
                    headers["Authorization"] = f"Bearer {key}"
                return await http.get("/metrics", headers=headers)

            assert "voiceloop_sessions 1.0" in (await read(opens)).text
            # A plain proxy here looks like this machine itself.
            assert [(await read(key)).status_code for key in (None, "wrong")] == [401] * 2
            if metrics_key:
                assert (await read(KEY)).status_code == 401
            else:  # from this machine, and not from another one through a proxy
                assert (await read(KEY, **{"X-Forwarded-For": "192.0.2.7"})).status_code == 403
                assert (await read(KEY, Host="rebound.example")).status_code == 403


async def test_compression_is_not_offered() -> None:
    async with running() as server, server.connect(compression="deflate") as client:
        assert client.response is not None
        assert "Sec-WebSocket-Extensions" not in client.response.headers


async def test_draining_closes_calls_and_takes_no_new_one() -> None:
    async with running() as server, server.connect() as client:
        await event(client)
        async with asyncio.timeout(5):
            await server.gateway.drain()
        with pytest.raises(ConnectionClosed) as caught:
            await until(client, "never")
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1012
        with pytest.raises(InvalidStatus):
            async with server.connect():
                pass


def test_a_busy_port_is_named() -> None:
    first = listen("127.0.0.1", 0)
    port = first.getsockname()[1]
    with pytest.raises(ConfigError, match=f"expected a free port, found that 127.0.0.1:{port}"):
        listen("127.0.0.1", port)
    first.close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "two..dots"])
def test_a_host_that_is_none_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match=f"host: expected an address, found '{host}'"):
        listen(host, 0)


def test_the_listening_socket_holds_little() -> None:
    sock = listen("127.0.0.1", 0)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * 64 * 1024
    assert sock.getsockopt(socket.IPPROTO_TCP, 25) == 16 * 1024
    sock.close()


async def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    none, wrong = tmp_path / "none.pem", tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    refusals = {none: "certfile: expected a PEM file", wrong: "a certificate and its key in"}
    for file, told in refusals.items():
        with pytest.raises(ConfigError, match=told):
            await serve(Config(port=0, certfile=file, keyfile=file))


async def test_other_machines_are_not_served_without_keys() -> None:
    with pytest.raises(ConfigError, match="expected keys"):
        await serve(Config(host="0.0.0.0"))


NONSENSE = [
    b"[]", b"{", b"\xff", b'{"session": 5}', b'{"expires_after": {"seconds": 5}}',
    b'{"expires_after": {"seconds": true}}', b'{"expires_after": {"anchor": "now"}}',
    b'{"session": {"type": "video"}}', b'{"session": {"output_modalities": "audio"}}',
]  # fmt: skip


async def test_a_client_secret_for_nonsense_is_refused() -> None:
    async with running() as server, httpx.AsyncClient(base_url=server.http) as http:
        for body in NONSENSE:
            answer = await http.post("/v1/realtime/client_secrets", content=body)
            assert answer.status_code == 400, body[:80]
            assert "expected" in answer.json()["error"]["message"]
        answer = await http.post("/v1/realtime/client_secrets", content=b" " * 600_000)
        assert answer.status_code == 413


async def test_another_sites_page_gets_no_client_secret() -> None:
    async with running() as server, httpx.AsyncClient(base_url=server.http) as http:
        headers = {"Origin": "https://evil.example"}
        answer = await http.post("/v1/realtime/client_secrets", headers=headers)
        assert answer.status_code == 403


# --- the transport ---


async def test_a_client_that_stops_reading_is_cut_and_its_neighbour_does_not_notice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Limits, "slow_client_s", 0.2)
    async with running() as server, server.connect() as neighbour:
        await event(neighbour)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.write(
            b"GET /v1/realtime HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        # Every update is echoed; nobody reads the echoes.
        session = {"instructions": "x" * 60_000}
        update = json.dumps({"type": "session.update", "session": session}).encode()
        frame = b"\x81\xff" + len(update).to_bytes(8, "big") + b"\0\0\0\0" + update
        async with asyncio.timeout(8):
            while server.gateway.admission.n_inside == 2:
                writer.write(frame)
                await asyncio.sleep(0.01)
            await neighbour.send('{"type": "input_audio_buffer.clear"}')
            await until(neighbour, "input_audio_buffer.cleared")
            rest = await reader.read(-1)
        writer.close()
        assert (1013).to_bytes(2, "big") + b"the client does not read" in rest[-64:]


class OneLine(Gateway):
    """A server whose sessions only close, twice, and then try to go on."""

    async def serve_session(self, transport: Transport) -> None:
        await transport.close(1000, "done")
        await transport.close(1011, "again")
        with pytest.raises(Disconnected):
            await transport.receive()
        with pytest.raises(Disconnected):
            await transport.send("x")


async def test_a_transport_closes_once_and_then_says_disconnected() -> None:
    async with running(kind=OneLine) as server, server.connect() as client:
        with pytest.raises(ConnectionClosed) as caught:
            await client.recv()
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1000, "done")


# --- the process ---


@pytest.mark.real_time  # signals
async def test_a_signal_drains_the_server_and_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    @asynccontextmanager
    async def fakes(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        yield instant_backends(), lambda: True
        closed.append("models")

    monkeypatch.setattr("voiceloop.server.process.open_backends", fakes)
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(Config(port=0), agent=AGENT, ready=url.set_result))
    async with asyncio.timeout(5):
        address = (await url).replace("http://", "ws://")
        async with connect(f"{address}/v1/realtime", proxy=None) as client:
            await event(client)
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(ConnectionClosed) as caught:
                await until(client, "never")
            assert caught.value.rcvd is not None and caught.value.rcvd.code == 1012
        await serving
    assert closed == ["models"]
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))).close()


async def test_a_secret_that_the_models_cannot_serve_ends_its_call_with_the_reason() -> None:
    backends = replace(instant_backends(), known=lambda: Capabilities(voices=frozenset({"ava"})))
    async with running(backends=backends) as server:
        session = {"audio": {"output": {"voice": "nobody"}}}
        secret = server.gateway.keys.issue(None, 60, session)
        headers = {"Authorization": f"Bearer {secret.value}"}
        async with server.connect(additional_headers=headers) as client:
            with pytest.raises(ConnectionClosed) as caught:
                await until(client, "session.created")
        assert caught.value.rcvd is not None and caught.value.rcvd.code == 1008
        assert "voice" in caught.value.rcvd.reason
        async with server.connect() as client:
            assert (await event(client))["type"] == "session.created"


async def test_how_calls_ended_and_were_refused_is_counted() -> None:
    async with running() as server:
        async with server.connect() as client:
            await event(client)
        with pytest.raises(InvalidStatus):
            async with server.connect("?greeting=perhaps"):
                pass
        async with asyncio.timeout(5):
            await server.gateway.drain()  # until the last has ended
        counted = generate_latest(server.gateway.metrics.registry).decode()
    assert 'voiceloop_closed_total{code="1000"} 1.0' in counted
    assert 'voiceloop_refused_total{code="invalid_value"} 1.0' in counted
    assert "process_open_fds" in counted or sys.platform != "linux"


async def test_an_answer_over_http_is_finished_before_the_server_ends() -> None:
    async with running() as server:
        with server.gateway.http_admission.place():
            draining = asyncio.create_task(server.gateway.drain())
            await asyncio.sleep(0)
            assert not draining.done()
        async with asyncio.timeout(5):
            await draining


async def test_a_signal_while_models_load_gives_the_loading_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_up: list[str] = []

    @asynccontextmanager
    async def endless(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            given_up.append("models")
        yield

    monkeypatch.setattr("voiceloop.server.process.open_backends", endless)
    async with asyncio.timeout(5):
        await serve(Config(port=0), agent=AGENT, ready=lambda url: pytest.fail("is not ready"))
    assert given_up == ["models"]


async def test_models_that_cannot_load_end_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def broken(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise BackendRefused("expected a model folder, found none")
        yield

    monkeypatch.setattr("voiceloop.server.process.open_backends", broken)
    with pytest.raises(BackendRefused, match="expected a model folder"):
        await serve(Config(port=0), agent=AGENT)
