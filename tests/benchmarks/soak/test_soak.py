"""The soak: what is read off the processes, a bad line, and which bars a run is judged by."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.soak.__main__ import FEWEST_JUDGED, Soak, bars_of
from benchmarks.soak.callers import Heard, Silence
from benchmarks.soak.processes import (
    GATEWAY,
    HELD,
    Sample,
    held,
)
from clients.server_process import ServerProcess
from tests.voiceloop.server.test_app import event, running

ROOT = Path(__file__).resolve().parents[3]
TICK = 60.0


def growing(name: str, mb_per_h: float, pid: int = 1, n: int = 20) -> list[Sample]:
    return [Sample(name, pid, TICK * k, 100.0 + mb_per_h * TICK * k / 3600.0, 9) for k in range(n)]


def silence(at_s: float, silent_ms: float) -> Silence:
    return Silence(at_s, silent_ms, None, True, False)


def test_the_worst_silence_and_a_lost_call_miss_their_bars() -> None:
    calm = Soak(Heard([silence(1.0, 300.0)]), samples=growing(GATEWAY, 0.0), is_ready=True)
    assert all(bar.holds for bar in bars_of(calm))
    silences = [silence(float(n), 300.0) for n in range(FEWEST_JUDGED - 2)]
    short = Soak(Heard([*silences, silence(2.0, 8000.0)]), is_ready=True)
    assert all(bar.holds for bar in bars_of(short))
    silent = Soak(Heard([*silences, silence(2.0, 8000.0), silence(3.0, 8000.0)]), is_ready=True)
    assert [bar.name for bar in bars_of(silent) if not bar.holds] == [
        "silent after the caller's words, p99",
        "silent after the caller's words, most",
    ]
    lost = Soak(Heard([silence(1.0, 300.0)], ["the server hung up"]), is_ready=False)
    assert [bar.name for bar in bars_of(lost) if not bar.holds] == [
        "calls lost",
        "ready at the end",
    ]


def test_what_is_kept_of_calls_that_are_over_misses_its_bar() -> None:
    start = {"calls": 0.0, "tasks": 20.0, "streams of workers": 0.0, "KV blocks held": 3.0}
    soaked = Soak(Heard([silence(1.0, 300.0)]), is_ready=True, held_before=start, held_after=start)
    assert all(bar.holds for bar in bars_of(soaked))
    soaked.held_after = start | {"tasks": 21.0, "KV blocks held": 5.0}
    assert [bar.name for bar in bars_of(soaked) if not bar.holds] == [
        "tasks more than at the start",
        "KV blocks held more than at the start",
    ]
    soaked.held_after = {}  # it did not answer: that is told by its readiness
    assert all(bar.holds for bar in bars_of(soaked))


async def test_what_a_server_holds_is_read_off_its_metrics() -> None:
    async with running() as server:
        there = ServerProcess(os.getpid(), server.port, 0.0)
        before = await held(there)
        async with server.connect() as client:
            await event(client)
            during = await held(there)
    assert before["calls"] == 0.0 and during["calls"] == 1.0
    assert set(before) == set(HELD.values())
    assert await held(there) == {}


@pytest.mark.call(seconds=110)
@pytest.mark.timeout(300)
def test_over_a_minute_of_calls_and_faults_none_is_lost_and_nothing_is_kept() -> None:
    """Calls begin for a good minute, which takes two, and processes are killed in them."""
    command = [sys.executable, "-m", "benchmarks.soak", "--minutes", "1.2", "--faults", "3"]
    ran = subprocess.run(
        [*command, "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"[-6000:]
