"""The hosts and machines of a cluster as the directory has them. Time counts in ticks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
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

    was_heard: by this directory or one before it. report: its last to this one. silent_s: since
    then, or since it was placed. ready_s: how long it has been ready without a pause; waits_s: or
    not ready.
    """

    name: str
    group: str
    version: str
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
        """The machine that it is on; "" until it has been heard."""
        return self.report.node if self.report is not None else ""

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


@dataclass(frozen=True, slots=True)
class Start:
    """Place one process of this group, on none of the machines to avoid."""

    name: str
    group: Group
    avoid: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remove:
    """End what is left of this host."""

    name: str


Action = Start | Remove
