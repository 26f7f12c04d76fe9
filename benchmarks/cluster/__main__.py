"""What callers notice of a cluster's faults: ``python -m benchmarks.cluster [--kills 20]``.

A cluster on Ray is started here, on three machines as Ray sees them, of gateways and scripted
engines (no models). First so many typed calls are placed at once: how evenly they lie, and how much
of what engines read they had read before, beside what one engine would have. Then, in calls that go
on all the while, an engine, a gateway, the directory and a whole machine are killed, each so many
times, another version is rolled out and a machine is drained. Told is how many calls were lost, and
the longest that anybody waited for an answer.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cluster.machines import Machines, machines
from benchmarks.cluster.scripted import FOLDER, SLOWLY
from benchmarks.cluster.text_call import TypedCall
from benchmarks.harness.command_line import benchmark_parser, exit_code, run
from benchmarks.harness.harness import Bar, bar_table, results, write_results
from clients.arguments import whole_number
from clients.server_process import free_port
from voiceloop.cluster.control.plan import Group, read_plan
from voiceloop.cluster.control.status import Status

COMMAND = (sys.executable, "-m", "benchmarks.cluster.scripted")
PLAN = """
version = "{version}"
[gateways]
port = {port}
least = {gateways}
cpus = 0.0
resources = {{ place = 1.0 }}
[[workers]]
roles = ["engine"]
least = {engines}
cpus = 0.0
resources = {{ place = 1.0 }}
[[workers]]
roles = ["recognizer", "voice"]
least = 2
cpus = 0.0
resources = {{ place = 1.0 }}
"""
N_AGENTS = 8  # instructions that calls begin with, by Zipf
SETTLED_WITHIN_S = 90.0
RAMP_S = 15.0  # of the calls that are placed at once
BEFORE_S, NOTICED_S = 0.5, 1.0  # of a fault: calls begin anew, and it shows in the status
CALM_S = 10.0  # before a change on purpose, to tell what waits are without one
N_LOOKS = 8  # at the loads, a second apart
FAULTS = ("engine", "gateway", "directory", "node")
MOST_IMBALANCE, LEAST_HITS = 1.25, 0.95
MOST_SILENT_S, MOST_RESUMING_S = 3.0, 5.0
MOST_P95_RATIO = 1.2


@dataclass(frozen=True, slots=True)
class FaultResult:
    """What one kind of fault cost. silent_s: the longest that a caller waited for an answer.

    placed_again: calls that broke before anything was answered. p95_s: of all these waits.
    p95_ratio: that after a change on purpose, over that before.
    """

    fault: str
    times: int
    calls: int
    lost: int
    resumed: int
    placed_again: int
    p95_s: float
    silent_s: float
    took_s: float
    p95_ratio: float | None = None
    why: tuple[str, ...] = ()


def groups_of(folder: Path, port: int, gateways: int, engines: int, version: str) -> Any:
    path = folder / "cluster.toml"
    text = PLAN.format(version=version, port=port, gateways=gateways, engines=engines)
    path.write_text(text, encoding="utf-8")
    return read_plan(path)


async def settled(control: Any, holds: Callable[[Status], bool] = lambda _: True) -> Status:
    async with asyncio.timeout(SETTLED_WITHIN_S):
        while True:
            status: Status = await asyncio.to_thread(control.status)
            if status.is_settled and holds(status):
                return status
            await asyncio.sleep(0.25)


def call(
    url: str, draw: random.Random, n_turns: int, pause_s: float, question: str = "please"
) -> TypedCall:
    agent = draw.choices(range(N_AGENTS), [1 / (1 + rank) for rank in range(N_AGENTS)])[0]
    return TypedCall(url, f"You are agent {agent}. " * 40, n_turns, pause_s, question)


async def spread(control: Any, url: str, folder: Path, n_calls: int) -> dict[str, Any]:
    """How evenly calls lie, and what engines had read before."""
    draw = random.Random(0)
    calls = [call(url, draw, 10, 1.0, SLOWLY) for _ in range(n_calls)]

    async def later(index: int) -> TypedCall:
        await asyncio.sleep(index * RAMP_S / n_calls)
        return await calls[index].run()

    placed = [asyncio.create_task(later(index)) for index in range(n_calls)]
    await asyncio.sleep(RAMP_S + 2.0)
    loads = [await loads_of(control) for _ in range(N_LOOKS)]
    ended = await asyncio.gather(*placed)
    of_gateways, of_engines = (
        [sum(of_one) for of_one in zip(*(load[group] for load in loads), strict=True)]
        for group in ("gateways", "engine")
    )
    hits, hits_of_one = prefix_hits(folder)
    return {
        "calls": n_calls,
        "lost": sum(bool(one.lost) for one in ended),
        "why": sorted({one.lost for one in ended if one.lost})[:3],
        "calls_of_gateways": of_gateways,
        "imbalance_gateways": imbalance(of_gateways),
        "calls_of_engines": of_engines,
        "imbalance_engines": imbalance(of_engines),
        "prefix_hits": round(hits, 4),
        "prefix_hits_of_one_engine": round(hits_of_one, 4),
        "share_of_one_engines": round(hits / hits_of_one, 4) if hits_of_one else None,
    }


async def loads_of(control: Any) -> dict[str, list[int]]:
    """Calls of each gateway and streams of each engine, now."""
    await asyncio.sleep(1.0)
    status: Status = await asyncio.to_thread(control.status)
    found: dict[str, list[int]] = {"gateways": [], "engine": []}
    for one in status.processes:
        if one.group in found:
            found[one.group].append(one.streams)
    return found


def imbalance(loads: list[int]) -> float:
    """The most loaded one's share beside the mean."""
    return round(max(loads) / (sum(loads) / len(loads)), 3) if sum(loads) else 0.0


def prefix_hits(folder: Path) -> tuple[float, float]:
    """Share of messages that were read before: by each engine for itself, by one for all."""
    opened: list[tuple[float, str, list[str]]] = []
    for path in folder.glob("engine-*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            at_s, _, chain = json.loads(line)
            opened.append((at_s, path.name, chain))
    opened.sort(key=lambda one: one[0])
    own: dict[str, set[str]] = {}
    everybody = set[str]()
    n_own = n_one = n_all = 0
    for _, engine, chain in opened:
        known = own.setdefault(engine, set())
        n_own += sum(digest in known for digest in chain)
        n_one += sum(digest in everybody for digest in chain)
        n_all += len(chain)
        known.update(chain)
        everybody.update(chain)
    return n_own / max(1, n_all), n_one / max(1, n_all)


class Load:
    """Calls that go on, one after the other, until it is left."""

    def __init__(self, url: str, at_once: int) -> None:
        self.ended: list[TypedCall] = []
        self._url, self._at_once = url, at_once
        self._is_over = False
        self._began_s = time.monotonic()
        self._callers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        self._callers = [asyncio.create_task(self._call_on(n)) for n in range(self._at_once)]
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._is_over = True
        await asyncio.gather(*self._callers)

    async def _call_on(self, seed: int) -> None:
        draw = random.Random(seed)
        await asyncio.sleep(draw.random())
        while not self._is_over:
            self.ended.append(await call(self._url, draw, 40, 0.25).run())

    def result(self, fault: str, times: int, changed_s: float | None = None) -> FaultResult:
        """changed_s: when what is called a fault was begun on purpose."""
        lost = [one.lost for one in self.ended if one.lost]
        waits = [wait for one in self.ended for wait in one.waits]
        ratio = None
        if changed_s is not None:
            before = [wait_s for asked_s, wait_s in waits if asked_s < changed_s]
            after = [wait_s for asked_s, wait_s in waits if asked_s >= changed_s]
            ratio = round(p95(after) / p95(before), 3)
        return FaultResult(
            fault,
            times,
            calls=len(self.ended),
            lost=len(lost),
            resumed=sum(one.n_resumed for one in self.ended),
            placed_again=sum(one.n_placed_again for one in self.ended),
            p95_s=round(p95([wait_s for _, wait_s in waits]), 3),
            silent_s=round(max((wait_s for _, wait_s in waits), default=0.0), 2),
            took_s=round(time.monotonic() - self._began_s, 1),
            p95_ratio=ratio,
            why=tuple(lost[:3]),
        )


def p95(waits_s: list[float]) -> float:
    return sorted(waits_s)[int(0.95 * (len(waits_s) - 1))] if waits_s else math.nan


async def kill(control: Any, places: Machines, fault: str) -> None:
    """One process of this kind, the busiest, or one machine, without a warning."""
    if fault == "directory":
        await asyncio.to_thread(control.lose_directory)
        return
    status: Status = await asyncio.to_thread(control.status)
    if fault == "node":
        await asyncio.to_thread(places.lose_one, status)
        return
    group = "gateways" if fault == "gateway" else fault
    victims = [one for one in status.processes if one.group == group and one.pid]
    os.kill(max(victims, key=lambda one: one.streams).pid, signal.SIGKILL)


async def with_fault(
    control: Any, places: Machines, url: str, fault: str, times: int, at_once: int
) -> FaultResult:
    async with Load(url, at_once) as load:
        for _ in range(times):
            await asyncio.sleep(BEFORE_S)
            await kill(control, places, fault)
            await asyncio.sleep(NOTICED_S)
            await settled(control)
        await asyncio.sleep(1.0)
    return load.result(fault, times)


async def with_change(
    control: Any,
    url: str,
    named: str,
    change: Callable[[], object],
    holds: Callable[[Status], bool],
    at_once: int,
) -> FaultResult:
    """What is done on purpose, beside calls that go on: nobody is to notice it."""
    async with Load(url, at_once) as load:
        await asyncio.sleep(CALM_S)
        changed_s = time.monotonic()
        await asyncio.to_thread(change)
        await settled(control, holds)
        await asyncio.sleep(NOTICED_S)
    return load.result(named, 1, changed_s)


async def with_deploy(
    control: Any, url: str, groups: tuple[Group, ...], at_once: int
) -> FaultResult:
    """Another version of everything."""
    status: Status = await asyncio.to_thread(control.status)
    before = {one.version for one in status.processes}
    return await with_change(
        control,
        url,
        "deploy",
        lambda: control.deploy(groups, {}),
        lambda status: all(one.version not in before for one in status.processes),
        at_once,
    )


async def with_drain(control: Any, url: str, at_once: int) -> FaultResult:
    """The machine that most calls are on is left."""
    status: Status = await asyncio.to_thread(control.status)
    streams = Counter[str]()
    for one in status.processes:
        streams[one.machine] += one.streams + 1
    [(left, _)] = streams.most_common(1)
    told = await with_change(
        control,
        url,
        "drain",
        lambda: control.drain(left),
        lambda status: all(one.machine != left for one in status.processes),
        at_once,
    )
    await asyncio.to_thread(lambda: control.drain(left, is_left=False))
    return told


async def measure(
    arguments: Any, places: Machines, folder: Path
) -> tuple[dict[str, Any], list[FaultResult]]:
    from voiceloop.cluster import ray as control

    port = free_port()
    url = f"ws://127.0.0.1:{port}/v1/realtime"
    control.join(places.address)
    try:
        sizes = (arguments.gateways, arguments.engines)
        keys = {
            "VOICELOOP_WORKERS_KEY": "a key of one benchmark's run",
            "VOICELOOP_SECRET_KEY": "a secret of one benchmark",
            "VOICELOOP_LIMITS_DRAIN_S": "20",
            "VOICELOOP_LIMITS_ADMIT_BY_LOAD": "false",
            "VOICELOOP_LIMITS_CONNECTIONS_PER_ADDRESS": "1000",
        }
        control.begin(groups_of(folder, port, *sizes, "one"), keys, COMMAND)
        await settled(control)
        await asyncio.sleep(2.0)  # until gateways have joined the workers they were told of
        placed = await spread(control, url, folder, arguments.calls)
        print(json.dumps(placed), flush=True)
        found = []
        for fault in FAULTS:
            times = arguments.node_kills if fault == "node" else arguments.kills
            told = await with_fault(control, places, url, fault, times, arguments.at_once)
            found.append(told)
            print(json.dumps(asdict(found[-1])), flush=True)
        deployed = groups_of(folder, port, *sizes, "two")
        for changing in (
            with_deploy(control, url, deployed, arguments.at_once),
            with_drain(control, url, arguments.at_once),
        ):
            found.append(await changing)
            print(json.dumps(asdict(found[-1])), flush=True)
        return placed, found
    finally:
        control.leave()


def main() -> int:
    parser = benchmark_parser("cluster", __doc__ or "")
    parser.add_argument("--gateways", type=whole_number(1, 16), default=4)
    parser.add_argument("--engines", type=whole_number(1, 16), default=3)
    parser.add_argument("--calls", type=whole_number(1, 1000), default=200)
    parser.add_argument("--kills", type=whole_number(1, 100), default=20)
    parser.add_argument("--node-kills", type=whole_number(1, 100), default=20)
    parser.add_argument("--at-once", type=whole_number(1, 100), default=8)
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bar is missed")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="voiceloop-cluster-") as folder:
        environ = {FOLDER: folder, "RAY_kill_child_processes_on_worker_exit": "0"}
        with machines(environ) as places:
            spread, faults = asyncio.run(measure(chosen, places, Path(folder)))
    bars = [
        Bar("calls that engines differ by", spread["imbalance_engines"], MOST_IMBALANCE, "x"),
        Bar("calls that gateways differ by", spread["imbalance_gateways"], MOST_IMBALANCE, "x"),
        Bar("hits of one engine's", spread["share_of_one_engines"], LEAST_HITS, "", at_least=True),
        Bar("calls lost at once", spread["lost"], 0, ""),
    ]
    for one in faults:
        bars.append(Bar(f"{one.fault}: calls lost", one.lost, 0, "", n=one.calls))
        most_s = MOST_RESUMING_S if one.fault == "gateway" else MOST_SILENT_S
        if one.p95_ratio is not None:
            bars.append(Bar(f"{one.fault}: wait p95", one.p95_ratio, MOST_P95_RATIO, "x"))
        bars.append(Bar(f"{one.fault}: silent at most", one.silent_s, most_s, "s", n=one.times))
    print(bar_table(bars))
    settings = {
        key: getattr(chosen, key)
        for key in ("gateways", "engines", "calls", "kills", "node_kills", "at_once")
    }
    told = [asdict(one) for one in faults]
    data = results("cluster", 0, settings, bars, spread=spread, faults=told)
    print(f"written: {write_results(data)}")
    return exit_code(bars, None, is_checked=chosen.check)


if __name__ == "__main__":
    sys.exit(run(main))
