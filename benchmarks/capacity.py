"""How many calls one machine holds: ``python -m benchmarks.capacity [--most 16]``.

Plays the bundled call 1, 2, 4, 8, ... times at once into one server of the embedded preset, each
caller in real time and begun a little after the one before, and doubles until the gap's p95 breaks
a second. For each level: the gap, where the milliseconds go (medians of the waterfall's stages),
cut-ins, and the goodput: turns answered within 800 ms and not cut into. A run that is interrupted
writes the levels that were done.

    python -m benchmarks.capacity --fakes --most 64 --turns 4 --check

With ``--fakes`` the models are scripted, in a process beside the gateway: four callers one after
the other, then so many at once, the gap of these over that of those, what a second of a call costs
each process, and where the gateway computes, by name.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar
from clients.call.script import load_call
from clients.connection import own_key
from clients.loadgen import Load, figures, run_load
from clients.server_process import process_tree, running_server

BROKEN_P95_MS = 1000.0
GOOD_MS = 800.0
APART_S = 0.73  # between two callers: not a multiple of any frame, so that their turns fall apart


FAKES = (sys.executable, "-m", "benchmarks.calls.fake_server", "--worker")
N_ALONE = 4  # a caller in each voice, one after the other
MOST_OVER_ALONE = 1.5  # of the gap's p95
N_NAMED = 12  # places that are told


async def measure_fakes(most: int, n_turns: int, seed: int, rows: list[dict[str, Any]]) -> None:
    """Callers alone, then so many at once; each level has a server of its own.

    ``rows`` is filled level by level, as by `measure`. Raises: ClientError.
    """
    profile, call_s = RESULTS / "capacity-places.json", 0.0
    for n_calls, at_once in ((N_ALONE, 1), (most, most)):
        arguments, log = ("--profile", str(profile), "--most", str(most)), RESULTS / "capacity.log"
        async with running_server(arguments, command=FAKES, log=log) as server:
            load = Load(
                server.url, n_calls, at_once=at_once, ramp_s=APART_S * at_once, seed=seed,
                n_turns=n_turns, within_ms=GOOD_MS, key=own_key(server.url),
            )  # fmt: skip
            began, own_s = cpu_s(server.pid), time.process_time()
            result = await run_load(load)
            call_s = call_s or result.elapsed_s / N_ALONE  # the same calls, of the same voices
            spent = {name: now - began[name] for name, now in cpu_s(server.pid).items()}
            spent["callers"] = time.process_time() - own_s
        rows.append({
            "n_calls": at_once,
            "cpu_percent_a_call": {
                name: round(100 * seconds / (n_calls * call_s), 2)
                for name, seconds in spent.items()
            },
            "places": json.loads(profile.read_text(encoding="utf-8")),
            **figures(load, result),
        })  # fmt: skip
        show(rows[-1])
        show_places(rows[-1])


def cpu_s(pid: int) -> dict[str, float]:
    """Processor time of the gateway and of what it started."""
    found = {"gateway": 0.0, "worker": 0.0}
    for one in process_tree(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        found["gateway" if one == pid else "worker"] += ticks / os.sysconf("SC_CLK_TCK")
    return found


def show_places(row: dict[str, Any]) -> None:
    told = ", ".join(f"{name} {share} %" for name, share in row["cpu_percent_a_call"].items())
    print(f"     of a core, for each call: {told}")
    n_all = sum(n for _, n in row["places"])
    for name, n in row["places"][:N_NAMED]:
        print(f"     {100 * n / n_all:5.1f} % of the gateway's computing: {name}", flush=True)


def bars_of(rows: list[dict[str, Any]]) -> list[Bar]:
    alone, together = (row["gap_ms"]["p95"] for row in rows)
    over = together / alone if alone and together else None
    n = rows[1]["n_calls"]
    return [
        Bar(f"{n} calls of scripted models: gap p95 over a call's alone", over, MOST_OVER_ALONE,
            "x", n=rows[1]["gap_ms"]["n"]),
        Bar(f"{n} calls: broken off", rows[1]["broken_calls"], 0, ""),
    ]  # fmt: skip


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
    )
    command.switch("--fakes", "scripted models, one call and so many; --check judges these")
    command.count("--most", 16, "calls at once at most")
    command.count("--turns", n_turns, "only the first turns of each call", at_most=n_turns)
    chosen = command.parse()
    rows: list[dict[str, Any]] = []
    ask = measure_fakes if chosen.fakes else measure
    command.measure(ask(chosen.most, chosen.turns, chosen.seed, rows))
    if not rows:
        return command.without_results()
    n_held = max((row["n_calls"] for row in rows if holds(row)), default=0)
    print(f"p95 within a second up to {n_held} calls")
    settings = {"most": chosen.most, "turns": chosen.turns, "fakes": chosen.fakes}
    bars = bars_of(rows) if chosen.fakes and len(rows) == 2 else []
    return command.finish(settings, bars, levels=rows, holds=n_held)


if __name__ == "__main__":
    sys.exit(run(main))
