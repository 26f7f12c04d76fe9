"""``voiceloop cluster``: what is checked before a start; what gateways tell of themselves."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from clients.server_process import free_port
from tests.fakes import instant_backends
from tests.tables import each_row
from tests.voiceloop.server.test_connections import UPGRADE
from voiceloop.agent import AgentConfig
from voiceloop.cli import build_parser
from voiceloop.cluster.control.plan import read_plan
from voiceloop.config import Config
from voiceloop.errors import ConfigError
from voiceloop.server.app import Gateway
from voiceloop.server.cluster_command import new_keys, run_cluster, settings_for
from voiceloop.server.process import listen, report_of, serve

pytestmark = pytest.mark.virtual_time

PLAN = "[[workers]]\nroles = ['engine', 'recognizer', 'voice']\n"


def arguments(tmp_path: Path, configuration: str, verb: str = "up") -> argparse.Namespace:
    (tmp_path / "mine.toml").write_text(configuration, encoding="utf-8")
    plan = tmp_path / "cluster.toml"
    plan.write_text("config = 'mine.toml'\n" + PLAN, encoding="utf-8")
    return build_parser().parse_args(["cluster", verb, "--config", str(plan)])


@each_row(
    ("configuration", "told"),
    [
        ("prot = 1", "the cluster's configuration: expected a known key, found 'prot'"),
        ("keys_file = 'keys'", "keys_file: expected an absolute path, the same on every machine"),
        ("port = ", "expected TOML"),
    ],
)
@each_row("verb", ["up", "deploy"])
def test_a_wrong_configuration_is_told_before_anything_starts(
    tmp_path: Path, configuration: str, told: str, verb: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        run_cluster(arguments(tmp_path, configuration, verb), {})


def test_a_wrong_variable_is_told_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="VOICELOOP_PROT"):
        run_cluster(arguments(tmp_path, ""), {"VOICELOOP_PROT": "1"})


def test_the_settings_of_this_environment_go_along(tmp_path: Path) -> None:
    groups = read_plan(arguments(tmp_path, "").config)
    environ = {"VOICELOOP_LOG_LEVEL": "info", "HOME": "/home"}
    assert settings_for(groups, environ) == {"VOICELOOP_LOG_LEVEL": "info"}


def test_a_cluster_takes_no_canary_from_its_configuration(tmp_path: Path) -> None:
    groups = read_plan(arguments(tmp_path, "[canary]\nv2 = 0.05").config)
    with pytest.raises(ConfigError, match=r"canary: expected none.*deploy --canary"):
        settings_for(groups, {})


def test_processes_share_keys_where_nobody_has_named_any(tmp_path: Path) -> None:
    groups = read_plan(arguments(tmp_path, "").config)
    one, other = new_keys(groups, {}), new_keys(groups, {})
    assert one.keys() == {"VOICELOOP_WORKERS_KEY", "VOICELOOP_SECRET_KEY"}
    assert one["VOICELOOP_WORKERS_KEY"] != other["VOICELOOP_WORKERS_KEY"]
    assert len(one["VOICELOOP_WORKERS_KEY"]) == 32


def test_keys_of_the_environment_stay_and_go_into_no_argument_of_ray(tmp_path: Path) -> None:
    groups = read_plan(arguments(tmp_path, "").config)
    keys = {
        "VOICELOOP_SECRET_KEY": "a secret of this cluster",
        "VOICELOOP_WORKERS_KEY": "a key of workers",
    }
    assert new_keys(groups, keys) == {}
    assert settings_for(groups, {**keys, "VOICELOOP_KEYS": "a-key-of-callers"}) == {}


@pytest.mark.parametrize(
    ("configuration", "variable"),
    [
        ("secret_key = 'a secret of the cluster'", "VOICELOOP_SECRET_KEY"),
        ("[workers]\nkey = 'a key of the workers'", "VOICELOOP_WORKERS_KEY"),
        ("llm_url = 'https://x.example'\nllm_key = 'of the service'", "VOICELOOP_LLM_KEY"),
        ("[llm]\nheaders = { key = 'of the service' }", "VOICELOOP_LLM_HEADERS"),
    ],
)
def test_a_key_in_a_clusters_configuration_is_refused(
    tmp_path: Path, configuration: str, variable: str
) -> None:
    wanted = f"expected {variable} in the environment of each machine instead"
    with pytest.raises(ConfigError, match=wanted) as caught:
        run_cluster(arguments(tmp_path, configuration), {})
    assert "of the" not in str(caught.value).replace("the environment of", "")


def test_a_clusters_configuration_may_say_where_a_key_is(tmp_path: Path) -> None:
    named = "llm_url = 'https://x.example'\nllm_key = 'file:/etc/key'\n[llm.headers]\na = '${KEY}'"
    assert settings_for(read_plan(arguments(tmp_path, named).config), {}) == {}


def test_gateways_of_one_machine_share_its_port() -> None:
    with listen("127.0.0.1", 0, is_shared=True) as one:
        port = one.getsockname()[1]
        with listen("127.0.0.1", port, is_shared=True):
            pass
        with pytest.raises(ConnectionRefusedError):  # until one serves
            socket.create_connection(("127.0.0.1", port))
        one.listen()
        with pytest.raises(ConfigError, match="expected a free port"):
            listen("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port)):
            pass


def test_a_gateway_that_loads_is_given_no_calls_of_a_port_that_it_shares() -> None:
    with listen("127.0.0.1", 0, is_shared=True) as late:
        port = late.getsockname()[1]
        with listen("127.0.0.1", port, is_shared=True) as serving:
            serving.setblocking(True)
            serving.listen()
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", port), timeout=5.0):
                    serving.accept()[0].close()


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """A server's models are there once this is set."""
    loaded = asyncio.Event()

    @asynccontextmanager
    async def fakes(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        await loaded.wait()
        yield instant_backends(), lambda: True

    monkeypatch.setattr("voiceloop.server.process.open_backends", fakes)
    return loaded


@pytest.mark.real_time  # connections outside of the loop
async def test_a_shared_port_is_answered_once_the_models_are_there(loading: asyncio.Event) -> None:
    port, ready = free_port(), asyncio.Event()
    serving = asyncio.create_task(
        serve(Config(port=port), agent=AgentConfig(), ready=lambda _: ready.set(), shares_port=True)
    )
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await asyncio.shield(serving)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    loading.set()
    async with asyncio.timeout(30):
        await ready.wait()
        async with connect(f"ws://127.0.0.1:{port}/v1/realtime", proxy=None) as client:
            assert json.loads(await client.recv())["type"] == "session.created"
        os.kill(os.getpid(), signal.SIGTERM)
        await serving


@pytest.mark.real_time  # connections outside of the loop
async def test_a_shared_port_that_somebody_has_taken_meanwhile_is_told(
    loading: asyncio.Event,
) -> None:
    port = free_port()
    serving = asyncio.create_task(serve(Config(port=port), agent=AgentConfig(), shares_port=True))
    await asyncio.sleep(0)  # it is bound
    with socket.create_server(("127.0.0.1", port)):
        loading.set()
        with pytest.raises(ConfigError, match=f"expected a free port, found that .*{port}"):
            async with asyncio.timeout(30):
                await serving


@pytest.mark.real_time  # connections outside of the loop
async def test_who_has_come_before_a_shared_port_was_let_go_of_is_let_in(
    loading: asyncio.Event,
) -> None:
    loading.set()
    port, ready = free_port(), asyncio.Event()
    serving = asyncio.create_task(
        serve(Config(port=port), agent=AgentConfig(), ready=lambda _: ready.set(), shares_port=True)
    )
    async with asyncio.timeout(30):
        await ready.wait()
        heard = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        os.kill(os.getpid(), signal.SIGTERM)  # before the loop has seen any of them
        lines = [await asyncio.open_connection(sock=one) for one in heard]
        for _, writer in lines:
            writer.write(UPGRADE)
        for reader, writer in lines:
            assert b" 101 " in await reader.readline()
            writer.close()
        await serving


async def test_a_gateway_tells_how_much_of_it_is_used() -> None:
    gateway = Gateway(Config(), AgentConfig(), instant_backends())
    assert report_of(gateway, "http://127.0.0.1:8080").state == "ready"
    gateway.is_ready = lambda: False
    told = report_of(gateway, "http://127.0.0.1:8080")
    assert (told.state, told.address, told.used) == ("loading", "http://127.0.0.1:8080", 0.0)
    assert told.trouble == "a model's service does not answer"
    gateway.admission.drain()
    assert report_of(gateway, "").state == "draining"
