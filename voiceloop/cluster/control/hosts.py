"""The hosts of a cluster, and what is to be done about them. Pure: clock passed in."""

from __future__ import annotations

from dataclasses import dataclass

from voiceloop.cluster.control.plan import Group
from voiceloop.cluster.control.reports import HostReport

LEASE_S = 2.0  # four reports: a host that is silent for longer counts for nothing
LOST_S = 10.0  # and is replaced: a machine under load wakes late, and a start costs more than that
READY_WITHIN_S = 600.0  # what does not get ready by then, as the slowest model does, never will
SETTLE_S = 5.0  # a process that has just got ready takes new calls before an old one is drained


@dataclass(frozen=True, slots=True)
class Host:
    """One host. machine: where it was to be placed. report: None until it is heard at all."""

    name: str
    group: str
    version: str
    placed_s: float
    heard_s: float
    ready_s: float | None = None  # since when it has been ready without a pause
    report: HostReport | None = None
    drains: bool = False
    machine: str = ""

    @property
    def node(self) -> str:
        return self.report.node if self.report is not None else self.machine

    def is_fresh(self, now_s: float) -> bool:
        return self.report is not None and now_s - self.heard_s <= LEASE_S

    def is_ready(self, now_s: float) -> bool:
        return self.ready_s is not None and self.is_fresh(now_s) and not self.drains

    def is_settled(self, now_s: float) -> bool:
        """Ready for long enough to have taken its part of new calls."""
        ready_s = self.ready_s
        return ready_s is not None and self.is_ready(now_s) and now_s - ready_s >= SETTLE_S

    def is_lost(self, now_s: float) -> bool:
        """Silent for too long; one that was placed and never heard waits for room."""
        return self.report is not None and now_s - self.heard_s > LOST_S


@dataclass(frozen=True, slots=True)
class Start:
    """Place one process of this group, on none of the machines to avoid.

    machine: where, as long as it is there and has room; anywhere where none is named. relieves: the
    machine that another one leaves for it.
    """

    name: str
    group: Group
    avoid: tuple[str, ...]
    machine: str = ""
    relieves: str = ""

    def __str__(self) -> str:
        told = f" on {self.machine}, for one that leaves {self.relieves}" if self.relieves else ""
        return f"{self.name}{told}"


@dataclass(frozen=True, slots=True)
class Remove:
    """End what is left of this host."""

    name: str


Action = Start | Remove
