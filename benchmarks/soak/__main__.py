"""A soak: `python -m benchmarks.soak --minutes 60 --seed 1 --faults 1 --check`.

Starts one server of the embedded preset and places calls on it with recorded voices, at random and
`--calls` at once on average; one lasts the whole time, one in twenty drops its line, one in twenty
has a bad one. Every minute has `--faults` faults, drawn by the seed: workers killed and stopped,
no descriptors left, clients that are deaf, huge, deep or mute. Told are: how long nothing was heard
after a caller's words (an answer and a fallback count alike), calls that broke off, and what the
server's processes hold. The results carry the faults and every turn, each with its time.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar
from benchmarks.soak.callers import Callers, Heard, Silence
from benchmarks.soak.faults import FAULTS, inject
from benchmarks.soak.processes import GATEWAY, Sample, held, sample, slope_mb_per_h
from clients.loadgen import Load, voices_of
from clients.report.percentiles import Distribution
from clients.server_process import ServerProcess, http_status, running_server

SAMPLE_EVERY_S = 5.0
QUIET_START_S = 10.0  # before the first fault
SETTLED_AFTER_S = 600.0  # a slope is read from here on: before it memory is touched first
REST_S = 30.0  # after the last call: a dead line's slot is freed within 25 s
FEWEST_JUDGED = 100  # turns: of fewer, a p99 is the one longest silence, and tells of the machine
WINDOW_S = 10.0  # a turn that ends so soon after a fault is told apart


@dataclass(slots=True)
class Soak:
    """What a soak found. faults: (seconds since its start, what was done)."""

    heard: Heard = field(default_factory=Heard)
    faults: list[tuple[float, str]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    is_ready: bool = False  # at the end
    held_before: dict[str, float] = field(default_factory=dict)
    held_after: dict[str, float] = field(default_factory=dict)

    def turns_near_faults(self) -> list[Silence]:
        return [
            turn
            for turn in self.heard.silences
            if any(at_s - 2.0 <= turn.at_s <= at_s + WINDOW_S for at_s, _ in self.faults)
        ]


async def soak(soaked: Soak, minutes: float, at_once: int, per_minute: float, seed: int) -> None:
    """Fill `soaked`.

    Raises:
        ClientError: the server did not start.
    """
    log = RESULTS / "soak.log"
    voices = voices_of(Load())
    async with running_server(("--preset", "embedded"), log=log) as server:
        callers = Callers(server, voices, at_once, 60.0 * minutes, seed)
        soaked.heard = callers.heard
        started_at = time.monotonic()
        soaked.held_before = await _held_at_first(server)
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_watch(soaked, server, started_at))
            hand = group.create_task(_faults(soaked, server, started_at, per_minute, seed))
            await callers.run()
            hand.cancel()
            await asyncio.sleep(REST_S)
            soaked.samples += sample(server.pid, time.monotonic() - started_at)
            soaked.is_ready = await http_status(server.port, "/readyz") == 200
            soaked.held_after = await held(server)
            watch.cancel()


async def _held_at_first(server: ServerProcess) -> dict[str, float]:
    """Before any call, and once the server has looked at itself for the first time."""
    while (found := await held(server)).get("tasks") == 0.0:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    return found


async def _watch(soaked: Soak, server: ServerProcess, started_at: float) -> None:
    while True:
        soaked.samples += sample(server.pid, time.monotonic() - started_at)
        await asyncio.sleep(SAMPLE_EVERY_S)


async def _faults(
    soaked: Soak, server: ServerProcess, started_at: float, per_minute: float, seed: int
) -> None:
    """One fault after the other; all kinds come before one comes again."""
    rng = random.Random(f"faults/{seed}")
    await asyncio.sleep(QUIET_START_S)
    while per_minute:
        for fault in rng.sample(FAULTS, len(FAULTS)):
            pause_s = 60.0 / per_minute
            before_s = rng.uniform(0.1, 0.6) * pause_s
            await asyncio.sleep(before_s)
            at_s = time.monotonic() - started_at
            done = await inject(fault, server, rng)
            soaked.faults.append((round(at_s, 1), done))
            print(f"{at_s:7.0f} s  {done}", flush=True)
            await asyncio.sleep(
                max(0.0, pause_s - before_s - (time.monotonic() - started_at - at_s))
            )


def bars_of(soaked: Soak) -> list[Bar]:
    """What a soak is judged by: silence, calls lost, what is held at the end and how it grew.

    Of a short one its silences are told and not judged, and no process is old enough for a slope.
    """
    silent = Distribution.of([turn.silent_ms for turn in soaked.heard.silences])
    bars = [
        Bar("calls lost", float(len(soaked.heard.lost)), 0, ""),
        Bar("ready at the end", float(soaked.is_ready), 1, "", at_least=True),
    ]
    if silent.n >= FEWEST_JUDGED:
        bars += [
            Bar("silent after the caller's words, p99", silent.p99, 1500.0, n=silent.n),
            Bar("silent after the caller's words, most", silent.most, 4000.0),
        ]
    gateway = [one for one in soaked.samples if one.name == GATEWAY]
    if gateway:
        grown = gateway[-1].n_descriptors - gateway[0].n_descriptors
        bars.append(Bar("descriptors more than at the start", float(grown), 0, ""))
    for what, before in soaked.held_before.items():
        more = soaked.held_after.get(what)
        if more is not None:
            bars.append(Bar(f"{what} more than at the start", more - before, 0, ""))
    for name in sorted({one.name for one in soaked.samples}):
        slope = slope_mb_per_h(soaked.samples, name, SETTLED_AFTER_S)
        if slope is not None:
            most = 1.0 if name == GATEWAY else 5.0
            bars.append(Bar(f"{name}: resident memory", slope, most, "MB/h"))
    return bars


def show(soaked: Soak) -> None:
    heard, near = soaked.heard, soaked.turns_near_faults()
    silent = Distribution.of([turn.silent_ms for turn in heard.silences])
    beside = Distribution.of([turn.silent_ms for turn in near])
    gaps = Distribution.of([turn.gap_ms for turn in heard.silences if turn.gap_ms is not None])
    n_unanswered = sum(not turn.is_answered for turn in heard.silences)
    n_cut = sum(turn.is_cut_in for turn in heard.silences)
    print(
        f"{heard.n_calls} calls, {heard.n_dropped} dropped by their own line, {heard.n_refused} "
        f"refused, {len(heard.lost)} lost; {len(heard.silences)} turns, {n_unanswered} without an "
        f"answer, {n_cut} cut into; {len(soaked.faults)} faults\n"
        f"silent: p50 {silent.p50}, p99 {silent.p99}, most {silent.most} ms; of {beside.n} turns "
        f"near a fault p50 {beside.p50}, p99 {beside.p99}; gap p50 {gaps.p50}, p95 {gaps.p95}"
    )
    for why in heard.lost:
        print(f"lost {why}")


def main() -> int:
    command = Benchmark(
        "soak",
        "Calls for minutes or hours with a fault in every minute: how long a caller hears nothing, "
        "which calls are lost, what grows. An interrupted run writes what it has.",
        seed="the callers and the faults",
    )
    command.amount("--minutes", 60.0, "minutes", "for how long calls are placed", above=1.0)
    command.count("--calls", 2, "at once, on average")
    command.amount("--faults", 1.0, "faults", "a minute", at_least=0.0)
    chosen = command.parse()
    soaked = Soak()
    command.measure(soak(soaked, chosen.minutes, chosen.calls, chosen.faults, chosen.seed))
    if not soaked.heard.silences:
        return command.without_results("no turn was over")
    show(soaked)
    settings: dict[str, Any] = {
        "preset": "embedded", "minutes": chosen.minutes, "calls": chosen.calls,
        "faults_per_minute": chosen.faults,
    }  # fmt: skip
    return command.finish(
        settings, bars_of(soaked), faults=soaked.faults, heard=asdict(soaked.heard),
        samples=[asdict(one) for one in soaked.samples],
        held={"before": soaked.held_before, "after": soaked.held_after},
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(run(main))
