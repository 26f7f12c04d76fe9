"""What a turn costs where: few numbers, each measured, fitted or assumed, as its docstring says."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

SPREAD = 0.5  # of what turns cost: assumed
Z95 = 1.6449  # of a normal distribution, 95 % lie below so many deviations


@dataclass(frozen=True, slots=True)
class Stage:
    """One kind of worker.

    lanes: how much of it runs at once without slowing down; beyond that all share. turn_s: of a
    lane's time, from the end of the caller's words to the first sound of the answer. call_share: of
    a lane, what each open call takes besides (words while they are spoken, the rest of the reply).
    prefill_s: what a turn costs more where the worker has not read what came before it.
    """

    name: str
    lanes: float
    turn_s: float
    call_share: float
    prefill_s: float = 0.0

    def latency_s(self, n_active: int, n_calls: float, speed: float) -> float:
        """Of one more turn beside others, by processor sharing at the moment it comes."""
        free = max(0.05 * self.lanes, self.lanes - self.call_share * n_calls / speed)
        return self.turn_s / speed * max(1.0, (n_active + 1) / free)

    def drawn_s(self, seconds: float, draw: random.Random) -> float:
        """One turn is longer than another: the same in the mean, lognormal."""
        return seconds * math.exp(SPREAD * draw.gauss(0.0, 1.0) - SPREAD**2 / 2.0)

    def busy(self, n_active: float, n_calls: float, speed: float) -> float:
        return min(1.0, (n_active + self.call_share * n_calls / speed) / self.lanes)


@dataclass(frozen=True, slots=True)
class Caller:
    """What a caller does. wait: the silence that is meant, lognormal.

    turn_s: from one turn's end to the next. missed: share of turns whose answer is not made ahead.
    call_p50_s, call_sigma, call_most_s: lognormal length of a call, cut off.
    """

    wait_p50_s: float = 0.28
    wait_sigma: float = 0.15
    turn_s: float = 7.3
    missed: float = 0.15
    call_p50_s: float = 180.0
    call_sigma: float = 0.9
    call_most_s: float = 3600.0

    def wait_s(self, draw: random.Random) -> float:
        return self.wait_p50_s * math.exp(self.wait_sigma * draw.gauss(0.0, 1.0))

    def pause_s(self, draw: random.Random) -> float:
        """Until his next turn ends."""
        return self.turn_s * draw.uniform(0.6, 1.4)

    def length_s(self, draw: random.Random) -> float:
        drawn = self.call_p50_s * math.exp(self.call_sigma * draw.gauss(0.0, 1.0))
        return min(self.call_most_s, drawn)

    @property
    def mean_call_s(self) -> float:
        return self.call_p50_s * math.exp(self.call_sigma**2 / 2.0)


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one deployment. stages: in the order in which a turn passes them. origin: of the figures.

    gateway_calls: at most, of one gateway process. price_hour: of one unit of `priced`, a stage.
    """

    name: str
    origin: str
    stages: tuple[Stage, ...]
    caller: Caller
    gateway_calls: int
    priced: str
    price_hour: float
    late_s: float = 0.5  # slo.answer_ms


def one_machine(turn_s: float, call_share: float, caller: Caller, n_cores: int = 2) -> Costs:
    """This machine: every role on its cores. Fitted: the first three (`fit.py`)."""
    stage = Stage("machine", float(n_cores), turn_s, call_share, prefill_s=turn_s)
    return Costs("machine", "fitted", (stage,), caller, 64, "machine", 0.10)


# Assumed, all of it: no GPU has carried a call yet. 64 calls on one H200 with its p95 in 800 ms is
# DESIGN's aim; a cloud asks some 3.50 an hour for one, and 0.04 for a core. Of a turn's time on it
# 6 ms is the aim for the first token and the rest the first clause at 3 ms a token; speech hosts
# are 8 cores with a recognizer and a voice that each take a tenth of a core of a call.
H200 = Costs(
    "h200",
    "assumed",
    (
        Stage("speech", 8.0, 0.060, 0.080),
        Stage("engine", 16.0, 0.050, 0.140, prefill_s=0.060),
    ),
    Caller(),
    40,
    "engine",
    3.50,
)
