"""Callers who come all at once, on a machine whose speed is scripted: who is let in, and how late.

The product's own places, room and levels of load run under a virtual clock. What a turn and an open
call cost was fitted to a measured ramp of two cores; a refused caller
dials again after `Retry-After`. The ablation in benchmarks/LOG.md ("admission") was made with a
larger simulation of this kind, which had every mechanism and is not kept.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest

from voiceloop.admission.overload import Level
from voiceloop.admission.places import RETRY_AFTER_S, Admission
from voiceloop.admission.room import Room, for_new_callers, lack_of_room
from voiceloop.backends import Transcript
from voiceloop.operation import WorkerLoad
from voiceloop.server.load_watch import LoadWatch
from voiceloop.telemetry.metrics import Metrics
from voiceloop.workers.messages import Finalize
from voiceloop.workers.waits import Waits

STEP_S, TICK_S = 0.02, 0.25
CORES, TURN_S, CALL_SHARE = 2.0, 0.052, 0.187  # fitted
AHEAD_SHARE = 0.15  # of what an open call takes, replies made ahead that are thrown away: assumed
LATE_S = 0.5  # slo.answer_ms
MOST = 64
REQUEST_S = 1.5  # of a core, one request over HTTP


class AnswerTimes(Metrics):
    def __init__(self) -> None:
        super().__init__()
        self.answers_s: list[float] = []

    def take_answers_s(self) -> list[float]:
        taken, self.answers_s = self.answers_s, []
        return taken


@dataclass(eq=False)
class Call:
    """work_s: what its turn under way still needs of a core, 0 between turns."""

    name: str
    ends_s: float
    turn_ends_s: float
    work_s: float = 0.0
    asked_s: float = 0.0


@dataclass
class Rush:
    """So many callers within ten seconds, who call again and again for five minutes.

    n_requests: over HTTP at once beside them. other_s: when other work takes one of two cores.
    """

    n_callers: int
    seed: int = 0
    n_requests: int = 0
    other_s: tuple[float, float] = (math.inf, math.inf)
    now_s: float = 0.0
    n_refused: int = 0
    answers_s: list[float] = field(default_factory=list)
    in_calls: list[int] = field(default_factory=list)  # at each step

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.calls: list[Call] = []
        self.requests: list[float] = []
        self.busy = 0.0
        self.waits = Waits(lambda: self.now_s)
        self.metrics = AnswerTimes()
        self.watch = LoadWatch(
            lambda: [
                WorkerLoad(
                    "w", ("engine",), "ready", busy=self.busy, overdue_s=self.waits.overdue_s()
                )
            ],
            tuple, lambda: len(self.calls), Room(MOST, LATE_S), self.metrics,
            lambda: self.now_s, lambda: 0.0, lambda: 0.0,
        )  # fmt: skip
        self.admission = Admission(
            MOST, "calls", n_reserved=MOST - for_new_callers(MOST), lacks=self._lacks
        )

    def _lacks(self, is_returning: bool) -> str | None:
        watch = self.watch
        return lack_of_room(watch.level, watch.room.n_calls, len(self.calls), is_returning)

    def run(self, seconds: float = 300.0) -> Rush:
        dialling = [(10.0 * n / self.n_callers, n) for n in range(self.n_callers)]
        ticks = round(TICK_S / STEP_S)
        for step in range(round(seconds / STEP_S)):
            self.now_s = step * STEP_S
            dialling = [self._dial(*one) if one[0] <= self.now_s else one for one in dialling]
            self._compute()
            for call in list(self.calls):
                if call.ends_s <= self.now_s:
                    self.calls.remove(call)
                    self.waits.forget(call.name)
                elif not call.work_s and call.turn_ends_s <= self.now_s:
                    call.asked_s = self.now_s
                    call.work_s = TURN_S * math.exp(0.5 * self.draw.gauss(0, 1) - 0.125)
                    self.waits.ask(call.name, Finalize(""))
            self.in_calls.append(len(self.calls))
            if step % ticks == 0:
                self.watch.tick()
        return self

    def _dial(self, at_s: float, caller: int) -> tuple[float, int]:
        """Returns when this caller dials next."""
        if self.admission.lack() is not None:
            self.n_refused += 1
            return self.now_s + self.draw.uniform(*RETRY_AFTER_S), caller
        ends_s = self.now_s + self.draw.uniform(60, 90)
        self.calls.append(Call(f"c{caller}", ends_s, self.now_s + self._pause_s()))
        return ends_s + self.draw.uniform(1, 5), caller

    def _pause_s(self) -> float:
        return 7.3 * self.draw.uniform(0.6, 1.4)

    def _compute(self) -> None:
        """One step of processor sharing."""
        level, at_work = self.watch.level, [call for call in self.calls if call.work_s]
        n_most = self.n_requests
        if self.calls:
            n_most = {Level.NORMAL: n_most, Level.BUSY: min(4, n_most), Level.FULL: 0}[level]
        self.requests += [REQUEST_S] * (n_most - len(self.requests))
        share = CALL_SHARE * (1.0 if level is Level.NORMAL else 1.0 - AHEAD_SHARE)
        taken = share * len(self.calls) + (self.other_s[0] <= self.now_s < self.other_s[1])
        n_jobs = len(at_work) + len(self.requests)
        free = max(0.05 * CORES, CORES - taken)
        rate = min(1.0, free / n_jobs) if n_jobs else 0.0
        self.requests = [left - rate * STEP_S for left in self.requests if left > rate * STEP_S]
        for call in at_work:
            call.work_s = max(0.0, call.work_s - rate * STEP_S)
            if not call.work_s:
                self.waits.answer(call.name, Transcript(0, ()))
                answer_s = self.now_s - call.asked_s
                self.answers_s.append(answer_s)
                self.metrics.answers_s.append(answer_s)
                call.turn_ends_s = self.now_s + self._pause_s()
        busy = min(1.0, (min(CORES, taken) + n_jobs * rate) / CORES)
        self.busy += 0.3 * STEP_S / TICK_S * (busy - self.busy)


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


@pytest.mark.parametrize(("n_callers", "least"), [(8, 7.0), (16, 8.0), (32, 8.0)])
def test_who_is_let_in_is_answered_in_time_however_many_come(n_callers: int, least: float) -> None:
    rush = Rush(n_callers).run()
    assert p95(rush.answers_s) <= 0.8 * LATE_S
    assert sum(rush.in_calls) / len(rush.in_calls) >= least
    assert (rush.n_refused > 100) == (n_callers > 8)


def test_requests_over_http_do_not_make_calls_late() -> None:
    rush = Rush(16, n_requests=8).run()
    assert p95(rush.answers_s) <= 2.0 * LATE_S
    assert max(rush.answers_s) <= 2.0


def test_where_the_machine_gets_slower_fewer_calls_are_let_in_until_it_is_not() -> None:
    rush = Rush(16, other_s=(100.0, 200.0)).run(400.0)
    n = [sum(rush.in_calls[at : at + 500]) / 500 for at in (4000, 9400, 19000)]
    assert n[1] <= 0.75 * n[0] and n[2] >= 0.8 * n[0]
