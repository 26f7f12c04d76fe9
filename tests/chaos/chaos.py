"""The table of faults, row by row, on one server: `python -m tests.chaos.chaos`.

For each row a caller asks in the moment of the fault. Told are how long nothing was heard (a line,
the reply and the fallback count alike), whether the call lives and is answered afterwards, and when
the server was ready again. `chaos.json` in the folder of results has all of it. Start here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from benchmarks.soak.faults import FAULTS, Fault, inject
from benchmarks.soak.processes import workers_of
from clients.connection import typed
from clients.server_process import ServerProcess, http_status, running_server

QUESTION = "What time do you open on Friday?"
SETTLED_S = 15.0  # the most that a caller waits for the end of an answer, or for the next one
LOOK_EVERY_S = 0.05
SPREAD_S = 0.1  # a fault that takes its time is under way by then


@dataclass(frozen=True, slots=True)
class Met:
    """What a caller met. silent_s, ready_s: None where it never came."""

    fault: str
    done: str
    silent_s: float | None
    ready_s: float | None
    lives: bool
    missed: tuple[str, ...] = ()


async def ask(socket: ClientConnection) -> float:
    """Ask in text, to be answered in sound; returns when."""
    await socket.send(json.dumps({"type": "conversation.item.create", "item": typed(QUESTION)}))
    await socket.send(json.dumps({"type": "response.create"}))
    return time.monotonic()


async def events(socket: ClientConnection) -> AsyncIterator[dict[str, Any]]:
    async for message in socket:
        yield json.loads(message)


async def answered(socket: ClientConnection, asked_s: float) -> tuple[float | None, str]:
    """Seconds to the first sound, and how the last response ended; a line has one of its own."""
    silent_s: float | None = None
    status, n_open = "none", 0
    try:
        async with asyncio.timeout(SETTLED_S):
            async for event in events(socket):
                match event["type"]:
                    case "response.created":
                        n_open += 1
                    case "response.output_audio.delta" if silent_s is None:
                        silent_s = time.monotonic() - asked_s
                    case "response.done":
                        status, n_open = event["response"]["status"], n_open - 1
                        if not n_open and silent_s is not None:
                            return silent_s, status
    except (TimeoutError, WebSocketException):
        pass
    return silent_s, status


async def until_ready(
    server: ServerProcess, fault: Fault, before: dict[str, int], injecting: asyncio.Task[str]
) -> float | None:
    """Seconds until callers are let in, by other processes where the fault takes some.

    before: the workers there were. From the fault's end where it takes none: until then the server
    is as it was before, or not as it will be.
    """
    if not fault.workers:
        await asyncio.wait({injecting})
    began_s = time.monotonic()
    while time.monotonic() - began_s < fault.ready_s + 10.0:
        now = workers_of(server.pid)
        is_new = all(now.get(name) not in (None, before.get(name)) for name in fault.workers)
        if is_new and await http_status(server.port, "/readyz") == 200:
            return time.monotonic() - began_s
        await asyncio.sleep(LOOK_EVERY_S)
    return None


async def meet(fault: Fault, server: ServerProcess, rng: random.Random) -> Met:
    """One caller, one fault."""
    before = workers_of(server.pid)
    async with connect(server.url, compression=None) as socket:
        injecting = asyncio.create_task(inject(fault, server, rng))
        ready = asyncio.create_task(until_ready(server, fault, before, injecting))
        await asyncio.sleep(SPREAD_S)
        silent_s, _ = await answered(socket, await ask(socket))
        done, ready_s = await injecting, await ready
        _, status = await answered(socket, await ask(socket))
    silent_s = None if silent_s is None else round(silent_s, 2)
    ready_s = None if ready_s is None else round(ready_s, 2)
    missed = [
        *(["the caller"] if silent_s is None or silent_s > fault.silent_s else []),
        *(["ready"] if ready_s is None or ready_s > fault.ready_s else []),
        *(["the call"] if status != "completed" else []),
    ]
    return Met(fault.name, done, silent_s, ready_s, status == "completed", tuple(missed))


async def chaos(names: list[str], seed: int, log: Path) -> list[Met]:
    """Raises: ClientError where the server does not start."""
    rng = random.Random(seed)
    met: list[Met] = []
    async with running_server(("--preset", "embedded"), log=log) as server:
        for fault in FAULTS:
            if not names or fault.name in names:
                met.append(await meet(fault, server, rng))
                print(line_of(met[-1], fault), flush=True)
    return met


def line_of(met: Met, fault: Fault) -> str:
    missed = f"  MISSED: {', '.join(met.missed)}" if met.missed else ""
    return (
        f"{met.fault:18} silent {met.silent_s} s (bar {fault.silent_s:g}), ready {met.ready_s} s "
        f"(bar {fault.ready_s:g}), {'lives' if met.lives else 'is lost'}{missed}"
    )


def run(names: list[str], seed: int, folder: Path) -> list[Met]:
    """Run the rows of these names (all, where there is none) and write `chaos.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    met = asyncio.run(chaos(names, seed, folder / "chaos.log"))
    took_s = round(time.monotonic() - began_s, 1)
    told = {"seed": seed, "took_s": took_s, "faults": [asdict(one) for one in met]}
    (folder / "chaos.json").write_text(json.dumps(told, indent=1) + "\n")
    print(f"{len(met)} faults in {took_s} s")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos.chaos", description=__doc__)
    parser.add_argument("names", nargs="*", help="of faults (default: all of them)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out"), help="a folder (default: out)")
    chosen = parser.parse_args()
    return int(any(one.missed for one in run(chosen.names, chosen.seed, chosen.out)))


if __name__ == "__main__":
    sys.exit(main())
