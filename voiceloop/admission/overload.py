"""The levels of load: what is left out while the machine has too much to do.

Owns three levels, which load brings each of them, and how long it must last. Pure: a snapshot of
the load and the time are passed in. A level is entered after its load has lasted a while, and left
once the load has been clearly below it for a while, so that it does not flicker. How many calls
there may be is `room.py`'s to say: of five levels that were tried, two showed in an ablation
(benchmarks/LOG.md, "admission").
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum


class Level(IntEnum):
    """How much the machine has to do. FULL leaves out what BUSY does."""

    NORMAL = 0
    BUSY = 1  # no reply is begun ahead, few requests over HTTP, no more calls than have held
    FULL = 2  # no new calls, and no request over HTTP beside calls


@dataclass(frozen=True, slots=True)
class Load:
    """The machine at one moment, each part 0 on a quiet one.

    busy: share of its time that the busiest model process computes, while more than one call talks:
    with fewer no call waits for another. overdue_s: how long the oldest thing that a caller waits
    for has had no answer, beyond what it usually takes on this machine; second_overdue_s: the same
    of the call that is next in this, 0 where only one waits. loop_lag_s: how late the event loop
    wakes. kv_used: share of the KV cache that conversations hold. memory_pressure: percent of the
    time in which some process waited for memory.
    """

    busy: float = 0.0
    overdue_s: float = 0.0
    second_overdue_s: float = 0.0
    loop_lag_s: float = 0.0
    kv_used: float = 0.0
    memory_pressure: float = 0.0


NEVER = float("inf")
# What brings BUSY and FULL. Chosen: a process that computes four fifths of its time answers on
# average five times as late as a quiet one (queueing theory's 1 / (1 - busy)); of what is overdue
# 0.4 s is a gap that one hears, 1.5 s one that a person asks "hello?" into. A process that is
# always busy, or one call that waits alone, keeps no other caller out.
BRINGS: dict[str, tuple[float, float]] = {
    "busy": (0.8, NEVER),
    "overdue_s": (0.4, NEVER),
    "second_overdue_s": (0.4, 1.5),
    "loop_lag_s": (0.05, 0.18),
    "kv_used": (0.8, 0.98),
    "memory_pressure": (10.0, 50.0),
}
ENTERED_AFTER_S = (0.0, 0.5, 4.0)  # that the load of a level must last
LEFT_AFTER_S = (0.0, 0.75, 2.0)  # that it must have been clearly below it
EASED = 0.85  # clearly below: under this share of what brings a level


def called_for(load: Load, share: float = 1.0) -> Level:
    """The level that this load brings, where a level is brought by `share` of its bounds."""
    return Level(
        max(
            sum(getattr(load, part.name) >= share * bound for bound in BRINGS[part.name])
            for part in fields(Load)
        )
    )


class Overload:
    """The level of one server. `observe` several times a second."""

    def __init__(self, now_s: float) -> None:
        self.level = Level.NORMAL
        # Since when each level has been called for, and since when the load has been below it.
        self._above_since: dict[Level, float] = {}
        self._below_since: dict[Level, float] = dict.fromkeys(Level, now_s)

    def observe(self, load: Load, now_s: float) -> Level:
        """Climb as far as the load has lasted; descend one level at a time."""
        wanted, eased = called_for(load), called_for(load, EASED)
        for level in Level:
            if wanted >= level:
                self._above_since.setdefault(level, now_s)
            else:
                self._above_since.pop(level, None)
            if eased < level:
                self._below_since.setdefault(level, now_s)
            else:
                self._below_since.pop(level, None)
        lasted = [
            level
            for level, since_s in self._above_since.items()
            if now_s - since_s >= ENTERED_AFTER_S[level]
        ]
        highest = max(lasted, default=Level.NORMAL)
        if highest > self.level:
            self.level = highest
        elif (since_s := self._below_since.get(self.level)) is not None and self.level:
            if now_s - since_s >= LEFT_AFTER_S[self.level]:
                self.level = Level(self.level - 1)
                self._below_since[self.level] = now_s  # each level below takes its own time
        return self.level


def causes(load: Load, level: Level) -> list[str]:
    """The parts of the load that keep this level, with their values, for a person to read."""
    return [
        f"{part.name} {getattr(load, part.name):.2f}"
        for part in fields(Load)
        if level and getattr(load, part.name) >= EASED * BRINGS[part.name][level - 1]
    ]
