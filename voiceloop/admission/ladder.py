"""The ladder of overload: what is left out, step by step, so that the calls that are there go on.

Owns the levels, which load brings each of them, and how long it must last. Pure: a snapshot of the
load and the time are passed in. A level is entered after its load has lasted a while, and left only
once the load has been clearly below it for a while: a ladder that flickers would serve nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum


class Level(IntEnum):
    """Each level keeps what those below it do."""

    NORMAL = 0
    NO_SPECULATION = 1  # no reply is begun before the caller's turn has ended
    NO_HELD_WORK = 2  # and nothing is read ahead: words are staged at a pause, not while they come
    SHORTER = 3  # replies end with a sentence, and requests over HTTP are refused
    REFUSING = 4  # no new calls
    SHEDDING = 5  # calls in which nobody has spoken for long are told to leave

    @property
    def speculates(self) -> bool:
        return self < Level.NO_SPECULATION

    @property
    def stages_ahead(self) -> bool:
        return self < Level.NO_HELD_WORK

    @property
    def is_brief(self) -> bool:
        return self >= Level.SHORTER

    @property
    def takes_requests(self) -> bool:
        return self < Level.SHORTER

    @property
    def takes_calls(self) -> bool:
        return self < Level.REFUSING

    @property
    def sheds(self) -> bool:
        return self >= Level.SHEDDING


@dataclass(frozen=True, slots=True)
class Load:
    """The machine at one moment, each part 0 on a quiet one.

    busy: share of its time that the busiest model process computes, while more than one call talks:
    with fewer nobody waits for another. overdue_s: how long the oldest thing that a caller waits
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
# What brings levels 1 to 5. Chosen: a process that computes four fifths of its time answers on
# average five times as late as a quiet one (queueing theory's 1 / (1 - busy)); of what is overdue
# 0.4 s is a gap that one hears, 1.5 s one that a person asks "hello?" into. A process that is
# always busy tells no more than that, so by itself it costs nobody a sentence; and what one call
# alone waits for may be its own doing, so it takes a second one for others to be sent away.
BRINGS: dict[str, tuple[float, float, float, float, float]] = {
    "busy": (0.8, 0.9, NEVER, NEVER, NEVER),
    "overdue_s": (0.4, 0.7, 1.0, NEVER, NEVER),
    "second_overdue_s": (0.4, 0.7, 1.0, 1.5, 3.0),
    "loop_lag_s": (0.05, 0.08, 0.12, 0.18, 0.25),
    "kv_used": (0.8, 0.9, 0.95, 0.98, NEVER),
    "memory_pressure": (10.0, 20.0, 30.0, 50.0, NEVER),
}
# Seconds that the load of a level must last before it is entered: what comes first costs least.
ENTERED_AFTER_S = (0.0, 0.5, 1.5, 2.0, 4.0, 8.0)
# And that it must have been below it before it is left. From the top it is eight seconds down.
LEFT_AFTER_S = (0.0, 0.75, 1.5, 1.5, 2.0, 2.0)
EASED = 0.85  # clearly below: under this share of what brings a level


def called_for(load: Load, share: float = 1.0) -> Level:
    """The level that this load brings, where a level is brought by `share` of its bounds."""
    return Level(
        max(
            sum(getattr(load, part.name) >= share * bound for bound in BRINGS[part.name])
            for part in fields(Load)
        )
    )


class Ladder:
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
