"""A clock that goes as fast as the models allow: real while something is computed, else it skips.

Owns the loop whose time is the machine's own plus what was skipped. Where all workers have computed
what they were asked for and nothing is ready, the loop goes to its next timer at once. A time that
a caller waits for a model is thereby as long as in a call; one in which nothing is computed costs
nothing.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import Any

POLL_S = 0.05  # between two looks at what is computed, where nobody wakes the loop
LEAST_S = 1e-4  # less is not worth skipping


class CountingExecutor(ThreadPoolExecutor):
    """n_running: of what was given to its threads."""

    def __init__(self) -> None:
        super().__init__()
        self.n_running = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.n_running += 1
        future = super().submit(fn, *args, **kwargs)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: Future[Any]) -> None:
        self.n_running -= 1


class SkippingSelector:
    """is_quiet: whether nothing is computed anywhere. skipped_s: so far."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.is_quiet: Callable[[], bool] = lambda: False
        self.skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None or timeout < LEAST_S or not self.is_quiet():
            return self._real.select(POLL_S if timeout is None else min(timeout, POLL_S))
        self.skipped_s += timeout
        return []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class SkippingLoop(asyncio.SelectorEventLoop):
    """The loop whose `time` is what was lived and what was skipped."""

    def __init__(self) -> None:
        self.skipping = SkippingSelector()
        super().__init__(self.skipping)  # type: ignore[arg-type]  # of the same methods
        self.executor = CountingExecutor()
        self.set_default_executor(self.executor)

    def time(self) -> float:
        return monotonic() + self.skipping.skipped_s

    def skip_while(self, is_settled: Callable[[], bool]) -> None:
        """Skip from now on where this holds and no thread works."""
        self.skipping.is_quiet = lambda: self.executor.n_running == 0 and is_settled()
