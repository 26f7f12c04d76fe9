"""What is done to a server while it serves: one row a fault, each by its own hand from outside.

Nothing of the server knows of them: signals to its workers, a bound on its open files, and clients
that do on the wire what no client should.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from benchmarks.soak.processes import n_descriptors, workers_of
from clients.server_process import ServerProcess

_WITHOUT_FILES_S = 3.0
_DEAF_S = 20.0
_N_IDLE = 200  # connections that say nothing
_IDLE_S = 8.0
_LARGE = 3 << 20  # bytes: more than a frame may have
_DEPTH = 200_000

Injection = Callable[[ServerProcess, random.Random], Awaitable[str]]  # -> what was done


@dataclass(frozen=True, slots=True)
class Fault:
    """`inject` does it and says what it did, in a few words."""

    name: str
    inject: Injection


def _worker(server: ServerProcess, rng: random.Random) -> tuple[str, int]:
    workers = sorted(workers_of(server.pid).items())
    return rng.choice(workers) if workers else ("gone already", 0)


async def _signal(server: ServerProcess, rng: random.Random, number: signal.Signals) -> str:
    name, pid = _worker(server, rng)
    with suppress(ProcessLookupError):  # it ended while we looked
        if pid:
            os.kill(pid, number)
    return f"{number.name} to {name}"


async def _kill(server: ServerProcess, rng: random.Random) -> str:
    return await _signal(server, rng, signal.SIGKILL)


async def _stop(server: ServerProcess, rng: random.Random) -> str:
    return await _signal(server, rng, signal.SIGSTOP)


async def _kill_both(server: ServerProcess, rng: random.Random) -> str:
    workers = workers_of(server.pid)
    for pid in workers.values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return f"SIGKILL to {' and '.join(sorted(workers))}"


async def _no_files(server: ServerProcess, rng: random.Random) -> str:
    """A worker dies while the gateway may open nothing more, so that it cannot be started anew."""
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (n_descriptors(server.pid), hard))
    try:
        done = await _kill(server, rng)
        await asyncio.sleep(_WITHOUT_FILES_S)
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))
    return f"{done}, no free descriptor for {_WITHOUT_FILES_S:g} s"


async def _deaf(server: ServerProcess, rng: random.Random) -> str:
    """A client that asks for long answers and reads none."""
    async with connect(server.url, compression=None, max_queue=1) as socket:
        words = "Tell me all about the menu and the hours. " * 20
        item = {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": words}],
        }
        for _ in range(20):
            await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
            await socket.send(json.dumps({"type": "response.create"}))
            await asyncio.sleep(_DEAF_S / 20)
        socket.transport.abort()
    return f"a client that reads nothing for {_DEAF_S:g} s"


async def _large(server: ServerProcess, rng: random.Random) -> str:
    async with connect(server.url, compression=None) as socket:
        await socket.send('{"type": "' + "x" * _LARGE + '"}')
        async for _ in socket:
            pass
    return f"a frame of {_LARGE >> 20} MiB"


async def _deep(server: ServerProcess, rng: random.Random) -> str:
    async with connect(server.url, compression=None) as socket:
        nested = "[" * _DEPTH + "]" * _DEPTH
        await socket.send('{"type": "session.update", "session": ' + nested + "}")
        await asyncio.sleep(1.0)
    return f"JSON {_DEPTH} deep"


async def _idle(server: ServerProcess, rng: random.Random) -> str:
    """Connections at the door that say nothing."""
    writers = []
    for _ in range(_N_IDLE):
        with suppress(OSError):
            writers.append((await asyncio.open_connection("127.0.0.1", server.port))[1])
    await asyncio.sleep(_IDLE_S)
    for writer in writers:
        writer.close()
    return f"{_N_IDLE} connections that say nothing"


FAULTS = (
    Fault("kill", _kill),
    Fault("stop", _stop),
    Fault("kill both", _kill_both),
    Fault("no files", _no_files),
    Fault("deaf client", _deaf),
    Fault("large frame", _large),
    Fault("deep JSON", _deep),
    Fault("idle connections", _idle),
)


async def inject(fault: Fault, server: ServerProcess, rng: random.Random) -> str:
    """Do it; what its own client meets (a closed connection, a refusal) is part of it."""
    try:
        return await fault.inject(server, rng)
    except (OSError, WebSocketException, TimeoutError) as error:
        return f"{fault.name}: ended with {type(error).__name__}"
