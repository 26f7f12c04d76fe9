"""How long a worker that was lost is waited for before it is started anew."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from voiceloop.child import RESTART_PAUSES_S
from voiceloop.errors import WorkerLost
from voiceloop.workers.messages import WorkerSpec
from voiceloop.workers.process import STEADY_AFTER_S, RestartCause, WorkerProcess

pytestmark = pytest.mark.virtual_time


class Mortal(WorkerProcess):
    """Lives as long as it is told, each time; starts fail as often as that before each life.

    pauses_s: before each start.
    """

    def __init__(self, clock: Callable[[], float], lives: list[tuple[int, float]]) -> None:
        super().__init__(WorkerSpec("engine", ()), clock=clock)
        self._lives = lives
        self._n_failed = 0
        self._ended_s = clock()
        self.pauses_s: list[float] = []

    async def start(self) -> None:
        self.pauses_s.append(self._clock() - self._ended_s)
        self._ended_s = self._clock()
        if self._n_failed < self._lives[0][0]:
            self._n_failed += 1
            raise WorkerLost("the disk is full")

    async def _watch(self) -> RestartCause:
        if not self._lives:
            await asyncio.Event().wait()
        await asyncio.sleep(self._lives.pop(0)[1])
        self._n_failed, self._ended_s = 0, self._clock()
        return RestartCause.EXIT


async def pauses_s(
    clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch, lives: list[tuple[int, float]]
) -> list[float]:
    monkeypatch.setattr(random, "uniform", lambda least, most: 1.0)
    worker = Mortal(clock, [*lives, (0, 0.0)])
    watching = asyncio.create_task(worker.run())
    while worker._lives:  # noqa: ASYNC110
        await asyncio.sleep(1.0)
    watching.cancel()
    await asyncio.wait([watching])
    return [round(one, 3) for one in worker.pauses_s]


async def test_a_worker_that_dies_again_and_again_is_started_with_growing_pauses(
    clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = [(0, 1.0)] * 6
    assert await pauses_s(clock, monkeypatch, lives) == [*RESTART_PAUSES_S]


async def test_starts_that_failed_for_a_reason_that_is_over_cost_no_later_loss_its_time(
    clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = [(0, STEADY_AFTER_S + 1.0), (4, 2.0)]
    found = await pauses_s(clock, monkeypatch, lives)
    assert found == [*RESTART_PAUSES_S[:5], RESTART_PAUSES_S[1]]
