"""The hosts and machines of a cluster as the directory has them. Time counts in ticks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from voiceloop.cluster.control.plan import Group
from voiceloop.cluster.control.reports import HostReport, HostState

TICK_S = 0.5
LEASE_S = 2.0  # four reports: a host that is silent for longer counts for nothing
GONE_S = 30.0  # twice what Ray takes to tell that a machine is gone
LOST_S = 10.0  # silence after which what was to drain is removed
SETTLE_S = 5.0  # a process that has just got ready takes new calls before an old one is drained


class Machine(msgspec.Struct, frozen=True):
    """One machine of the cluster. free: of each resource, what no process has taken, in Ray's
    units."""

    id: str
    address: str
    is_cordoned: bool = False
    free: Mapping[str, float] = {}


def machine_of(node: Mapping[str, Any], free: Mapping[str, float]) -> Machine:
    """One node as Ray tells of it; without the resources that Ray keeps for itself."""
    kept = ("node:", "object_store", "memory")
    named = {name: round(amount, 3) for name, amount in free.items() if not name.startswith(kept)}
    return Machine(node["NodeID"], node["NodeManagerAddress"], free=named)


@dataclass(slots=True)
class Host:
    """One host. Its times grow with the directory's ticks: one that was held up doubts nobody.

    machine: where it was to be placed. was_heard: by this directory or one before it. report: its
    last to this one. silent_s: since then, or since it was placed. ready_s: how long it has been
    ready without a pause; waits_s: or not ready.
    """

    name: str
    group: str
    version: str
    machine: str = ""
    drains: bool = False
    was_heard: bool = False
    report: HostReport | None = None
    silent_s: float = 0.0
    ready_s: float = 0.0
    waits_s: float = 0.0

    def pass_time(self) -> None:
        self.silent_s += TICK_S
        self.ready_s = self.ready_s + TICK_S if self.is_ready else 0.0
        self.waits_s = 0.0 if self.is_ready else self.waits_s + TICK_S

    def hear(self, report: HostReport) -> None:
        self.report, self.was_heard, self.silent_s = report, True, 0.0
        self.drains |= report.state in (HostState.DRAINING, HostState.ENDED)

    @property
    def node(self) -> str:
        return self.report.node if self.report is not None else self.machine

    @property
    def is_fresh(self) -> bool:
        return self.report is not None and self.silent_s <= LEASE_S

    @property
    def is_listed(self) -> bool:
        """Whether gateways are told of it; whether one that is silent serves they know better."""
        is_ready = self.report is not None and self.report.state is HostState.READY
        return is_ready and not self.drains and not self.is_gone

    @property
    def is_ready(self) -> bool:
        return self.is_listed and self.is_fresh

    @property
    def is_settled(self) -> bool:
        """Ready for long enough to have taken its part of new calls."""
        return self.is_ready and self.ready_s >= SETTLE_S

    @property
    def is_gone(self) -> bool:
        """Silent for longer than Ray needs to start it anew: it hangs, or there is no room."""
        return self.was_heard and self.silent_s > GONE_S

    @property
    def is_over(self) -> bool:
        """Drained and gone; or to be drained, and not there to be told so."""
        has_ended = self.report is not None and self.report.state is HostState.ENDED
        return has_ended or (self.drains and self.silent_s > LOST_S)


def counts(hosts: Collection[Host], group: str) -> Counter[str]:
    """How many of a group each machine has that stay, those on their way to it included."""
    staying = (host for host in hosts if host.group == group and not host.drains)
    return Counter(host.node for host in staying if host.node)


def emptiest(
    machines: Sequence[Machine],
    group: Group,
    hosts: Collection[Host],
    groups: Mapping[str, Group],
) -> str:
    """The id of a machine with room for one of this group: fewest of its own, then of all.

    machines: to choose from. groups: by name, for what was placed and is not heard yet. Empty where
    none has room.
    """
    own = counts(hosts, group.name)
    everybody = Counter(host.node for host in hosts if not host.drains)
    fit = []
    for machine in machines:
        wanted = Counter(group.needs)
        for host in hosts:
            if host.report is None and host.machine == machine.id and host.group in groups:
                wanted.update(groups[host.group].needs)
        if all(machine.free.get(name, 0.0) >= amount for name, amount in wanted.items() if amount):
            fit.append(machine.id)
    return min(fit, key=lambda node: (own[node], everybody[node], node), default="")


@dataclass(frozen=True, slots=True)
class Start:
    """Place one process of this group, on none of the machines to avoid.

    machine: where, as long as it is there and has room; anywhere where none is named. is_move:
    there alone, for one of its group that leaves a machine with more.
    """

    name: str
    group: Group
    avoid: tuple[str, ...]
    machine: str = ""
    is_move: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """End what is left of this host."""

    name: str


Action = Start | Remove
