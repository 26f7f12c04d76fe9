"""A simulated call and its turns: where each is by now, and what came of all of them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from benchmarks.simulated.workers import SimGateway, SimWorker


@dataclass(eq=False, slots=True)
class SimCall:
    """One call, where it is by now."""

    number: int
    prompt: bytes
    ends_s: float
    gateway: SimGateway | None = None
    slot: AbstractContextManager[None] | None = None
    places: dict[str, SimWorker] = field(default_factory=dict)
    line: int = 0  # it changes with each connection: what was begun on another is over

    @property
    def name(self) -> str:
        return f"call{self.number}"


@dataclass(eq=False, slots=True)
class SimTurn:
    """One turn of a call. gap_s: so far."""

    call: SimCall
    line: int
    began_s: float
    wait_s: float
    is_ahead: bool
    waits_since_s: float | None = None


@dataclass(slots=True)
class Outcome:
    """What came of it. gaps: of each turn, when and how long."""

    n_offered: int = 0
    n_blocked: int = 0
    n_resumed: int = 0
    n_dropped: int = 0
    n_failed_turns: int = 0
    n_ended: int = 0
    n_prefix_asked: int = 0
    n_prefix_hits: int = 0
    most_at_once: int = 0
    gaps: list[tuple[float, float]] = field(default_factory=list)
    levels: dict[str, float] = field(default_factory=dict)  # seconds of gateways, by level
