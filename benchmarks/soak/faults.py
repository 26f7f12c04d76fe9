"""What is done to a server while it serves: one row a fault, each by its own hand from outside.

Nothing of the server knows of them: signals to its workers, bounds on what it may open and write,
and clients that do on the wire what no client should. The soak draws from these rows at random;
`tests/chaos` takes them one by one and holds each to its bars.
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
from clients.connection import typed
from clients.server_process import ServerProcess, process_tree

ENGINE, SPEECH = "engine", "speech"  # the workers of the embedded preset
_WITHOUT_FILES_S = 3.0
_FULL_S = 5.0
_DEAF_S = 20.0
_N_IDLE = 200  # connections that say nothing
_IDLE_S = 8.0
_LARGE = 3 << 20  # bytes: more than a frame may have
_DEPTH = 200_000

Injection = Callable[[ServerProcess, random.Random], Awaitable[str]]  # -> what was done


@dataclass(frozen=True, slots=True)
class Fault:
    """`inject` does it and says what it did, in a few words.

    workers: those that are lost by it, and started anew. silent_s: the most that a caller may hear
    nothing who asks at that moment. ready_s: the most until the server lets callers in again, from
    the fault's beginning, or from its end where no worker is lost.
    """

    name: str
    inject: Injection
    workers: tuple[str, ...] = ()
    silent_s: float = 3.0
    ready_s: float = 8.0


def _signal(number: signal.Signals, *names: str) -> Injection:
    """Send it to these workers."""

    async def send(server: ServerProcess, rng: random.Random) -> str:
        workers = workers_of(server.pid)
        for name in names:
            with suppress(ProcessLookupError):  # it ended while we looked
                if name in workers:
                    os.kill(workers[name], number)
        return f"{number.name} to {' and '.join(names)}"

    return send


Bounds = dict[int, tuple[int, int]]  # soft and hard, by process


def bounds_of(pid: int, kind: int) -> Bounds:
    """Of this process and all that it has started."""
    found: Bounds = {}
    for each in process_tree(pid):
        with suppress(ProcessLookupError):
            found[each] = resource.prlimit(each, kind)
    return found


def restore(pid: int, kind: int, bounds: Bounds) -> None:
    """As they were; what was started meanwhile, under its parent's bound, has the parent's."""
    resource.prlimit(pid, kind, bounds[pid])  # first: what it starts from here on inherits that
    for each in process_tree(pid):
        with suppress(ProcessLookupError):
            resource.prlimit(each, kind, bounds.get(each, bounds[pid]))


async def _no_files(server: ServerProcess, rng: random.Random) -> str:
    """A worker dies while the gateway may open nothing more, so that it cannot be started anew."""
    kind = resource.RLIMIT_NOFILE
    bounds = bounds_of(server.pid, kind)
    resource.prlimit(server.pid, kind, (n_descriptors(server.pid), bounds[server.pid][1]))
    try:
        done = await _signal(signal.SIGKILL, ENGINE)(server, rng)
        await asyncio.sleep(_WITHOUT_FILES_S)
    finally:
        restore(server.pid, kind, bounds)
    return f"{done}, no free descriptor for {_WITHOUT_FILES_S:g} s"


async def _disk_full(server: ServerProcess, rng: random.Random) -> str:
    """Nobody of the server can write a byte into a file, and the engine is started anew so."""
    kind = resource.RLIMIT_FSIZE
    bounds = bounds_of(server.pid, kind)
    for pid, (_, hard) in bounds.items():
        resource.prlimit(pid, kind, (0, hard))
    try:
        done = await _signal(signal.SIGKILL, ENGINE)(server, rng)
        await asyncio.sleep(_FULL_S)
    finally:
        restore(server.pid, kind, bounds)
    return f"no file may grow for {_FULL_S:g} s, {done}"


async def _deaf(server: ServerProcess, rng: random.Random) -> str:
    """A client that asks for long answers and reads none."""
    async with connect(server.url, compression=None, max_queue=1) as socket:
        words = "Tell me all about the menu and the hours. " * 20
        item = typed(words)
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
    Fault("kill the engine", _signal(signal.SIGKILL, ENGINE), (ENGINE,)),
    Fault("kill speech", _signal(signal.SIGKILL, SPEECH), (SPEECH,)),
    Fault("kill both", _signal(signal.SIGKILL, ENGINE, SPEECH), (ENGINE, SPEECH)),
    Fault("stop the engine", _signal(signal.SIGSTOP, ENGINE), (ENGINE,)),
    Fault("stop speech", _signal(signal.SIGSTOP, SPEECH), (SPEECH,)),
    Fault("no files", _no_files, (ENGINE,), ready_s=8.0 + _WITHOUT_FILES_S),
    Fault("disk full", _disk_full, (ENGINE,)),
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
