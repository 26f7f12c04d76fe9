"""The simulated processes: workers that slow down, gateways with the product's own judgement."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from benchmarks.simulated.costs import Costs, Stage
from voiceloop.admission.places import Admission
from voiceloop.admission.room import Room, for_new_callers, lack_of_room
from voiceloop.backends import Transcript
from voiceloop.cluster.pool import Member, Pins, by_prompt, less_behind
from voiceloop.operation import WorkerLoad
from voiceloop.server.load_watch import LoadWatch
from voiceloop.telemetry.metrics import Metrics
from voiceloop.workers.heartbeat import LOAD_SMOOTHING
from voiceloop.workers.messages import Finalize
from voiceloop.workers.waits import Waits

TICK_S = 2.0  # of a gateway's look at its load; the product looks eight times as often
KEPT_PROMPTS = 64  # of tenants, that an engine's cache holds: assumed
ASKED, ANSWERED = Finalize(""), Transcript(0, ())


class SimWorker:
    """One process of a stage. epoch: it changes with every restart, so that lost work is known."""

    def __init__(self, name: str, stage: Stage, zone: int = 0, version: str = "") -> None:
        self.name, self.stage, self.zone, self.version = name, stage, zone, version
        self.speed = 1.0
        self.n_active = 0
        self.n_calls = 0
        self.epoch = 0
        self.is_alive = True
        self.is_draining = False
        self.busy = 0.0
        self.histories: set[int] = set()  # calls whose conversation it has read
        self._read: OrderedDict[bytes, None] = OrderedDict()

    def reads(self, prompt: bytes) -> bool:
        """Whether it has this prompt's beginning in its cache; it has from now on."""
        is_hit = prompt in self._read
        self._read[prompt] = None
        self._read.move_to_end(prompt)
        if len(self._read) > KEPT_PROMPTS:
            self._read.popitem(last=False)
        return is_hit

    def observe(self) -> None:
        """As often as heartbeats come."""
        now = self.stage.busy(self.n_active, self.n_calls, self.speed) if self.is_alive else 0.0
        self.busy += LOAD_SMOOTHING * (now - self.busy)

    def end(self) -> None:
        self.is_alive, self.n_active, self.n_calls, self.busy = False, 0, 0, 0.0
        self.epoch += 1
        self._read.clear()
        self.histories.clear()


class AnswerTimes(Metrics):
    """What a gateway has counted; of its turns only the time from the decision to the sound."""

    def __init__(self) -> None:
        super().__init__()
        self.answers_s: list[float] = []

    def take_answers_s(self) -> list[float]:
        taken, self.answers_s = self.answers_s, []
        return taken


class SimGateway:
    """One gateway: admission, level of load, room and pool are the product's."""

    def __init__(
        self, name: str, costs: Costs, zone: int, clock: Callable[[], float], draw: random.Random
    ) -> None:
        self.name, self.zone, self.is_alive = name, zone, True
        self.calls: set[int] = set()
        self.metrics = AnswerTimes()
        self.shares: dict[str, float] = {}
        self._clock, self._draw, self._costs = clock, draw, costs
        self._known: dict[str, list[SimWorker]] = {}
        self._pins = {stage.name: Pins() for stage in costs.stages}
        self._streams = Counter[str]()
        self._waits: dict[str, Waits] = {}
        most = costs.gateway_calls
        self.admission = Admission(
            most, "calls", n_reserved=most - for_new_callers(most), lacks=self._lacks
        )
        self.watch = LoadWatch(
            self._loads, tuple, lambda: len(self.calls), Room(most, costs.late_s), self.metrics,
            clock, processor_s=lambda: 0.0, memory_pressure=lambda: 0.0,
        )  # fmt: skip

    def learn(self, workers: dict[str, list[SimWorker]]) -> None:
        """Which workers there are, as the list says."""
        self._known = {stage: list(known) for stage, known in workers.items()}

    def let_in(self, *, is_returning: bool = False) -> AbstractContextManager[None]:
        """A slot that is held. Raises: Overloaded."""
        slot = self.admission.place(is_returning=is_returning)
        slot.__enter__()
        return slot

    def choose(self, stage: Stage, call: str, prompt: bytes) -> SimWorker | None:
        """The worker of a call's stage, by the product's pool; None while there is none."""
        taking = [one for one in self._known[stage.name] if one.is_alive and not one.is_draining]
        if not taking:
            taking = [one for one in self._known[stage.name] if one.is_alive]
        if not taking:
            return None
        members = [
            Member(one.name, one.n_calls, self.waits(one).oldest_s(), one.version) for one in taking
        ]
        pins, last = self._pins[stage.name], self._costs.stages[-1]
        if stage is last:  # what keeps a conversation
            chosen = pins.stay(call, members, self.shares, partial(by_prompt, prompt))
        else:
            chosen = pins.move(call, members, self.shares, partial(less_behind, draw=self._draw))
        return next(one for one in taking if one.name == chosen.name)

    def waits(self, worker: SimWorker) -> Waits:
        if worker.name not in self._waits:
            self._waits[worker.name] = Waits(self._clock)
        return self._waits[worker.name]

    def count(self, worker: SimWorker, n_streams: int) -> None:
        self._streams[worker.name] += n_streams

    def ask(self, worker: SimWorker, call: str) -> None:
        self.waits(worker).ask(call, ASKED)

    def answer(self, worker: SimWorker, call: str) -> None:
        self.waits(worker).answer(call, ANSWERED)

    def forget(self, worker: SimWorker, call: str) -> None:
        self.waits(worker).forget(call)

    def _lacks(self, is_returning: bool) -> str | None:
        watch = self.watch
        return lack_of_room(watch.level, watch.room.n_calls, len(self.calls), is_returning)

    def _loads(self) -> list[WorkerLoad]:
        return [
            WorkerLoad(
                one.name,
                (stage,),
                "ready" if one.is_alive and not one.is_draining else "draining",
                busy=one.busy,
                overdue_s=self.waits(one).overdue_s(),
                n_streams=self._streams[one.name],
                n_streams_of_all=one.n_calls,
            )
            for stage, known in self._known.items()
            for one in known
            if one.is_alive
        ]
