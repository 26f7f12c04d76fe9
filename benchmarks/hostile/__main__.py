"""One hostile client beside a caller: `python -m benchmarks.hostile --check`.

Starts a server of the embedded preset. A caller asks in text, over and over, first alone and then
beside one hostile client of each kind. Told are how much longer the caller waits for the first
token (p50), how late the gateway's event loop wakes (p99, to the bound of its histogram), and how
much more memory the server's processes hold afterwards.

Then the floods, for ``--flood-s`` seconds each, against a server with TLS: how much longer the
caller in place waits (p95), how long a new one waits to be let in, and how long the server lets
one connection of the flood last.

`--part words` sends canary words and keys through every failure instead, and looks for them in all
that servers tell (`canary_words.py`).
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar
from benchmarks.hostile.canary_words import FAILURES, WORKER_FAILURES, Leaks, leaks_of_all
from benchmarks.hostile.clients import HOSTILE, LASTS_S, Hostile
from benchmarks.hostile.floods import FLOODS, UNVERIFIED, Flood
from clients.connection import typed
from clients.report.percentiles import Distribution
from clients.server_process import ServerProcess, running_server
from voiceloop.cluster.tls import draw_certificate

QUESTION = "What time do you open on Friday?"
LATE_S = 10.0  # an answer that never comes counts as so late
PAUSE_S = 0.15  # between two questions
WARM_S = 2.0  # memory is touched, buffers are made
LET_IN_EVERY_S = 2.0
SETTLE_S = 3.0  # after each kind, before memory is read
LAG = "voiceloop_loop_lag_seconds_bucket"


@dataclass(frozen=True, slots=True)
class Beside:
    """What one kind cost. added_ms: to the caller's wait. lag_ms: p99. grown_mb: of memory."""

    name: str
    wait_ms: float
    added_ms: float
    lag_ms: float
    grown_mb: float
    n_asked: int


@dataclass(frozen=True, slots=True)
class Flooded:
    """What one flood cost. ratio: of the caller's wait to the one alone, p95. let_in_ms: of new
    callers the longest. longest_s: that one connection of the flood lasted; of at most most_s."""

    name: str
    wait_ms: float
    ratio: float
    let_in_ms: float
    n_let_in: int
    grown_mb: float
    n_asked: int
    longest_s: float
    most_s: float | None
    n_opened: int
    n_cut: int


@dataclass(slots=True)
class Found:
    alone_ms: float = 0.0
    kinds: list[Beside] = field(default_factory=list)
    floods: list[Flooded] = field(default_factory=list)


async def ask(socket: ClientConnection) -> float:
    """Milliseconds to the first token of a text reply."""
    item = typed(QUESTION)
    # Out of the conversation, so that the last question is as long as the first.
    reply = {"conversation": "none", "output_modalities": ["text"], "input": [item]}
    began_s, first_s = time.monotonic(), None
    await socket.send(json.dumps({"type": "response.create", "response": reply}))
    try:
        async with asyncio.timeout(LATE_S):
            async for message in socket:
                event = json.loads(message)
                if event["type"] == "response.output_text.delta" and first_s is None:
                    first_s = time.monotonic()
                if event["type"] == "response.done":
                    break
    except TimeoutError:
        pass
    return 1000.0 * (LATE_S if first_s is None else first_s - began_s)


async def asking(socket: ClientConnection, for_s: float) -> list[float]:
    until_s = time.monotonic() + for_s
    waits = []
    while time.monotonic() < until_s:
        waits.append(await ask(socket))
        await asyncio.sleep(PAUSE_S)
    return waits


async def lag_counts(server: ServerProcess) -> dict[float, float]:
    """How often the loop woke at most so many seconds late, since the server began."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://127.0.0.1:{server.port}/metrics")).text
    found: dict[float, float] = {}
    for line in text.splitlines():
        if line.startswith(LAG):
            bound, _, count = line.partition('le="')[2].partition('"} ')
            found[float(bound)] = float(count)
    return found


def p99_ms(before: dict[float, float], after: dict[float, float]) -> float:
    """The smallest bound of the histogram that 99 of 100 wakes between the two kept."""
    counts = {bound: count - before.get(bound, 0.0) for bound, count in after.items()}
    n_all = max(counts.values(), default=0.0)
    return 1000.0 * min(b for b, n in counts.items() if n >= 0.99 * n_all) if n_all else 0.0


async def beside(found: Found, kind: Hostile, server: ServerProcess) -> Beside:
    async with connect(server.url, compression=None) as socket:
        await ask(socket)
        before, held_mb = await lag_counts(server), server.resident_mb()
        attacking = asyncio.create_task(kind.attack(server))
        waits = await asking(socket, LASTS_S)
        after = await lag_counts(server)
        await attacking
    await asyncio.sleep(SETTLE_S)
    wait_ms = Distribution.of(waits).p50 or 0.0
    grown_mb = server.resident_mb() - held_mb
    lag_ms = p99_ms(before, after)
    return Beside(kind.name, wait_ms, wait_ms - found.alone_ms, lag_ms, grown_mb, len(waits))


async def let_in(server: ServerProcess, for_s: float) -> list[float]:
    """Milliseconds until a new caller's session is there, every two seconds."""
    until_s = time.monotonic() + for_s
    waits = []
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(LATE_S), connect(server.url, ssl=server.tls) as socket:
                await socket.recv()
                waits.append(1000.0 * (time.monotonic() - began_s))
        except (OSError, WebSocketException):  # TimeoutError is one: refused counts as never
            waits.append(1000.0 * LATE_S)
        await asyncio.sleep(LET_IN_EVERY_S)
    return waits


async def flooded(flood: Flood, for_s: float) -> Flooded:
    """One flood against a server of its own, whose caller is measured alone just before."""
    with tempfile.NamedTemporaryFile(prefix="voiceloop-", suffix=".pem") as pem:
        pem.write(draw_certificate()[0])
        pem.flush()
        arguments = ("--preset", "embedded", "--certfile", pem.name, "--keyfile", pem.name)
        log = RESULTS / f"hostile-{flood.name.replace(' ', '-')}.log"
        async with running_server(arguments, log=log, tls=UNVERIFIED) as server:
            async with connect(server.url, compression=None, ssl=server.tls) as socket:
                await asking(socket, WARM_S)
                alone_ms = Distribution.of(await asking(socket, for_s / 2)).p95 or 0.0
                held_mb = server.resident_mb()
                held, waits, new = await asyncio.gather(
                    flood.attack(server, for_s), asking(socket, for_s), let_in(server, for_s)
                )
                grown_mb = server.resident_mb() - held_mb
    wait_ms = Distribution.of(waits).p95 or 0.0
    return Flooded(
        flood.name, wait_ms, wait_ms / alone_ms, max(new), len(new), grown_mb, len(waits),
        held.longest_s, flood.most_s, held.n_opened, held.n_cut,
    )  # fmt: skip


async def measure(found: Found, names: list[str], flood_s: float) -> None:
    """Fill `found`. Raises: ClientError where the server does not start."""
    if not names or {kind.name for kind in HOSTILE} & set(names):
        await measure_kinds(found, names)
    for flood in FLOODS:
        if not names or flood.name in names:
            found.floods.append(await flooded(flood, flood_s))
            print(flood_line(found.floods[-1]), flush=True)


async def measure_kinds(found: Found, names: list[str]) -> None:
    # The caller is to be let in beside each of them: what is measured is what happens inside.
    lets_all_in = {"VOICELOOP_LIMITS_ADMIT_BY_LOAD": "false"}
    log = RESULTS / "hostile.log"
    async with running_server(("--preset", "embedded"), log=log, environment=lets_all_in) as server:
        async with connect(server.url, compression=None) as socket:
            await asking(socket, 2.0)  # memory is touched, buffers are made
            found.alone_ms = Distribution.of(await asking(socket, LASTS_S)).p50 or 0.0
        print(f"alone: {found.alone_ms:.0f} ms to the first token", flush=True)
        for kind in HOSTILE:
            if not names or kind.name in names:
                found.kinds.append(await beside(found, kind, server))
                print(line_of(found.kinds[-1]), flush=True)


def line_of(kind: Beside) -> str:
    return (
        f"{kind.name:20} {kind.added_ms:+7.0f} ms, loop late by {kind.lag_ms:5.0f} ms at most "
        f"(p99), {kind.grown_mb:+6.1f} MB; {kind.n_asked} questions"
    )


def flood_line(flood: Flooded) -> str:
    return (
        f"{flood.name:20} {flood.ratio:.2f} times the wait (p95 {flood.wait_ms:.0f} ms, "
        f"{flood.n_asked} questions), let in after {flood.let_in_ms:.0f} ms at most "
        f"({flood.n_let_in}), {flood.grown_mb:+.1f} MB; of {flood.n_opened} connections "
        f"{flood.n_cut} were closed, after {flood.longest_s:.1f} s at most"
    )


def bars_of(found: Found) -> list[Bar]:
    bars = []
    for flood in found.floods:
        bars += [
            Bar(
                f"{flood.name}: the caller's wait, p95", flood.ratio, 1.2, "times", n=flood.n_asked
            ),
            Bar(f"{flood.name}: a new caller let in", flood.let_in_ms, 1000.0, n=flood.n_let_in),
        ]
        if flood.most_s is not None:
            bars += [
                Bar(f"{flood.name}: one connection lasts", flood.longest_s, flood.most_s, "s"),
                Bar(f"{flood.name}: connections closed", flood.n_cut, 1, "", at_least=True),
            ]
    for kind in found.kinds:
        bars += [
            Bar(f"{kind.name}: the caller waits longer by", kind.added_ms, 50.0, n=kind.n_asked),
            Bar(f"{kind.name}: loop lag, p99", kind.lag_ms, 20.0),
            Bar(f"{kind.name}: memory", kind.grown_mb, 50.0, "MB"),
        ]
    return bars


def words(command: Benchmark) -> int:
    """The part of the canary words: none of them is found anywhere."""
    leaks = Leaks()
    command.measure(leaks_of_all(leaks, RESULTS))
    for place, found in leaks.found.items():
        print(f"{place}: {', '.join(found)}")
    for name in leaks.missed:
        print(f"it never came about: {name}")
    bars = [
        Bar("canary words found", float(leaks.n_found), 0.0, "", n=leaks.n_failures),
        Bar("failures that never came about", float(len(leaks.missed)), 0.0, ""),
    ]
    settings = {"services": len(FAILURES), "workers": len(WORKER_FAILURES)}
    return command.finish(settings, bars, name="hostile_words", found=leaks.found)


def main() -> int:
    command = Benchmark("hostile", "One hostile client of each kind beside a caller.")
    command.choice("--part", ("clients", "words"), "clients", "what is tried")
    command.parser.add_argument(
        "names", nargs="*", metavar="KIND", help="of clients (default: all)"
    )
    command.amount("--flood-s", 60.0, "s", "how long each flood lasts", at_least=2.0)
    chosen = command.parse()
    if chosen.part == "words":
        return words(command)
    found = Found()
    command.measure(measure(found, chosen.names, chosen.flood_s))
    if not found.kinds and not found.floods:
        return command.without_results()
    settings = {"preset": "embedded", "seconds_each": LASTS_S, "flood_s": chosen.flood_s}
    kinds = [asdict(kind) for kind in found.kinds]
    floods = [asdict(flood) for flood in found.floods]
    return command.finish(
        settings, bars_of(found), alone_ms=found.alone_ms, kinds=kinds, floods=floods
    )


if __name__ == "__main__":
    sys.exit(run(main))
