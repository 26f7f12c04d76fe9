"""How many calls one machine holds: ``python -m benchmarks.capacity [--most 16]``.

Plays the bundled call 1, 2, 4, 8, ... times at once into one server of the embedded preset, each
caller in real time and begun a little after the one before, and doubles until the gap's p95 breaks
a second. For each level: the gap, where the milliseconds go (medians of the waterfall's stages),
cut-ins, and the goodput: turns answered within 800 ms and not cut into. A run that is interrupted
writes the levels that were done.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS
from clients.call.script import load_call
from clients.connection import own_key
from clients.loadgen import Load, figures, run_load
from clients.server_process import running_server

BROKEN_P95_MS = 1000.0
GOOD_MS = 800.0
APART_S = 0.73  # between two callers: not a multiple of any frame, so that their turns fall apart


async def measure(most: int, n_turns: int, seed: int, rows: list[dict[str, Any]]) -> None:
    """Double the callers until the gap breaks.

    ``rows`` is filled level by level: figures as JSON values.

    Raises:
        ClientError: the server did not start.
    """
    n_calls = 1
    log = RESULTS / "capacity.log"
    # What breaks where is to be seen, so nobody is refused before it does.
    lets_all_in = {"VOICELOOP_LIMITS_ADMIT_BY_LOAD": "false"}
    async with running_server(("--preset", "embedded"), log=log, environment=lets_all_in) as server:
        while n_calls <= most:
            load = Load(
                server.url, n_calls, at_once=n_calls, ramp_s=APART_S * n_calls, seed=seed,
                n_turns=n_turns, within_ms=GOOD_MS, key=own_key(server.url),
            )  # fmt: skip
            result = await run_load(load)
            rows.append(
                {"n_calls": n_calls, "resident_mb": server.resident_mb(), **figures(load, result)}
            )
            show(rows[-1])
            if not holds(rows[-1]):
                break
            n_calls *= 2


def holds(row: dict[str, Any]) -> bool:
    """Whether every call went through and was answered in time."""
    p95 = row["gap_ms"]["p95"]
    return not row["broken_calls"] and p95 is not None and p95 <= BROKEN_P95_MS


def show(row: dict[str, Any]) -> None:
    gap = row["gap_ms"]
    stages = ", ".join(f"{name} {ms:g}" for name, ms in row["stage_p50_ms"].items() if ms >= 1)
    print(
        f"{row['n_calls']:>4} calls: gap p50 {gap['p50']}, p95 {gap['p95']} ms of {gap['n']} turns;"
        f" {row['cut_ins']} cut in, {row['unanswered']} unanswered, {row['broken_calls']} broken;"
        f" {row['goodput']['per_minute']} good turns a minute; {stages}",
        flush=True,
    )


def main() -> int:
    n_turns = len(load_call().turns)
    command = Benchmark(
        "capacity",
        "How many calls one machine holds: the bundled call 1, 2, 4, ... times at once, doubled "
        "until the gap's p95 breaks a second. A run that is interrupted writes the levels done.",
        seed="the room noise",
        check=False,
    )
    command.count("--most", 16, "calls at once at most")
    command.count("--turns", n_turns, "only the first turns of each call", at_most=n_turns)
    chosen = command.parse()
    rows: list[dict[str, Any]] = []
    command.measure(measure(chosen.most, chosen.turns, chosen.seed, rows))
    if not rows:
        return command.without_results()
    n_held = max((row["n_calls"] for row in rows if holds(row)), default=0)
    print(f"p95 within a second up to {n_held} calls")
    settings = {"most": chosen.most, "turns": chosen.turns}
    return command.finish(settings, levels=rows, holds=n_held)


if __name__ == "__main__":
    sys.exit(run(main))
