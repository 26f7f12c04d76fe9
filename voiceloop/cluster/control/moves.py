"""Which process gives way to one on an emptier machine. Pure: clock passed in.

What a machine took over from one that was lost stays where it is when another machine comes, and
the next loss would take a whole role. So a group whose machines differ by more than one is evened
out: one more process is started where fewest are, and once that has settled one leaves the machine
with most, by a drain. At no time are there fewer than are wanted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from voiceloop.cluster.control.hosts import READY_WITHIN_S, Host
from voiceloop.cluster.control.machines import Machines, counts
from voiceloop.cluster.control.plan import Desired, Group

MOST_SKEW = 1  # of three on two machines, two and one; Kubernetes' maxSkew has the same meaning
STEADY_S = 10.0  # a machine that comes and goes gets nothing of what runs elsewhere
MOVE_EVERY_S = 10.0  # of the whole cluster: about what a process without a model takes to settle
RETRY_S = 600.0  # after one that did not: something is wrong with the machine, and nothing urgent


@dataclass(frozen=True, slots=True)
class Move:
    """One under way. name: of the process that was started for it on `machine`."""

    group: str
    name: str
    origin: str
    machine: str
    began_s: float


@dataclass(frozen=True, slots=True)
class Way:
    """From one machine to another."""

    origin: str
    machine: str


class Moves:
    """One at a time in the whole cluster; a directory that begins knows of none."""

    def __init__(self) -> None:
        self.current: Move | None = None
        self._next_s = -math.inf
        self._retries_s = -math.inf

    def wanted(
        self,
        group: Group,
        desired: Desired,
        machines: Machines,
        hosts: Collection[Host],
        now_s: float,
        *,
        there_for_s: float,
    ) -> Way | None:
        """The way that evens this group out, unless one has just failed.

        there_for_s: how long the machine it leads to is to have been there.
        """
        if now_s < self._retries_s:
            return None
        own = counts(hosts, group.name)
        machine = machines.emptiest(group, desired, hosts, now_s, there_for_s=there_for_s)
        if not machine or not own:
            return None
        origin = max(own, key=lambda node: (own[node], node))
        return Way(origin, machine) if own[origin] - own[machine] > MOST_SKEW else None

    def may_begin(self, now_s: float) -> bool:
        return self.current is None and now_s >= self._next_s

    def begin(self, group: str, name: str, way: Way, now_s: float) -> None:
        self.current = Move(group, name, way.origin, way.machine, now_s)
        self._next_s = now_s + MOVE_EVERY_S

    def end(self, hosts: Mapping[str, Host], now_s: float) -> str:
        """Look whether the one under way is over; returns the process where it has failed."""
        if self.current is None:
            return ""
        move, host = self.current, hosts.get(self.current.name)
        if host is None or host.drains:  # lost, or not wanted any more
            self.current = None
        # Elsewhere there was no room after all: where most are, it would be the one to leave again.
        elif host.node != move.machine or now_s - move.began_s > READY_WITHIN_S:
            self.current, self._retries_s = None, now_s + RETRY_S
            return move.name
        elif host.is_settled(now_s):
            self.current = None
        return ""

    def n_beside(self, group: str) -> int:
        """How many more of this group there are to be meanwhile."""
        return int(self.current is not None and self.current.group == group)
