"""When a worker that says nothing is taken to hang."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from voiceloop.errors import WorkerLost
from voiceloop.workers.heartbeat import (
    Pulse,
    ThreadTimes,
    Verdict,
    WorkerSilence,
    peak_memory_mb,
    thread_times,
)
from voiceloop.workers.messages import Loading, WorkerSpec
from voiceloop.workers.process import LOAD_SILENCE_S, WorkerProcess

LOOK_S = 0.25
HUNG_AFTER_S = 2.0
SPINS_AFTER_S = 15.0
STACKS_S = 0.2


def silent_for(
    seconds: float, waits_share: Mapping[int, float], *, looked_every_s: float = LOOK_S
) -> float:
    """The worker's own silence so long after it was missed, its threads waiting so much."""
    passed_s = 0.0
    silence = WorkerSilence(
        LOOK_S,
        100.0 - looked_every_s,
        7,
        lambda: {
            thread: ThreadTimes(3.0, 50.0 + share * passed_s)
            for thread, share in waits_share.items()
        },
    )
    for look in range(round(seconds / looked_every_s) + 1):
        passed_s = look * looked_every_s
        silence.observe(100.0 + passed_s, 7)
    return silence.own_s


def test_a_worker_that_sleeps_is_silent_of_its_own_doing() -> None:
    assert silent_for(2.0, {1: 0.0, 2: 0.0}) == pytest.approx(2.0)


def test_time_without_a_processor_does_not_count() -> None:
    assert silent_for(8.0, {1: 0.9}) == pytest.approx(0.8)


def test_a_step_waits_for_its_slowest_thread() -> None:
    assert silent_for(8.0, {1: 0.0, 2: 0.9, 3: 0.2}) == pytest.approx(0.8)


def test_a_worker_that_spins_is_found_out_on_a_busy_machine_too() -> None:
    assert silent_for(20.0, {1: 0.8}, looked_every_s=0.5) == pytest.approx(4.0)


def test_a_gateway_that_was_held_up_has_not_listened() -> None:
    assert silent_for(8.0, {}, looked_every_s=2.0) == pytest.approx(1.0)


def test_a_heartbeat_ends_the_silence() -> None:
    silence = WorkerSilence(LOOK_S, 0.0, 1, dict)
    silence.observe(1.5, 1)
    silence.observe(1.75, 1)
    assert silence.own_s == pytest.approx(0.25)
    silence.observe(2.0, 2)
    assert silence.own_s == 0.0
    silence.observe(2.25, 2)
    silence.observe(2.5, 2)
    assert silence.own_s == pytest.approx(0.25)


def test_a_reading_that_fails_is_not_taken_for_what_the_worker_did() -> None:
    readings = [{}, {1: ThreadTimes(300.0, 300.0)}, {1: ThreadTimes(300.0, 302.0)}, {}]
    silence = WorkerSilence(LOOK_S, 0.0, 1, lambda: readings.pop(0))
    for look in range(1, 4):  # the first reading failed: the second is where it begins
        silence.observe(look * 2.0, 1)
    assert silence.own_s == pytest.approx(0.0, abs=LOOK_S)
    silence.observe(8.0, 1)  # the last failed: nothing is known since
    assert silence.verdict(HUNG_AFTER_S, SPINS_AFTER_S) is not Verdict.SPINNING


def test_of_a_worker_that_beats_no_file_is_read() -> None:
    n_read = 0

    def waits() -> dict[int, ThreadTimes]:
        nonlocal n_read
        n_read += 1
        return {}

    silence = WorkerSilence(LOOK_S, 0.0, 0, waits)
    for n_beats in range(1, 9):
        silence.observe(LOOK_S * n_beats, n_beats)
    assert n_read == 0
    silence.observe(LOOK_S * 9, 8)
    assert n_read == 1


def test_the_kernel_tells_how_long_a_thread_ran_and_waited() -> None:
    times = thread_times(os.getpid())
    assert all(time.ran_s > 0.0 and time.waited_s >= 0.0 for time in times.values())
    assert os.getpid() in times or not os.path.exists("/proc/self/schedstat")
    assert thread_times(2**31 - 1) == {}


# --- the supervisor, with a process that is played ---


@dataclass(slots=True)
class SilentConnection:
    pulse: Pulse = field(default_factory=Pulse)
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    startup: Loading = Loading("recognizer")
    ready: None = None
    fault: None = None
    hop_ms: float = 0.0

    def close(self) -> None: ...


@dataclass(slots=True)
class SilentProcess:
    pid: int = 4711
    returncode: int | None = None

    asked: list[int] = field(default_factory=list)

    def send_signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            assert self.asked == [signal.SIGUSR1]  # for its stacks
            self.returncode = -9
        self.asked.append(number)

    async def wait(self) -> int | None:
        return self.returncode


async def watched_for(
    waits_share: float,
    clock: Callable[[], float],
    *,
    runs_share: float = 0.0,
    within_s: float = 60.0,
) -> float | None:
    """When a worker that never beats again was killed, in seconds; None: not within so many."""
    begin_s = clock()

    def times(pid: int) -> dict[int, ThreadTimes]:
        passed_s = clock() - begin_s
        return {pid: ThreadTimes(runs_share * passed_s, waits_share * passed_s)}

    spec = WorkerSpec("speech", (), hung_after_s=HUNG_AFTER_S, spins_after_s=SPINS_AFTER_S)
    worker = WorkerProcess(spec, clock=clock, thread_times=times)
    process = SilentProcess()
    connection = SilentConnection()
    worker.connection, worker.process = connection, process  # type: ignore[assignment]
    try:
        async with asyncio.timeout(within_s):
            await worker._watch()
    except TimeoutError:
        return None
    assert process.returncode == -9
    return clock() - begin_s


@pytest.mark.virtual_time
async def test_a_hung_worker_is_killed_when_its_time_is_up(clock: Callable[[], float]) -> None:
    killed_s = await watched_for(0.0, clock)
    assert killed_s == pytest.approx(HUNG_AFTER_S + STACKS_S, abs=2 * LOOK_S)


@pytest.mark.virtual_time
async def test_a_long_step_is_not_a_hang_and_a_spin_is_found_out(
    clock: Callable[[], float],
) -> None:
    killed_s = await watched_for(0.0, clock, runs_share=1.0)
    assert killed_s == pytest.approx(SPINS_AFTER_S + STACKS_S, abs=2 * LOOK_S)


@pytest.mark.virtual_time
async def test_an_overloaded_machine_is_no_crash(clock: Callable[[], float]) -> None:
    assert await watched_for(0.98, clock) is None
    killed_s = await watched_for(0.75, clock)  # a quarter of the time it could run, and did not
    assert killed_s == pytest.approx(4 * HUNG_AFTER_S, abs=4 * LOOK_S)
    assert await watched_for(0.8, clock, runs_share=0.2) is None  # it ran all the time it got


async def loaded_for(
    clock: Callable[[], float], *, waits_share: float = 0.0, mb_per_s: float = 0.0
) -> float | None:
    """When a worker that never says Ready was given up, in seconds; None: not within 15 minutes."""
    begin_s = clock()

    def times(pid: int) -> dict[int, ThreadTimes]:
        return {pid: ThreadTimes(0.0, waits_share * (clock() - begin_s))}

    worker = WorkerProcess(
        WorkerSpec("speech", ()),
        clock=clock,
        thread_times=times,
        peak_memory_mb=lambda pid: int(mb_per_s * (clock() - begin_s)),
    )
    worker.process = SilentProcess()  # type: ignore[assignment]
    try:
        async with asyncio.timeout(900.0):
            await worker._wait_ready(SilentConnection())  # type: ignore[arg-type]
    except WorkerLost as error:
        assert "300 s without progress in recognizer" in error.message
        return clock() - begin_s
    except TimeoutError:
        pass
    return None


@pytest.mark.virtual_time
async def test_a_model_that_fills_memory_may_load_for_as_long_as_it_takes(
    clock: Callable[[], float],
) -> None:
    assert await loaded_for(clock, mb_per_s=0.01) is None


@pytest.mark.virtual_time
async def test_a_load_that_waits_for_a_processor_is_not_given_up(
    clock: Callable[[], float],
) -> None:
    assert await loaded_for(clock, waits_share=0.75) is None


@pytest.mark.virtual_time
async def test_a_load_that_comes_no_further_is_given_up(clock: Callable[[], float]) -> None:
    assert await loaded_for(clock) == pytest.approx(LOAD_SILENCE_S, abs=2 * LOOK_S)


def test_the_kernel_tells_how_much_memory_a_process_filled() -> None:
    peak_mb = peak_memory_mb(os.getpid())
    assert peak_mb > 5 or not os.path.exists("/proc/self/status")
    assert peak_memory_mb(2**31 - 1) == 0
