"""How much the server has to do, looked at several times a second, and what follows from it.

Owns the snapshots of the load (the event loop's lateness, the workers' business, what callers wait
for, memory), the level they bring, and the room they leave. Every change of level is a line in the
log and a number in `/metrics`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from heapq import nlargest
from time import process_time

from voiceloop.admission.overload import Level, Load, Overload, causes
from voiceloop.admission.pools import pools_of
from voiceloop.admission.room import Room
from voiceloop.operation import WorkerLoad
from voiceloop.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.05  # and each look tells how late the event loop woke
LOOKS_A_TICK = 5  # of the level: as often as workers send their heartbeats
LAG_LOOKS = 40  # two seconds; the third latest of them is the lag, their p95
PRESSURE_FILE = "/proc/pressure/memory"
GATEWAY = "gateway"


class LoadWatch:
    """The load of one server, its level and its room.

    workers: the processes that hold models. take_answers: how long they took, since the last look.
    n_talking: calls that talked lately.
    """

    def __init__(
        self,
        workers: Callable[[], Sequence[WorkerLoad]],
        take_answers: Callable[[], Sequence[tuple[str, float]]],
        n_talking: Callable[[], int],
        room: Room,
        metrics: Metrics,
        clock: Callable[[], float],
        processor_s: Callable[[], float] = process_time,
        memory_pressure: Callable[[], float] | None = None,
    ) -> None:
        self.room = room
        self.load = Load()
        self._workers = workers
        self._take_answers = take_answers
        self._n_talking = n_talking
        self._metrics = metrics
        self._clock = clock
        self._processor_s = processor_s
        self._memory_pressure = memory_pressure or read_memory_pressure
        self._overload = Overload(clock())
        self._lags = deque[float](maxlen=LAG_LOOKS)
        self._ticked_at = clock()
        self._computed_s = processor_s()

    @property
    def level(self) -> Level:
        return self._overload.level

    @property
    def headroom(self) -> float:
        """The share of what this server can carry that is still free, 0 to 1."""
        if self.level is Level.FULL:
            return 0.0
        free = min(1.0 - self._n_talking() / self.room.n_calls, 1.0 - self.load.kv_used)
        return max(0.0, free)

    async def run(self, on_tick: Callable[[], None]) -> None:
        """Look for ever; `on_tick` is called after each tick."""
        while True:
            for _ in range(LOOKS_A_TICK):
                due_s = self._clock() + LOOK_EVERY_S
                await asyncio.sleep(LOOK_EVERY_S)
                self.observe_lag(max(0.0, self._clock() - due_s))
            self.tick()
            on_tick()

    def observe_lag(self, seconds: float) -> None:
        """How late the event loop woke from a timer."""
        self._lags.append(seconds)
        self._metrics.loop_lag.observe(seconds)

    def tick(self) -> None:
        """Take a snapshot, and move the level and the room by it."""
        now_s, computed_s = self._clock(), self._processor_s()
        passed_s = max(1e-6, now_s - self._ticked_at)
        gateway_busy = min(1.0, (computed_s - self._computed_s) / passed_s)
        self._ticked_at, self._computed_s = now_s, computed_s
        workers, n_talking = self._workers(), self._n_talking()
        pools = pools_of(workers)
        overdue_s, second_overdue_s = two_latest(workers)
        self.load = Load(
            busy=max((pool.busy for pool in pools), default=0.0) if n_talking > 1 else 0.0,
            overdue_s=overdue_s,
            second_overdue_s=second_overdue_s,
            loop_lag_s=self._lag_s(),
            kv_used=max((pool.kv_used for pool in pools), default=0.0),
            memory_pressure=self._memory_pressure(),
        )
        before, level = self.level, self._overload.observe(self.load, now_s)
        if level is not before:
            self._tell(before, level)
        for ask, seconds in self._take_answers():
            self._metrics.answers.labels(ask=ask).observe(seconds)
        for answer_s in self._metrics.take_answers_s():
            self.room.observe_answer(now_s, answer_s)
        self.room.observe(
            passed_s,
            now_s,
            n_talking,
            {pool.name: pool.own_busy for pool in pools} | {GATEWAY: gateway_busy},
            is_calm=level is Level.NORMAL,
            others_busy={pool.name: pool.others_busy for pool in pools},
        )
        self._metrics.room.set(self.room.n_calls)

    def _lag_s(self) -> float:
        return sorted(self._lags)[-(1 + len(self._lags) // 20)] if self._lags else 0.0

    def _tell(self, before: Level, level: Level) -> None:
        self._metrics.ladder_level.set(level)
        self._metrics.ladder_moves.labels(level=level.name.lower()).inc()
        why = ", ".join(causes(self.load, max(before, level))) or "the load has eased"
        say = log.warning if level > before else log.info
        say("overload: %s after %s: %s", level.name.lower(), before.name.lower(), why)


def two_latest(workers: Sequence[WorkerLoad]) -> tuple[float, float]:
    """Seconds that what is owed to the two latest calls is overdue, whichever workers owe it."""
    by_call: dict[str, float] = {}
    for worker in workers:
        for call, late_s in worker.overdue_s.items():
            by_call[call] = max(late_s, by_call.get(call, 0.0))
    first_s, second_s = nlargest(2, [*by_call.values(), 0.0, 0.0])
    return first_s, second_s


def read_memory_pressure() -> float:
    """Percent of the last ten seconds in which some process waited for memory; 0: not told."""
    try:
        with open(PRESSURE_FILE, encoding="ascii") as file:
            for line in file:
                kind, _, rest = line.partition(" ")
                if kind == "some":
                    return float(rest.split()[0].removeprefix("avg10="))
    except (OSError, ValueError, IndexError):
        pass
    return 0.0
