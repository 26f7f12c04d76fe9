"""The table of faults watches what it says it watches: no server needed."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.soak.faults import ENGINE, SPEECH, Fault, bounds_of, restore
from clients.server_process import ServerProcess
from tests.chaos import chaos

SERVER = cast(ServerProcess, SimpleNamespace(pid=1, port=1))
STARTS_A_CHILD = """
import subprocess, sys
sys.stdin.readline()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
sys.stdin.readline()
child.kill()
"""


async def nothing(server: Any, rng: Any) -> str:
    return "nothing"


class Watched:
    """A server whose workers and door are as they are set; each look passes a little time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.workers = {ENGINE: 10, SPEECH: 11}
        self.status = 200
        monkeypatch.setattr(chaos, "workers_of", lambda pid: dict(self.workers))
        monkeypatch.setattr(chaos, "http_status", self.look)
        monkeypatch.setattr(chaos, "LOOK_EVERY_S", 0.0)

    async def look(self, port: int, path: str) -> int:
        return self.status

    def watch(self, fault: Fault, injecting: asyncio.Task[str]) -> asyncio.Task[float | None]:
        watching = chaos.until_ready(SERVER, fault, dict(self.workers), injecting)
        return asyncio.create_task(watching)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


async def looks() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_fault_that_takes_no_worker_is_looked_at_once_it_is_over(watched: Watched) -> None:
    over = asyncio.Event()

    async def until_over() -> str:
        await over.wait()
        return "done"

    injecting = asyncio.create_task(until_over())
    ready = watched.watch(Fault("a large frame", nothing), injecting)
    await looks()
    assert not ready.done()  # the door is open still: nothing has been done to it
    watched.status = 503
    over.set()
    await looks()
    assert not ready.done()
    watched.status = 200
    assert await ready is not None


async def test_a_fault_that_takes_two_workers_is_over_when_both_are_new(watched: Watched) -> None:
    injecting = asyncio.create_task(nothing(None, None))
    ready = watched.watch(Fault("kill both", nothing, (ENGINE, SPEECH)), injecting)
    await looks()
    watched.workers = {ENGINE: 20, SPEECH: 11}
    await looks()
    assert not ready.done()
    watched.workers = {ENGINE: 20}
    await looks()
    assert not ready.done()
    watched.workers = {ENGINE: 20, SPEECH: 21}
    assert await ready is not None


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", STARTS_A_CHILD],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    process.communicate("\n")


def test_what_is_started_under_a_bound_is_freed_of_it_too(parent: subprocess.Popen[str]) -> None:
    kind = resource.RLIMIT_FSIZE
    bounds = bounds_of(parent.pid, kind)
    resource.prlimit(parent.pid, kind, (0, bounds[parent.pid][1]))
    assert parent.stdin is not None and parent.stdout is not None
    parent.stdin.write("\n")
    parent.stdin.flush()
    child = int(parent.stdout.readline())
    assert resource.prlimit(child, kind)[0] == 0
    restore(parent.pid, kind, bounds)
    assert resource.prlimit(child, kind) == resource.prlimit(parent.pid, kind) == bounds[parent.pid]
