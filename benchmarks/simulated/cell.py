"""One cell: gateways, workers and callers under a virtual clock, turn by turn.

A turn passes the stages of its deployment one after the other, each at the speed that the worker
has at that moment. Who is let in, which worker takes a call, what is left out under load is decided
by the product's own code (`workers.py`). Not simulated: words, sound, the network's own delays.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.simulated.calls import Outcome, SimCall, SimTurn
from benchmarks.simulated.costs import Costs, Stage
from benchmarks.simulated.faults import (
    Crash,
    Deploy,
    DirectoryLost,
    Fault,
    GatewayKilled,
    Gray,
    ZoneLost,
)
from benchmarks.simulated.traffic import Traffic
from benchmarks.simulated.workers import TICK_S, SimGateway, SimWorker
from clients.resuming import RESUMABLE_S, WAITS_S
from voiceloop.admission.overload import Level
from voiceloop.errors import Overloaded

ZONES = 3
BEGINS_S = 0.06  # of a pause: then an answer is made ahead (DESIGN, "anticipate")
LOOKS_AGAIN_S = 0.25  # a turn without a worker asks again; after OPEN_WAIT_S it is given up
OPEN_WAIT_S = 5.0
WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class Size:
    """How many of each: gateways, and workers by stage."""

    n_gateways: int
    n_workers: dict[str, int]


class Cell:
    """Run it once."""

    def __init__(
        self,
        costs: Costs,
        size: Size,
        traffic: Traffic,
        *,
        faults: tuple[Fault, ...] = (),
        seed: int = 0,
        admits_by_load: bool = True,
    ) -> None:
        self.costs, self.size, self.now_s = costs, size, 0.0
        self.found = Outcome()
        self._traffic, self._faults = traffic, faults
        self._draw = random.Random(seed)
        self._tenants = traffic.tenants()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count()
        self._inside: dict[int, SimCall] = {}
        self._admits_by_load = admits_by_load
        self._directory_from_s = 0.0  # before that there is none that places anything
        self.workers = {
            stage.name: [
                SimWorker(f"{stage.name}{n}", stage, n % ZONES)
                for n in range(size.n_workers[stage.name])
            ]
            for stage in costs.stages
        }
        self.gateways = [
            SimGateway(f"g{n}", costs, n % ZONES, lambda: self.now_s, self._draw)
            for n in range(size.n_gateways)
        ]
        self._publish()

    def run(self, seconds: float) -> Outcome:
        for at_s in self._traffic.arrivals(seconds, self._draw):
            self.at(at_s, self.offer)
        for number, gateway in enumerate(self.gateways):
            first_s = TICK_S * number / len(self.gateways)
            self.at(first_s, partial(self._tick, gateway, seconds))
        for fault in self._faults:
            self.at(fault.at_s, partial(self._strike, fault))
        while self._due and self._due[0][0] <= seconds:
            self.now_s, _, act = heapq.heappop(self._due)
            act()
        return self.found

    def at(self, at_s: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._due, (at_s, next(self._order), act))

    # --- calls ---

    def offer(self, length_s: float | None = None) -> SimCall:
        """A caller dials."""
        length_s = self.costs.caller.length_s(self._draw) if length_s is None else length_s
        call = SimCall(next(self._numbers), self._tenants.one(self._draw), self.now_s + length_s)
        self.found.n_offered += 1
        # A balancer knows each gateway's headroom as of its last look, and tries a second one.
        if not any(self._enter(call, gateway) for gateway in self._tried()):
            self.found.n_blocked += 1
        return call

    def _tried(self) -> list[SimGateway]:
        alive = [one for one in self.gateways if one.is_alive]
        two = self._draw.sample(alive, min(2, len(alive)))
        return sorted(two, key=lambda one: one.watch.headroom, reverse=True)

    def _enter(self, call: SimCall, gateway: SimGateway, *, is_returning: bool = False) -> bool:
        if self._admits_by_load:
            try:
                call.slot = gateway.let_in(is_returning=is_returning)
            except Overloaded:
                return False
        call.gateway, call.line = gateway, call.line + 1
        gateway.calls.add(call.number)
        self._inside[call.number] = call
        for stage in self.costs.stages:
            self._place(call, stage)
        self.found.most_at_once = max(self.found.most_at_once, len(self._inside))
        self._next_turn(call, self._draw.uniform(0.0, self.costs.caller.turn_s))
        line = call.line
        self.at(call.ends_s, lambda: self._hang_up(call, line))
        return True

    def _hang_up(self, call: SimCall, line: int) -> None:
        if call.line != line or call.gateway is None:
            return
        self._leave(call)
        self.found.n_ended += 1

    def _leave(self, call: SimCall) -> None:
        assert call.gateway is not None
        for stage in list(call.places):
            self._displace(call, stage)
        call.gateway.calls.discard(call.number)
        del self._inside[call.number]
        if call.slot is not None:
            call.slot.__exit__(None, None, None)
        call.gateway, call.slot, call.line = None, None, call.line + 1

    def _place(self, call: SimCall, stage: Stage) -> SimWorker | None:
        """Where this call's stage is served; it stays there while that worker takes streams."""
        worker = call.places.get(stage.name)
        if worker is not None and worker.is_alive and not worker.is_draining:
            return worker
        assert call.gateway is not None
        chosen = call.gateway.choose(stage, call.name, call.prompt)
        if chosen is worker:
            return worker
        self._displace(call, stage.name)
        if chosen is not None:
            call.places[stage.name] = chosen
            chosen.n_calls += 1
            call.gateway.count(chosen, 1)
        return chosen

    def _displace(self, call: SimCall, stage: str) -> None:
        worker = call.places.pop(stage, None)
        if worker is not None and call.gateway is not None:
            call.gateway.count(worker, -1)
            worker.histories.discard(call.number)
            call.gateway.forget(worker, call.name)
            worker.n_calls = max(0, worker.n_calls - 1)

    # --- turns ---

    def _next_turn(self, call: SimCall, in_s: float) -> None:
        line = call.line
        self.at(self.now_s + in_s, lambda: self._turn_ends(call, line))

    def _turn_ends(self, call: SimCall, line: int) -> None:
        if call.line != line or call.gateway is None:
            return
        caller = self.costs.caller
        is_ahead = call.gateway.watch.level is Level.NORMAL and self._draw.random() >= caller.missed
        turn = SimTurn(call, line, self.now_s, caller.wait_s(self._draw), is_ahead)
        self._begin_stage(turn, 0)

    def _begin_stage(self, turn: SimTurn, index: int) -> None:
        call = turn.call
        if call.line != turn.line or call.gateway is None:
            return
        stage = self.costs.stages[index]
        before = call.places.get(stage.name)
        worker = self._place(call, stage)
        if worker is None:
            self._wait_for_worker(turn, index)
            return
        turn.waits_since_s = None
        usual_s = stage.latency_s(worker.n_active, worker.n_calls, worker.speed)
        seconds = stage.drawn_s(usual_s, self._draw)
        if stage.prefill_s:
            if before is not worker or call.number not in worker.histories:
                worker.histories.add(call.number)
                self.found.n_prefix_asked += 1
                is_hit = worker.reads(call.prompt)
                self.found.n_prefix_hits += is_hit
                seconds += 0.0 if is_hit else stage.prefill_s / worker.speed
        worker.n_active += 1
        call.gateway.ask(worker, call.name)
        epoch = worker.epoch
        self.at(self.now_s + seconds, lambda: self._end_stage(turn, index, worker, epoch))

    def _wait_for_worker(self, turn: SimTurn, index: int) -> None:
        turn.waits_since_s = turn.waits_since_s or self.now_s
        if self.now_s - turn.waits_since_s < OPEN_WAIT_S:
            self.at(self.now_s + LOOKS_AGAIN_S, lambda: self._begin_stage(turn, index))
            return
        self.found.n_failed_turns += 1  # the fallback is said
        self._next_turn(turn.call, self.costs.caller.pause_s(self._draw))

    def _end_stage(self, turn: SimTurn, index: int, worker: SimWorker, epoch: int) -> None:
        call = turn.call
        if worker.epoch == epoch:
            worker.n_active -= 1
        if call.line != turn.line or call.gateway is None:
            return
        if worker.epoch != epoch:  # it died: another does it again
            call.gateway.forget(worker, call.name)
            self._begin_stage(turn, index)
            return
        call.gateway.answer(worker, call.name)
        if index + 1 < len(self.costs.stages):
            self._begin_stage(turn, index + 1)
            return
        seconds = self.now_s - turn.began_s
        gap_s = max(turn.wait_s, BEGINS_S + seconds) if turn.is_ahead else turn.wait_s + seconds
        call.gateway.metrics.answers_s.append(gap_s - turn.wait_s)
        self.found.gaps.append((self.now_s, gap_s))
        self._next_turn(call, max(gap_s, self.costs.caller.pause_s(self._draw)))

    # --- what the processes do by themselves, and what befalls them ---

    def _tick(self, gateway: SimGateway, until_s: float) -> None:
        if gateway is self.gateways[0]:
            for workers in self.workers.values():
                for worker in workers:
                    worker.observe()
        if gateway.is_alive:
            gateway.watch.tick()
            level = gateway.watch.level.name.lower()
            self.found.levels[level] = self.found.levels.get(level, 0.0) + TICK_S
        if self.now_s + TICK_S < until_s:
            self.at(self.now_s + TICK_S, lambda: self._tick(gateway, until_s))

    def _publish(self) -> None:
        """Tell gateways which workers there are, and what of new calls each version gets.

        Without a directory they go on with what they were told; who has died they see themselves.
        """
        if (placing_s := self._placing_s()) > self.now_s:
            self.at(placing_s, self._publish)
            return
        counts = Counter(
            one.version
            for one in self.workers[self.costs.stages[-1].name]
            if one.is_alive and not one.is_draining
        )
        shares = {version: n / counts.total() for version, n in counts.items()}
        for gateway in self.gateways:
            gateway.learn(self.workers)
            gateway.shares = shares if len(counts) > 1 else {}

    def _strike(self, fault: Fault) -> None:
        match fault:
            case Crash():
                alive = [one for one in self.workers[fault.stage] if one.is_alive]
                begins_s = self._placing_s() if fault.with_machine else self.now_s
                for worker in self._draw.sample(alive, min(fault.n_workers, len(alive))):
                    self._kill(worker, begins_s - self.now_s + fault.back_s)
            case DirectoryLost():
                self._directory_from_s = self.now_s + fault.back_s
            case Gray():
                worker = self._draw.choice(self.workers[fault.stage])
                worker.speed /= fault.times
                self.at(self.now_s + fault.lasts_s, lambda: setattr(worker, "speed", 1.0))
            case GatewayKilled():
                self._kill_gateway(self._draw.choice(self.gateways), fault.back_s)
            case ZoneLost():
                for workers in self.workers.values():
                    for worker in [one for one in workers if one.zone == fault.zone]:
                        self._kill(worker, fault.back_s)
                for gateway in self.gateways:
                    if gateway.zone == fault.zone:
                        self._kill_gateway(gateway, fault.back_s)
            case Deploy():
                for number, old in enumerate(list(self.workers[fault.stage])):
                    self.at(
                        self.now_s + number * fault.each_s,
                        partial(self._replace, old, fault.drain_s),
                    )

    def _placing_s(self) -> float:
        """From when on something can be placed on another machine."""
        return max(self.now_s, self._directory_from_s)

    def _kill(self, worker: SimWorker, back_s: float) -> None:
        worker.end()
        self._publish()

        def come_back() -> None:
            worker.is_alive = True
            self._publish()

        self.at(self.now_s + back_s, come_back)

    def _replace(self, old: SimWorker, drain_s: float) -> None:
        if (placing_s := self._placing_s()) > self.now_s:
            self.at(placing_s, partial(self._replace, old, drain_s))
            return
        stage = old.stage
        new = SimWorker(f"{old.name}'", stage, old.zone, version="v2")
        self.workers[stage.name].append(new)
        old.is_draining = True
        self._publish()

        def end() -> None:
            old.end()
            self.workers[stage.name].remove(old)
            self._publish()

        self.at(self.now_s + drain_s, end)

    def _kill_gateway(self, gateway: SimGateway, back_s: float) -> None:
        gateway.is_alive = False
        for call in self._calls_of(gateway):
            self._leave(call)
            self._wait_to_redial(call, self.now_s, 0)
        self.at(self.now_s + back_s, lambda: setattr(gateway, "is_alive", True))

    def _calls_of(self, gateway: SimGateway) -> list[SimCall]:
        return [call for call in self._inside.values() if call.gateway is gateway]

    def _wait_to_redial(self, call: SimCall, broke_s: float, tried: int) -> None:
        """As our clients do (`clients.resuming`), for as long as a ticket is good."""
        wait_s = WAITS_S[min(tried, len(WAITS_S) - 1)] * self._draw.uniform(0.75, 1.25)
        self.at(self.now_s + wait_s, partial(self._redial, call, broke_s, tried + 1))

    def _redial(self, call: SimCall, broke_s: float, tried: int) -> None:
        if call.ends_s <= self.now_s:
            self.found.n_ended += 1
        elif any(self._enter(call, one, is_returning=True) for one in self._tried()):
            self.found.n_resumed += 1
        elif self.now_s - broke_s > RESUMABLE_S:
            self.found.n_dropped += 1
        else:
            self._wait_to_redial(call, broke_s, tried)
