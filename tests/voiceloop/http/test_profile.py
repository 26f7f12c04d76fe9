"""A trace of the models' work is for an operator on the machine, bounded, and one at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import instant_backends
from tests.voiceloop.http_client import AGENT, KEY
from tests.voiceloop.http_client import http_client as any_client
from voiceloop.backends import Backends
from voiceloop.config import Config
from voiceloop.errors import BackendRefused
from voiceloop.server.app import Gateway, build_app

URL = "/debug/profile"
OPERATORS_KEY = "the operator's own key"


def write(path: Path) -> None:
    path.write_text("{}")


def take(path: Path) -> tuple[str, int]:
    """What is in a file, and who may read it; then the file goes."""
    found = path.read_text(), path.stat().st_mode & 0o777
    path.unlink()
    return found


class Worker:
    """Writes a trace when it is let."""

    def __init__(self, error: str = "") -> None:
        self.asked: list[tuple[str, float]] = []
        self.paths: list[Path] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self._error = error

    async def profile(self, name: str, path: str, seconds: float) -> None:
        self.asked.append((name, seconds))
        self.paths.append(Path(path))
        await self.may_end.wait()
        if self._error:
            raise BackendRefused(self._error)
        write(Path(path))

    def backends(self) -> Any:
        return replace(instant_backends(), profile=self.profile)


@asynccontextmanager
async def http_client(backends: Backends) -> AsyncIterator[httpx.AsyncClient]:
    """One that sends the operator's key, on the server's machine."""
    async with any_client(backends, Config(metrics_key=OPERATORS_KEY)) as http:
        http.headers["Authorization"] = f"Bearer {OPERATORS_KEY}"
        yield http


async def test_a_trace_is_written_where_only_the_server_reads_it() -> None:
    worker = Worker()
    async with http_client(worker.backends()) as http:
        told = (await http.post(f"{URL}?seconds=2&worker=speech")).json()
    assert worker.asked == [("speech", 2.0)]
    assert take(Path(told["path"])) == ("{}", 0o600)


@pytest.mark.parametrize("seconds", ["0", "11", "-1", "nan", "soon", "1e9"])
async def test_its_time_is_bounded(seconds: str) -> None:
    worker = Worker()
    async with http_client(worker.backends()) as http:
        refused = await http.post(f"{URL}?seconds={seconds}")
    assert refused.status_code == 400 and not worker.asked


async def test_there_is_one_at_a_time() -> None:
    worker = Worker()
    worker.may_end.clear()
    async with http_client(worker.backends()) as http:
        first = asyncio.create_task(http.post(URL))
        while not worker.asked:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await http.post(URL)).status_code == 503
        worker.may_end.set()
        assert (await first).status_code == 200
    os.unlink(worker.paths[0])


async def test_a_worker_that_has_none_says_so_and_leaves_no_file() -> None:
    worker = Worker("expected torch, found none")
    async with http_client(worker.backends()) as http:
        refused = await http.post(URL)
    assert refused.status_code == 400 and "found none" in refused.json()["error"]["message"]
    assert not worker.paths[0].exists()


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"])
async def test_who_comes_through_a_proxy_is_not_on_the_machine(header: str) -> None:
    worker = Worker()
    async with http_client(worker.backends()) as http:
        refused = await http.post(URL, headers={header: "192.0.2.1"})
    assert refused.status_code == 403 and not worker.asked


@pytest.mark.parametrize(
    ("client", "key", "operators_key", "status"),
    [
        ("192.0.2.1", OPERATORS_KEY, OPERATORS_KEY, 403),
        ("127.0.0.1", KEY, OPERATORS_KEY, 401),  # a caller's, as through a proxy that says nothing
        ("127.0.0.1", KEY, "", 403),
    ],
)
async def test_no_callers_key_has_a_worker_stand_still(
    client: str, key: str, operators_key: str, status: int
) -> None:
    worker = Worker()
    gateway = Gateway(Config(keys=(KEY,), metrics_key=operators_key), AGENT)
    gateway.backends = worker.backends()
    transport = httpx.ASGITransport(build_app(gateway), client=(client, 5000))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        refused = await http.post(URL, headers={"Authorization": f"Bearer {key}"})
    assert refused.status_code == status and not worker.asked


async def test_the_next_trace_replaces_the_last_one() -> None:
    worker = Worker()
    async with http_client(worker.backends()) as http:
        paths = [Path((await http.post(URL)).json()["path"]) for _ in range(2)]
    assert not paths[0].exists() and take(paths[1])[0] == "{}"
