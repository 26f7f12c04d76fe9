"""Owns how tests run: the virtual clock, and the check that no test leaves a task behind.

A test (or module) marked `virtual_time` runs on a loop whose clock jumps to the next timer as soon
as nothing is ready: an hour of call takes milliseconds, in the same order on every machine. Both
ends of a real socket may stand in that loop: what one has sent is ready for the other at once.
While the loop's own threads work the clock stands still.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing of the code.
settings.register_profile(
    "without deadlines", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("without deadlines")

# It comes with the bill of materials; jsonschema (ray, MCP) would build its grammar for 1.5 s.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

if "PYTEST_XDIST_WORKER" in os.environ:
    # One process a core: more threads of torch would only fight for it. Set before torch comes.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

DEADLOCK_S = 10.0  # real seconds: nothing is ready, no timer runs, no thread answers
LONG_S = 0.1  # by so much a limit may run out: what is still in the kernel comes first


@pytest.fixture(scope="session", autouse=True)
def no_gates_of_this_machine() -> Iterator[None]:
    """What somebody found here with `voiceloop models gate` decides no test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("voiceloop.models.gates.own_file", lambda: Path(os.devnull) / "gates.toml")
        yield


class VirtualClockSelector:
    """Polls real I/O where there is any; where the loop would sleep, moves its clock instead."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now_s = 1000.0  # not 0: an absolute time mistaken for a duration must show
        self.n_in_threads = 0
        self._earlier = set(threading.enumerate())  # an earlier test's know nothing of this loop

    def _is_alone(self) -> bool:
        """Without another thread nobody writes into the one socket that every loop has."""
        if len(self._real.get_map()) > 1:
            return False
        return threading.active_count() == 1 or self._earlier.issuperset(threading.enumerate())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        is_alone = self._is_alone()
        ready = [] if is_alone else self._real.select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            ready = self._real.select(DEADLOCK_S)
            if not ready:
                raise RuntimeError("deadlock: tasks wait, no timer runs and no thread answers")
            return ready
        if self.n_in_threads or (not is_alone and timeout >= LONG_S):
            ready = self._real.select(DEADLOCK_S if self.n_in_threads else 0.001)
            if ready:
                return ready
        self.now_s += max(timeout, 1e-9)
        return []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class VirtualClockLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.virtual_selector = VirtualClockSelector()
        super().__init__(self.virtual_selector)  # type: ignore[arg-type]

    def time(self) -> float:
        return self.virtual_selector.now_s

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        self.virtual_selector.n_in_threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_is_done)
        return future

    def _thread_is_done(self, future: object) -> None:
        self.virtual_selector.n_in_threads -= 1


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "virtual_time: run on a clock that jumps to the next timer")
    config.addinivalue_line("markers", "real_time: in a module of those, one that runs on no such")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin the files of calls that take longest, for the last to begin keeps all waiting."""
    taken_s: dict[Path, float] = {}
    for item in items:
        if (mark := item.get_closest_marker("call")) is not None:
            seconds = mark.kwargs.get("seconds", 0.0)
            taken_s[item.path] = max(taken_s.get(item.path, 0.0), seconds)
    items.sort(key=lambda item: -taken_s.get(item.path, 0.0))


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("virtual_time") and not item.get_closest_marker("real_time"):
        return {"virtual": VirtualClockLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def no_task_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    if "_function_scoped_runner" not in request.fixturenames:
        yield
        return
    runner: asyncio.Runner = request.getfixturevalue("_function_scoped_runner")
    yield
    left = [task for task in asyncio.all_tasks(runner.get_loop()) if not task.done()]
    if left:
        # One turn of the loop: a transport may have closed in the test's last line.
        runner.run(asyncio.sleep(0))
        left = [task for task in asyncio.all_tasks(runner.get_loop()) if not task.done()]
    assert not left, f"the test left {len(left)} tasks behind: {left}"


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> Callable[[], float]:
    """Seconds of the test's own loop."""
    runner: asyncio.Runner = request.getfixturevalue("_function_scoped_runner")
    return runner.get_loop().time
