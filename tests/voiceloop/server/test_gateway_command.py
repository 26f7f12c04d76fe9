"""`voiceloop gateway` as a process: what it holds and tells, and that any of them is as good."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from clients.connection import typed
from clients.resuming import ResumingConnection
from clients.server_process import free_port, http_status
from tests.voiceloop.server.test_app import until
from voiceloop.agent import AgentConfig
from voiceloop.cluster.address import Address
from voiceloop.cluster.host import host_worker
from voiceloop.config import load_config
from voiceloop.errors import ConfigError
from voiceloop.models.end_judges import end_judges
from voiceloop.models.opening import open_backends
from voiceloop.operation import WorkerAddresses
from voiceloop.server.serve_command import gateway_config
from voiceloop.workers.messages import HeldModel, RoleSpec, WorkerSpec

ROOT = Path(__file__).parents[3]
KEY, WORKERS_KEY = "a-key-of-a-caller", "a key of this test's cluster"
HELD = {
    "engine": HeldModel("scripted engine", context_tokens=4096),
    "recognizer": HeldModel("scripted ears", languages=("en",)),
    "voice": HeldModel("scripted voice", voices=("ava", "tom")),
}
# What holds a model, or is there for one; the voice detector's onnxruntime comes with the first
# call.
MODEL_PACKAGES = ("torch", "transformers", "onnx", "onnxruntime", "tokenizers", "engine")
TELLING = """
import ctypes, json, resource, sys
from voiceloop.server.progress import ServeProgress
ready = ServeProgress.ready
def tell(self, url):
    ready(self, url)
    held = [name for name in {packages!r} if name in sys.modules]
    can_dump = ctypes.CDLL(None).prctl(3) if sys.platform == "linux" else 0
    print(json.dumps([held, can_dump, resource.getrlimit(resource.RLIMIT_CORE)]), flush=True)
ServeProgress.ready = tell
from voiceloop.cli import main
sys.exit(main(["gateway", *sys.argv[1:]]))
"""


@dataclass
class GatewayProcess:
    process: asyncio.subprocess.Process
    port: int
    held: list[str]  # of the packages that models need
    can_dump: int
    core: list[int]  # the bounds of its size

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def worker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Address]:
    """One that holds all three roles, without a model."""
    places = (str(ROOT / "tests" / "faults"), str(ROOT))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))
    factory = "scripted_roles:load"
    spec = WorkerSpec("all", tuple(RoleSpec(role, {}, factory, HELD[role]) for role in HELD))
    address: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        host_worker(
            spec, Address("127.0.0.1", 0), WorkerAddresses(key=(WORKERS_KEY,)), drain_s=0,
            ready=address.set_result,
        )
    )  # fmt: skip
    try:
        yield await address
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def gateway(config: Path) -> AsyncIterator[GatewayProcess]:
    port, script = free_port(), TELLING.format(packages=MODEL_PACKAGES)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, "--port", str(port), "--config", str(config),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            told = json.loads(await process.stdout.readline())
        yield GatewayProcess(process, port, *told)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


def configured(folder: Path, address: Address) -> Path:
    """A configuration whose workers a list names."""
    listed = {role: [str(address)] for role in HELD}
    (folder / "workers.json").write_text(json.dumps(listed))
    path = folder / "gateway.toml"
    path.write_text(
        f'keys = ["{KEY}"]\nlimits.drain_s = 0\n'
        f'[workers]\nlist = "workers.json"\nkey = "{WORKERS_KEY}"\n'
    )
    return path


async def test_a_gateway_holds_no_models_and_tells_what_its_workers_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        worker(monkeypatch) as address,
        gateway(configured(tmp_path, address)) as server,
        httpx.AsyncClient(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}) as http,
    ):
        assert server.held == []
        assert (server.can_dump, server.core) == (0, [0, 0])  # no core, and no reader of its memory
        card = (await http.get("/v1/agent")).json()
        assert card["voices"] == ["ava", "tom"]
        assert card["models"]["language_model"] == "scripted engine"
        asked = {"model": "m", "input": "Hello.", "voice": "bob"}
        refused = (await http.post("/v1/audio/speech", json=asked)).json()
        assert "expected a voice of scripted voice (ava, tom)" in refused["error"]["message"]
        assert await http_status(server.port, "/readyz") == 200
        os.replace(_empty_list(tmp_path), tmp_path / "workers.json")
        async with asyncio.timeout(20):
            while (await http.get("/readyz")).status_code != 503:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        reason = (await http.get("/readyz")).json()["reason"]
        assert "the worker engine is not named" in reason


async def test_an_agent_that_workers_who_come_later_cannot_serve_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listed = tmp_path / "workers.json"
    listed.write_text("{}")
    flags = {"workers.list": str(listed), "workers.key": WORKERS_KEY}
    config = gateway_config(load_config(flags=flags))
    async with (
        worker(monkeypatch) as address,
        open_backends(config, agents=(AgentConfig(voice="bob"),)) as (_, is_ready),
    ):
        assert not is_ready()
        configured(tmp_path, address)
        async with asyncio.timeout(20):
            while "calls are refused" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert "voice: expected a voice of scripted voice (ava, tom), found 'bob'" in caplog.text


def _empty_list(folder: Path) -> Path:
    path = folder / "empty.json"
    path.write_text("{}")
    return path


class Balancer:
    """One port that leads to whichever gateway is there, as a balancer without affinity does."""

    def __init__(self, *ports: int) -> None:
        self._ports = list(ports)
        self._lines: set[asyncio.Task[None]] = set()

    async def lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in self._ports:
            with suppress(OSError):
                there = await asyncio.open_connection("127.0.0.1", port)
                await asyncio.gather(_pass(reader, there[1]), _pass(there[0], writer))
                break
        writer.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def say(line: ResumingConnection, events: AsyncIterator[Any], text: str) -> str:
    await line.send({"type": "conversation.item.create", "item": typed(text)})
    await line.send({"type": "response.create", "response": {"output_modalities": ["text"]}})
    done = await seen(events, "response.done")
    return str(done["response"]["output"][0]["content"][0]["text"])


async def seen(events: AsyncIterator[Any], kind: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        async for received in events:
            if received.type == kind:
                return dict(received.event)
    raise AssertionError(f"the line ended before {kind}")


async def test_a_call_and_a_client_secret_are_as_good_at_another_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(worker(monkeypatch))
        config = configured(tmp_path, address)
        one = await stack.enter_async_context(gateway(config))
        two = await stack.enter_async_context(gateway(config))
        balancer = await asyncio.start_server(Balancer(one.port, two.port).lead, "127.0.0.1", 0)
        stack.callback(balancer.close)
        url = f"http://127.0.0.1:{balancer.sockets[0].getsockname()[1]}"
        keyed = {"authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=one.url, headers=keyed) as http:
            issued = (await http.post("/v1/realtime/client_secrets")).json()["value"]
        line = await ResumingConnection.open(url, key=KEY)
        events = line.events()
        assert await say(line, events, "two lattes") == "two lattes"
        await seen(events, "voiceloop.resume_ticket")
        one.process.kill()
        await one.process.wait()
        resumed = await seen(events, "voiceloop.resumed")
        assert resumed["items"] >= 1
        assert await say(line, events, "one tea") == "one tea"
        assert line.n_resumed == 1
        await line.close()
        offered: Any = ["realtime", f"openai-insecure-api-key.{issued}"]
        async with connect(
            f"ws://127.0.0.1:{two.port}/v1/realtime", subprotocols=offered, proxy=None
        ) as browser:
            await until(browser, "session.created")


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({}, "expected llm_url or workers.list"),
        ({"llm_url": "http://h:1/v1"}, "expected stt_url or workers.list"),
    ],
)
def test_a_gateway_without_somebody_for_a_role_does_not_start(
    named: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        gateway_config(load_config(flags=named))


def test_a_gateway_beside_services_reads_the_ends_of_turns_as_any_server_does() -> None:
    urls = {f"{part}_url": "http://h:1/v1" for part in ("stt", "llm", "tts")}
    config = gateway_config(load_config(flags=urls))
    assert end_judges(config).told == "words and voice"
    quiet = gateway_config(load_config(flags={**urls, "anticipation.off": ["p_end"]}))
    assert end_judges(quiet).told == "voice"
    assert "p_end" in end_judges(quiet).lacking[0]
    german, both = end_judges(config, ["de-AT"]), end_judges(config, ["en", "de"])
    assert (german.told, both.told) == ("silence alone", "words and voice")
    assert [len(one.lacking) for one in (german, both)] == [1, 1]
    assert "English (de-AT) is judged by voice" in german.lacking[0]
    for adapter, told in ((Path("none"), "words"), (None, "silence alone")):  # one has a head
        flags = {"preset": "embedded", "llm_model": "smollm2-135m", "llm_adapter": adapter}
        assert end_judges(load_config(flags=flags), ["de"]).told == told
