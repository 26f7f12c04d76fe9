"""What it costs a caller that all models are elsewhere: ``python -m benchmarks.remote_gap``.

The bundled call is played to a server of the embedded preset, and to a gateway whose engine,
recognizer and voice are the same models in workers behind TCP on the loopback; the two take turns,
call by call. TLS is left out. A run that is interrupted writes what it has by then.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from benchmarks.harness.command_line import (
    add_check,
    add_seed,
    benchmark_parser,
    early_end,
    judged,
    run,
    without_results,
)
from benchmarks.harness.harness import RESULTS, Bar, interleaved
from clients.arguments import whole_number
from clients.call.script import load_call
from clients.connection import own_key
from clients.loadgen import Load, run_load, summary_of
from clients.outputs import prepare_folder
from clients.server_process import free_port, running_server

HERE, ELSEWHERE = "here", "elsewhere"
VARIANTS = (HERE, ELSEWHERE)
COMMAND = (sys.executable, "-m", "voiceloop")
SHARED = {"VOICELOOP_WORKERS_KEY": "a key of one benchmark's run"}
PROCESSES = (("engine",), ("recognizer", "voice"))  # as the embedded preset has them
MOST_ADDED_P50_MS = 5.0
READY_S = 180.0  # of two servers and two workers that load side by side


@asynccontextmanager
async def worker(roles: Sequence[str]) -> AsyncIterator[str]:
    """Its address; it may still be loading."""
    address = f"127.0.0.1:{free_port()}"
    named = [word for role in roles for word in ("--role", role)]
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "worker", *named, "--listen", address, "--preset", "embedded",
        stdin=asyncio.subprocess.DEVNULL, env={**os.environ, **SHARED},
    )  # fmt: skip
    try:
        yield address
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@asynccontextmanager
async def gateway() -> AsyncIterator[str]:
    """The URL of a server that holds no models."""
    async with AsyncExitStack() as stack:
        environment = {**SHARED, "VOICELOOP_LIMITS_DRAIN_S": "0"}
        for roles in PROCESSES:
            address = await stack.enter_async_context(worker(roles))
            environment |= {f"VOICELOOP_WORKERS_{role.upper()}": address for role in roles}
        server = await stack.enter_async_context(
            running_server(
                ("--agent", "cafe"), command=(*COMMAND, "gateway"), log=RESULTS / "gateway.log",
                ready_timeout_s=READY_S, environment=environment,
            )
        )  # fmt: skip
        yield server.url


async def measure(rounds: int, n_turns: int, seed: int, found: dict[str, list[Any]]) -> None:
    """Add the calls of each variant. Raises: ClientError."""
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(
            running_server(
                ("--preset", "embedded"), log=RESULTS / "here.log", ready_timeout_s=READY_S
            )
        )
        urls = {HERE: here.url, ELSEWHERE: await stack.enter_async_context(gateway())}
        for one in interleaved(VARIANTS, rounds, warm_up=1):
            url = urls[one.variant]
            load = Load(url, n_turns=n_turns, seed=seed + one.index, key=own_key(url))
            result = await run_load(load)
            if not one.is_warm_up:
                found[one.variant] += result.calls


def main() -> int:
    parser = benchmark_parser("remote_gap", __doc__ or "")
    n_most = len(load_call().turns)
    parser.add_argument("--rounds", type=whole_number(1), default=4, help="calls of each variant")
    parser.add_argument("--turns", type=whole_number(1, n_most), default=8, help="of each call")
    add_seed(parser, "of the callers")
    add_check(parser)
    chosen = parser.parse_args()
    prepare_folder(RESULTS)
    found: dict[str, list[Any]] = {variant: [] for variant in VARIANTS}
    partial = early_end(measure(chosen.rounds, chosen.turns, chosen.seed, found))
    if not all(found.values()):
        return without_results(partial or "no call went through")
    rows = {variant: summary_of(calls) for variant, calls in found.items()}
    for variant, row in rows.items():
        gap = row["gap_ms"]
        print(f"{variant:<10} gap p50 {gap['p50']}, p95 {gap['p95']} ms of {gap['n']} turns")
    added = rows[ELSEWHERE]["gap_ms"]["p50"] - rows[HERE]["gap_ms"]["p50"]
    bars = [Bar("behind TCP adds to the gap's p50", added, MOST_ADDED_P50_MS)]
    settings = {"rounds": chosen.rounds, "turns": chosen.turns}
    return judged("remote_gap", chosen, settings, bars, partial, variants=rows)


if __name__ == "__main__":
    sys.exit(run(main))
