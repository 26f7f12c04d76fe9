"""What the network adds to a frame: ``python -m benchmarks.remote_worker [--streams 24]``.

A gateway feeds 20 ms of audio every 20 ms to so many streams of a worker without a model, which
answers each frame at its next step; measured is from the frame's feeding to its answer. The worker
is reached over the socket pair of a process of the gateway's own, and over TCP on the loopback; the
two take turns. TLS is left out.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict
from time import perf_counter
from typing import Any, Protocol

from benchmarks.harness.command_line import (
    add_check,
    benchmark_parser,
    early_end,
    judged,
    run,
    without_results,
)
from benchmarks.harness.harness import RESULTS, Bar, interleaved
from clients.arguments import number, whole_number
from clients.outputs import prepare_folder
from clients.report.percentiles import Distribution
from voiceloop.backends import RecognizerOptions
from voiceloop.cluster.address import Address
from voiceloop.cluster.host import host_worker
from voiceloop.cluster.remote_workers import RemoteWorkers
from voiceloop.operation import WorkerAddresses
from voiceloop.workers.messages import RoleSpec, WorkerSpec
from voiceloop.workers.models import WorkerRecognizer, WorkerRecognizerStream
from voiceloop.workers.supervisor import Supervisor

VARIANTS = ("socket pair", "tcp")
FRAME_S = 0.02
FRAME = bytes(640)  # 20 ms of 16 kHz PCM16
SPEC = WorkerSpec("echo", (RoleSpec("recognizer", {}, "benchmarks.cluster.echo:load"),))
KEY = "a key of one benchmark's run"
MOST_ADDED_P50_MS, MOST_ADDED_P99_MS = 0.3, 1.5


class _Opens(Protocol):
    async def open(self, stream_id: str, options: RecognizerOptions) -> WorkerRecognizerStream: ...


async def frame_times_ms(model: _Opens, n_streams: int, seconds: float, name: str) -> list[float]:
    """Milliseconds from each frame to its answer; streams begin evenly within a frame's time."""

    async def one(index: int) -> list[float]:
        stream = await model.open(f"{name}{index}.0", RecognizerOptions())
        found: list[float] = []
        events = stream.events()
        try:
            due = perf_counter() + FRAME_S * index / n_streams
            for _ in range(int(seconds / FRAME_S)):
                await asyncio.sleep(max(0.0, due - perf_counter()))
                fed = perf_counter()
                stream.feed(FRAME)
                await anext(events)
                found.append(1000 * (perf_counter() - fed))
                due += FRAME_S
        finally:
            await stream.close()
        return found

    return [ms for times in await asyncio.gather(*map(one, range(n_streams))) for ms in times]


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def measure(
    n_streams: int, seconds: float, rounds: int, found: dict[str, list[float]]
) -> None:
    """Add all frames' times of each variant."""
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(Supervisor([SPEC]))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = WorkerAddresses(recognizer=(f"127.0.0.1:{port}",), key=KEY)
        hosting = asyncio.create_task(
            host_worker(SPEC, Address("127.0.0.1", port), settings, drain_s=0)
        )
        stack.push_async_callback(_ended, hosting)
        workers = await stack.enter_async_context(RemoteWorkers(settings))
        pool = workers.of_role("recognizer")
        assert pool is not None
        models = dict(zip(VARIANTS, (own.recognizer(), WorkerRecognizer(pool)), strict=True))
        for turn, one in enumerate(interleaved(VARIANTS, rounds, warm_up=1)):
            times = await frame_times_ms(models[one.variant], n_streams, seconds, f"r{turn}s")
            if not one.is_warm_up:
                found[one.variant] += times


def main() -> int:
    parser = benchmark_parser("remote_worker", __doc__ or "")
    parser.add_argument("--streams", type=whole_number(1), default=24, help="calls at once")
    parser.add_argument("--seconds", type=number("seconds", above=0.0), default=3.0)
    parser.add_argument("--rounds", type=whole_number(1), default=5, help="of each variant")
    add_check(parser)
    chosen = parser.parse_args()
    prepare_folder(RESULTS)
    found: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    partial = early_end(measure(chosen.streams, chosen.seconds, chosen.rounds, found))
    if not all(found.values()):
        return without_results(partial or "no frame was answered")
    rows = {variant: Distribution.of(values, 3) for variant, values in found.items()}
    pair, tcp = (rows[variant] for variant in VARIANTS)
    bars = [
        Bar("tcp adds at p50", round(tcp.p50 - pair.p50, 3), MOST_ADDED_P50_MS),
        Bar("tcp adds at p99", round(tcp.p99 - pair.p99, 3), MOST_ADDED_P99_MS),
    ]
    for variant, row in rows.items():
        print(f"{variant:<12} p50 {row.p50:7.3f}  p99 {row.p99:7.3f} ms  (n {row.n})")
    settings = {"streams": chosen.streams, "seconds": chosen.seconds, "rounds": chosen.rounds}
    figures: dict[str, Any] = {variant: asdict(row) for variant, row in rows.items()}
    return judged("remote_worker", chosen, settings, bars, partial, frame_ms=figures)


if __name__ == "__main__":
    sys.exit(run(main))
