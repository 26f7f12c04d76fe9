"""What callers notice of a cluster's faults: ``python -m benchmarks.cluster [--kills 20]``.

A cluster on Ray is started here, on three machines as Ray sees them, of gateways and scripted
engines (no models). First so many typed calls are placed at once: how evenly they lie, and how much
of what engines read they had read before, beside what one engine would have. Then, in calls that go
on all the while, an engine, a gateway, the directory and a whole machine are killed, each so many
times. Then, beside callers who speak, as many processes are started as a deploy would start, which
serve nobody (what that costs is this machine's share of what comes after it), another version is
rolled out, and a machine is drained. Told is how many calls were lost, the longest that anybody
waited for an answer, and the gap's p95 over that before each change; a run that is interrupted
writes what it has by then.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cluster.bystanders import Bystanders
from benchmarks.cluster.load import FaultResult, Load, spoken
from benchmarks.cluster.machines import Machines, machines
from benchmarks.cluster.scripted import FOLDER
from benchmarks.cluster.spoken_call import utterances
from benchmarks.cluster.spread import spread
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import Bar
from clients.server_process import free_port, running_server
from voiceloop.cluster.control.plan import Group, read_plan
from voiceloop.cluster.control.status import Status
from voiceloop.cluster.worker_list import WorkerList
from voiceloop.models.resolve import ROLE_KEYS

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
SETTLED_WITHIN_S = 90.0
BEFORE_S, NOTICED_S = 0.5, 1.0  # of a fault: calls begin anew, and it shows in the status
CALM_S = 40.0  # before a change on purpose, to tell what gaps are without one: some 70 turns
N_STARTS = 3
FAULTS = ("engine", "gateway", "directory", "node")
CHANGES = ("bystanders", "deploy", "drain")
CALLERS_FIRST = -5  # of this process, where it may: callers are elsewhere, and so is most of Ray
MOST_IMBALANCE, LEAST_HITS = 1.25, 0.95
MOST_SILENT_S, MOST_RESUMING_S = 3.0, 5.0
MOST_P95_RATIO = 1.2
MOST_START_S = 2.0
KEYS = {
    "VOICELOOP_WORKERS_KEY": "a key of one benchmark's run",
    "VOICELOOP_SECRET_KEY": "a secret of one benchmark",
}
SETTINGS = {
    "VOICELOOP_LIMITS_DRAIN_S": "20",
    "VOICELOOP_LIMITS_ADMIT_BY_LOAD": "false",
    "VOICELOOP_LIMITS_CONNECTIONS_PER_ADDRESS": "1000",
}


@dataclass(slots=True)
class Found:
    """What has been measured by now. starts_s: of a gateway, until it takes calls."""

    spread: dict[str, Any] = field(default_factory=dict)
    starts_s: list[float] = field(default_factory=list)
    faults: list[FaultResult] = field(default_factory=list)


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


async def kill(control: Any, places: Machines, fault: str) -> None:
    """One process of this kind, the busiest, or one machine, without a warning."""
    if fault == "directory":
        await asyncio.to_thread(places.lose_directory)
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
    rests_s: list[float | None] = []
    async with Load(url, at_once) as load:
        for _ in range(times):
            await asyncio.sleep(BEFORE_S)
            killed_s = time.monotonic()
            await kill(control, places, fault)
            await asyncio.sleep(NOTICED_S)
            try:
                await settled(control)
            except TimeoutError:
                rests_s.append(None)
            else:
                rests_s.append(round(time.monotonic() - killed_s, 2))
        await asyncio.sleep(1.0)
    return load.result(fault, times, rests_s=rests_s)


async def with_change(
    control: Any,
    url: str,
    named: str,
    change: Callable[[], Awaitable[object]],
    holds: Callable[[Status], bool],
    at_once: int,
) -> FaultResult:
    """What is done on purpose, beside calls that go on: nobody is to notice it."""
    async with Load(url, at_once, spoken) as load:
        await asyncio.sleep(CALM_S)
        changed_s = time.monotonic()
        await change()
        await settled(control, holds)
        await asyncio.sleep(NOTICED_S)
    return load.result(named, 1, changed_s=changed_s)


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
        lambda: asyncio.to_thread(control.deploy, groups, {}),
        lambda status: all(one.version not in before for one in status.processes),
        at_once,
    )


async def with_bystanders(
    control: Any, url: str, folder: Path, groups: Sequence[Group], at_once: int
) -> FaultResult:
    """Nothing changes, and as much is started as if all did."""
    status: Status = await asyncio.to_thread(control.status)
    engines, speech = (
        tuple(one.address for one in status.processes if role in one.roles)
        for role in ("engine", "voice")
    )
    workers = WorkerList(engine=engines, recognizer=speech, voice=speech)
    beside = Bystanders(groups, KEYS | SETTINGS, COMMAND, workers, folder)
    return await with_change(
        control, url, "bystanders", beside.start_and_end, lambda status: True, at_once
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
        lambda: asyncio.to_thread(control.drain, left),
        lambda status: all(one.machine != left for one in status.processes),
        at_once,
    )
    await asyncio.to_thread(lambda: control.drain(left, is_left=False))
    return told


async def start_s(control: Any, keys: dict[str, str]) -> float:
    """How long one more gateway of these workers takes until it takes calls."""
    status: Status = await asyncio.to_thread(control.status)
    named = {
        f"VOICELOOP_{ROLE_KEYS[role].upper()}_URL": f"worker://{one.address}"
        for one in status.processes
        for role in one.roles
    }
    command = (sys.executable, "-P", "-m", "voiceloop", "gateway")
    async with running_server(command=command, environment=keys | named) as server:
        return server.ready_s


async def measure(chosen: Any, places: Machines, folder: Path, found: Found) -> None:
    """Add to `found`, one after the other."""
    from voiceloop.cluster import ray as control

    port = free_port()
    url = f"ws://127.0.0.1:{port}/v1/realtime"
    control.join(places.address)
    try:
        sizes = (chosen.gateways, chosen.engines)
        control.begin(groups_of(folder, port, *sizes, "one"), SETTINGS, tuple(KEYS), COMMAND)
        await settled(control)
        await asyncio.sleep(2.0)  # until gateways have joined the workers they were told of
        for _ in range(N_STARTS):
            found.starts_s.append(round(await start_s(control, KEYS | SETTINGS), 2))
        found.spread = await spread(control, url, folder, chosen.calls)
        print(json.dumps({"starts_s": found.starts_s, **found.spread}), flush=True)
        for fault in chosen.faults:
            times = chosen.node_kills if fault == "node" else chosen.kills
            tell(found, await with_fault(control, places, url, fault, times, chosen.at_once))
        utterances()  # read and resampled before anybody is waited for
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, CALLERS_FIRST)
        for change in chosen.changes:
            match change:
                case "bystanders":
                    beside = groups_of(folder, free_port(), *sizes, "beside")
                    told = with_bystanders(control, url, folder, beside, chosen.at_once)
                case "deploy":
                    groups = groups_of(folder, port, *sizes, "two")
                    told = with_deploy(control, url, groups, chosen.at_once)
                case _:
                    told = with_drain(control, url, chosen.at_once)
            tell(found, await told)
    finally:
        control.leave()


def tell(found: Found, one: FaultResult) -> None:
    found.faults.append(one)
    print(json.dumps(asdict(one)), flush=True)


def bars_of(found: Found) -> list[Bar]:
    """Of what was measured."""
    bars = [Bar("a gateway's start", max(found.starts_s), MOST_START_S, "s", n=len(found.starts_s))]
    if told := found.spread:
        bars += [
            Bar("calls that engines differ by", told["imbalance_engines"], MOST_IMBALANCE, "x"),
            Bar("calls that gateways differ by", told["imbalance_gateways"], MOST_IMBALANCE, "x"),
            Bar("hits of one engine's", told["share_of_one_engines"], LEAST_HITS, "",
                at_least=True),
            Bar("calls lost at once", told["lost"], 0, ""),
        ]  # fmt: skip
    for one in found.faults:
        bars.append(Bar(f"{one.fault}: calls lost", one.lost, 0, "", n=one.calls))
        most_s = MOST_RESUMING_S if one.fault == "gateway" else MOST_SILENT_S
        if one.p95_ratio is not None:
            bars.append(Bar(f"{one.fault}: gap p95", one.p95_ratio, MOST_P95_RATIO, "x"))
            bars.append(Bar(f"{one.fault}: turns unanswered", one.unanswered, 0, ""))
        bars.append(Bar(f"{one.fault}: silent at most", one.silent_s, most_s, "s", n=one.times))
        bars.append(Bar(f"{one.fault}: never at rest again", one.n_restless, 0, "", n=one.times))
    return bars


def main() -> int:
    command = Benchmark("cluster", __doc__ or "")
    for flag, default, help in (
        ("--gateways", 4, "that serve"), ("--engines", 3, "that serve"),
        ("--calls", 200, "placed at once"), ("--kills", 20, "of each kind of process"),
        ("--node-kills", 20, "of machines"), ("--at-once", 8, "calls beside a kill"),
    ):  # fmt: skip
        command.count(flag, default, help)
    add = command.parser.add_argument
    add("--faults", nargs="*", choices=FAULTS, default=FAULTS, help="which kills (default: all)")
    told = "what is done on purpose (default: all)"
    add("--changes", nargs="*", choices=CHANGES, default=CHANGES, help=told)
    chosen = command.parse()
    names = ("gateways", "engines", "calls", "kills", "node_kills", "at_once")
    found, settings = Found(), {key: getattr(chosen, key) for key in names}
    with tempfile.TemporaryDirectory(prefix="voiceloop-cluster-") as folder:
        environ = {**KEYS, FOLDER: folder, "RAY_kill_child_processes_on_worker_exit": "0"}
        with machines(environ) as places:
            command.measure(measure(chosen, places, Path(folder), found))
            if not found.starts_s:
                return command.without_results()
            faults = [asdict(one) for one in found.faults]
            figures = {"starts_s": found.starts_s, "spread": found.spread, "faults": faults}
            return command.finish(settings, bars_of(found), **figures)


if __name__ == "__main__":
    sys.exit(run(main))
