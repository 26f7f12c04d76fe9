"""How many calls this machine carries: learnt while it serves, and asked before one more comes in.

Owns `Room`, one limit of three parts. What one call costs is measured: the share of each process's
time, over the calls that were talking meanwhile. That is too high where processes also do work that
they would leave out under load; so a calm machine takes a few calls more than that, step by step,
and a busy one as many as have held. Where answers came too late (their p95), the limit falls to a
tenth below that number of calls, and rises by one for every half minute that holds. Pure: time is
passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from math import exp

from voiceloop.admission.overload import Level

# Of one process's time. Above it a queue forms that callers hear: at 0.75 work waits three times as
# long as it takes (1 / (1 - busy) - 1).
BUSY_MOST = 0.75
# Before anything is measured: ten calls to a process, and so much is worth one call for 30 s. So
# a large machine that is cold is filled as fast as calls show that they cost less.
COST_PRIOR = 0.075
PRIOR_CALL_S = 30.0
FORGOTTEN_AFTER_S = 300.0  # an agent with longer answers, or another model, is learnt in minutes
# Calls that any machine which serves at all is believed to carry until they are late: two cores
# carry four of the embedded preset. And how long a number must hold to have proven that it does.
LEAST_CALLS = 4
PROVEN_AFTER_S = 5.0
STEP = 0.1  # of what has held: so many more at once where the cost says that it is full, at least 1
# Turns by which the gap is judged: their p95 among fewer than ten is their worst.
WINDOW_S = 30.0
LEAST_TURNS = 10
MOST_TURNS = 512
BACKED_OFF = 0.9
RESERVED = 0.1  # of all places, for callers who come back


class Room:
    """The places of one server. most: `limits.max_sessions`. late_s: p95 of answers that is late.

    Of an answer counts the time from the decision that the caller has finished to its first sound:
    what comes before is the wait that was meant.
    """

    def __init__(self, most: int, late_s: float) -> None:
        self._most = most
        self._late_s = late_s
        # process -> seconds that it computed, and seconds that calls talked, both fading
        self._busy_s: dict[str, float] = {}
        self._call_s = 0.0
        self._others_busy: Mapping[str, float] = {}
        self._n_proven = 0
        self._held_since: tuple[int, float] | None = None
        self._is_calm = True
        self._n_broke: int | None = None  # the bound since the gap last broke
        self._bound_since_s = 0.0
        self._answers = deque[tuple[float, float]](maxlen=MOST_TURNS)  # at, seconds

    def observe(
        self,
        dt_s: float,
        now_s: float,
        n_talking: int,
        busy: Mapping[str, float],
        *,
        is_calm: bool,
        others_busy: Mapping[str, float] | None = None,
    ) -> None:
        """`dt_s` have passed with so many calls talking; is_calm: the level is NORMAL.

        busy: what these calls took of each process or pool; others_busy: what is taken of it by
        those who share it.
        """
        self._others_busy = others_busy or {}
        if n_talking:
            kept = exp(-dt_s / FORGOTTEN_AFTER_S)
            self._call_s = kept * self._call_s + n_talking * dt_s
            for name in self._busy_s.keys() | busy.keys():
                spent_s = busy.get(name, 0.0) * dt_s
                self._busy_s[name] = kept * self._busy_s.get(name, 0.0) + spent_s
        self._is_calm = is_calm
        self._judge(now_s, n_talking, is_calm)

    def observe_answer(self, now_s: float, answer_s: float) -> None:
        self._answers.append((now_s, answer_s))

    def _judge(self, now_s: float, n_talking: int, is_calm: bool) -> None:
        while self._answers and self._answers[0][0] < now_s - WINDOW_S:
            self._answers.popleft()
        is_late = self._p95() > self._late_s
        if is_late and not is_calm and n_talking:
            # Late on a quiet machine is a slow model or service: fewer calls would not help it.
            self._n_broke = max(1, int(BACKED_OFF * n_talking))
            self._n_proven = min(self._n_proven, self._n_broke)
            self._bound_since_s = now_s
            self._answers.clear()  # what is judged next came about under the new bound
        elif self._n_broke is not None and now_s - self._bound_since_s >= WINDOW_S:
            self._bound_since_s = now_s
            if n_talking >= self._n_broke and not is_late:
                self._n_broke += 1
        self._prove(now_s, n_talking, is_calm and not is_late)

    def _prove(self, now_s: float, n_talking: int, holds: bool) -> None:
        if not holds or n_talking <= self._n_proven:
            self._held_since = None
        elif self._held_since is None or n_talking < self._held_since[0]:
            self._held_since = n_talking, now_s
        elif now_s - self._held_since[1] >= PROVEN_AFTER_S:
            self._n_proven, self._held_since = self._held_since[0], None

    def _p95(self) -> float:
        if len(self._answers) < LEAST_TURNS:
            return 0.0
        return _percentile((seconds for _, seconds in self._answers), 0.95)

    @property
    def costs(self) -> dict[str, float]:
        """Return the cost of one talking call, as the share of each process's time."""
        known_s = self._call_s + PRIOR_CALL_S
        prior_s = COST_PRIOR * PRIOR_CALL_S
        return {name: (spent_s + prior_s) / known_s for name, spent_s in self._busy_s.items()}

    def _free(self, name: str) -> float:
        """Return what others leave of a process or pool."""
        return max(0.0, BUSY_MOST - self._others_busy.get(name, 0.0))

    @property
    def n_calls(self) -> int:
        """How many calls may be in at once."""
        held = n_calls = max(LEAST_CALLS, self._n_proven)
        if self._is_calm:
            step = max(1, int(STEP * self._n_proven))
            by_cost = min(
                (int(self._free(name) / cost) for name, cost in self.costs.items()),
                default=int(BUSY_MOST / COST_PRIOR),
            )
            n_calls = max(held, self._n_proven + step, by_cost)
        if self._n_broke is not None:
            n_calls = min(n_calls, self._n_broke)
        return max(1, min(n_calls, self._most))


def lack_of_room(level: Level, n_places: int, n_talking: float, is_returning: bool) -> str | None:
    """Return why a call is not let in under this load; None where it is.

    n_places: `Room.n_calls`. is_returning: it was here before, or at another gateway.
    """
    if level is Level.FULL and not is_returning:
        return f"the machine is overloaded (level {level.name.lower()})"
    if n_talking >= (n_places if is_returning else for_new_callers(n_places)):
        return f"this machine carries {n_places} calls"
    return None


def for_new_callers(n_places: int) -> int:
    """Return how many of these places are for callers who were not here before; a tenth is for the
    others.
    """
    return n_places - int(RESERVED * n_places)


def _percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
