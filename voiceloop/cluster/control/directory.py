"""The directory: which processes there are, and what is to be done about it. Pure.

Ray starts what has died anew, where there is room; the directory says how many of what there are to
be, and which of them take new calls. Hosts report twice a second and are answered with orders.

One rule replaces processes, whether another version is wanted or a machine is to be left: as many
as are wanted are started beside the old ones, new calls go to them as they get ready, and an old
one is drained for each that has been ready for a while. Where a process goes Ray chooses.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from voiceloop.backends import RoleName
from voiceloop.canary.judge import judge
from voiceloop.canary.trial import Canary
from voiceloop.cluster.control.hosts import (
    LOST_S,
    TICK_S,
    Action,
    Host,
    Remove,
    Start,
)
from voiceloop.cluster.control.plan import Desired, Group
from voiceloop.cluster.control.reports import CanaryCounts, HostReport, Orders
from voiceloop.cluster.control.scaling import Scaler
from voiceloop.cluster.pool import shares_beside
from voiceloop.cluster.worker_list import WorkerList

log = logging.getLogger(__name__)

PLACE_WAIT_S = 60.0  # for room beside the old ones; after that one of these makes room
CANARY = "-canary"  # behind the name of the group that it is tried beside
# Of the machines, so many start a process at once beside those it replaces, of whatever group; one
# at least. What starts takes cores that callers are answered with (LOG.md, 2026-11-28, "what a
# deploy costs who is in a call").
SURGE = 0.25
ANSWER_S = 0.5  # a queue as old as what callers are promised (slo.answer_ms) is a full worker


class Placed(msgspec.Struct, frozen=True):
    """The facts kept of a host that its reports do not contain."""

    name: str
    group: str
    version: str
    drains: bool
    was_heard: bool


class Record(msgspec.Struct, frozen=True):
    """The facts that a restarted directory knows at once."""

    desired: Desired
    hosts: tuple[Placed, ...] = ()


class Directory:
    """The processes of a cluster, and what is wanted of it.

    record: of the directory before it, else with what is wanted alone. new_name: a name for a host
    that no other has had, of a group's. Time passes for it by its ticks alone.
    """

    def __init__(self, record: Record, new_name: Callable[[str], str]) -> None:
        self.desired = record.desired
        self.hosts = {one.name: Host(*msgspec.structs.astuple(one)) for one in record.hosts}
        self.trial = CanaryCounts()  # of the canary that is wanted, or was wanted last
        self._scalers: dict[str, Scaler] = {}
        self._new_name = new_name
        self._hears_for_s = LOST_S if record.hosts else 0.0

    @property
    def record(self) -> Record:
        """Return the record to be kept before what `tick` returns is carried out."""
        hosts = self.hosts.values()
        return Record(
            self.desired,
            tuple(Placed(h.name, h.group, h.version, h.drains, h.was_heard) for h in hosts),
        )

    @property
    def is_down(self) -> bool:
        """Whether nothing is left of a cluster that was told to stop."""
        return self.desired.is_stopping and not self.hosts

    def n_wanted(self, group: Group) -> int:
        """How many processes of a group there are to be."""
        if self.desired.is_stopping:
            return 0
        scaler = self._scalers.get(group.name)
        return scaler.n_wanted if scaler is not None else group.least

    # --- what others tell it ---

    def want(self, groups: Sequence[Group], environ: Mapping[str, str]) -> None:
        """Take another plan; drain what it does not name. environ: settings that change."""
        environ = {**self.desired.environ, **environ}
        self._change(
            msgspec.structs.replace(
                self.desired.without_canary(),
                groups=tuple(group.with_settings(environ) for group in groups),
                environ=environ,
                is_stopping=False,
            )
        )

    def try_out(self, groups: Sequence[Group], share: float) -> list[str]:
        """Have the workers of another plan that differ take this share of new calls.

        The plan that there is stays; `want` ends it, with either, and so does a canary that is
        worse than the judge allows. Returns the groups that differ.
        """
        versions = {group.name: group.version for group in self.desired.groups}
        groups = [group.with_settings(self.desired.environ) for group in groups]
        canary = tuple(
            replace(
                group,
                name=f"{group.name}{CANARY}",
                least=max(1, math.ceil(share * group.least)),
                spare=0,
            )
            for group in groups
            if group.roles and versions.get(group.name, group.version) != group.version
        )
        self._change(
            msgspec.structs.replace(
                self.desired,
                canary=canary,
                share=share,
                trial=self.desired.generation + 1,
                given_up="",
            )
        )
        return [group.name.removesuffix(CANARY) for group in canary]

    def cordon(self, node: str, is_left: bool = True) -> None:
        """Leave a machine: replace its processes elsewhere, then drain them; or take it again."""
        nodes = {*self.desired.cordoned, node} if is_left else {*self.desired.cordoned} - {node}
        self._change(msgspec.structs.replace(self.desired, cordoned=tuple(sorted(nodes))))

    def stop(self) -> None:
        self._change(msgspec.structs.replace(self.desired, is_stopping=True))

    def _change(self, desired: Desired) -> None:
        self.desired = msgspec.structs.replace(desired, generation=self.desired.generation + 1)

    def hear(self, report: HostReport) -> Orders:
        """Take one host's report; returns what it is to do and to know."""
        host = self.hosts.get(report.name)
        if host is None:  # it was given up while it could not be heard
            return Orders(drains=True)
        host.hear(report)
        self.trial.hear(self.desired.trial, report)
        return Orders(host.drains, None if self._is_rebuilding else self.worker_list())

    def forget(self, name: str) -> None:
        """Forget a host whose end Ray has seen."""
        self.hosts.pop(name, None)

    @property
    def _is_rebuilding(self) -> bool:
        """Whether there was a directory before it, and not everybody was heard since."""
        silent = any(host.report is None and not host.drains for host in self.hosts.values())
        return silent and self._hears_for_s > 0

    def worker_list(self) -> WorkerList:
        """Every worker that takes new streams, and the shares of versions that replace each other.

        Whether a worker that is silent still serves, its gateways know better: it stays listed.
        """
        listed: dict[RoleName, list[Host]] = {"engine": [], "recognizer": [], "voice": []}
        for host in self.hosts.values():
            group = self.desired.group(host.group)
            for role in group.roles if host.is_listed and group is not None else ():
                listed[role].append(host)
        shares = {role: self._shares(role, hosts) for role, hosts in listed.items()}
        addresses = {
            role: tuple(sorted(host.report.process.address for host in hosts if host.report))
            for role, hosts in listed.items()
        }
        versions = tuple(sorted({group.version for group in self.desired.canary}))
        return WorkerList(
            **addresses,
            shares={role: by for role, by in shares.items() if by},
            canary=Canary(self.desired.trial, versions) if versions else None,
        )

    def _shares(self, role: RoleName, hosts: Sequence[Host]) -> dict[str, float]:
        """Return the shares of new calls: to a canary its share, to the others as many as each has
        workers; to a canary that was given up none.

        Empty where all versions are wanted alike.
        """
        canary = {group.name: group for group in self.desired.canary if role in group.roles}
        tried = {group.version for group in canary.values()}
        counts = Counter(host.version for host in hosts)
        wanted = {group.version for group in self.desired.groups}
        # Of a canary before this one, until it is drained.
        given_up = {one.version for one in hosts if one.group in canary} - tried - wanted
        others = {v: n for v, n in counts.items() if v not in tried and v not in given_up}
        if not others or (others.keys() <= wanted and others.keys() == counts.keys()):
            return {}
        return shares_beside(counts.keys() & tried, self.desired.share, others)

    # --- what it does about it ---

    def tick(self) -> list[Action]:
        """Say what to place and what to end now; drains go out in answers to reports."""
        for host in self.hosts.values():
            host.pass_time()
        self._hears_for_s = max(0.0, self._hears_for_s - TICK_S)
        self._judge_canary()
        actions: list[Action] = [Remove(host.name) for host in self.hosts.values() if host.is_over]
        for action in actions:
            self.forget(action.name)
        wanted = () if self.desired.is_stopping else self.desired.all_groups
        names = {group.name for group in wanted}
        for host in self.hosts.values():
            host.drains |= host.group not in names
        for group in wanted:
            actions += self._settle(group)
        return actions

    def _judge_canary(self) -> None:
        """Go back to the plan there is, as a deploy of it would, where the canary is worse."""
        worse = judge(self.trial.turns) if self.desired.canary else None
        if worse is not None:
            log.error("the canary is given up: %s", worse)
            self._change(self.desired.without_canary(str(worse)))

    def _settle(self, group: Group) -> list[Action]:
        """Bring one group nearer to what is wanted of it."""
        staying = [one for one in self.hosts.values() if one.group == group.name and not one.drains]
        good = [one for one in staying if self.is_wanted(one, group)]
        old = [one for one in staying if not self.is_wanted(one, group)]
        # A directory that begins takes nothing down of what it finds, for want of its history.
        n_wanted = self._scalers.setdefault(group.name, Scaler(len(good))).observe(
            [self.used(one) for one in staying if one.is_ready],
            TICK_S,
            least=group.least,
            most=group.most,
            n_spare=group.spare,
        )
        n_missing = n_wanted - len(good)
        if old:
            self._make_way(good, old, n_wanted)
            # In the place of one that is gone, and serves nobody, one starts at once.
            n_gone = sum(one.is_gone for one in old) - sum(not one.is_ready for one in good)
            n_missing = min(n_missing, max(n_gone, self._surge - self._n_starting(good)))
        elif n_missing < 0:
            self._thin_out(good, n_wanted)
        return [self._start(group) for _ in range(n_missing)]

    @property
    def _surge(self) -> int:
        return max(1, int(SURGE * len({one.node for one in self.hosts.values() if one.node})))

    def _n_starting(self, good: Sequence[Host]) -> int:
        """Count processes that are getting ready; one that cannot holds up its own group, of which
        these are, and no other for longer than a minute.
        """
        late = (one for one in self.hosts.values() if not (one.is_ready or one.drains))
        return sum(one in good or (one.waits_s <= PLACE_WAIT_S and not one.is_gone) for one in late)

    def _thin_out(self, good: Sequence[Host], n_wanted: int) -> None:
        """Drain one that is too many, once the others serve: the youngest where most are."""
        own = Counter(one.node for one in good)
        late = [one for one in good if not one.is_ready]
        victim = min(reversed(late or good), key=lambda one: -own[one.node])
        if sum(one.is_settled for one in good if one is not victim) >= n_wanted:
            victim.drains = True

    def is_wanted(self, host: Host, group: Group) -> bool:
        """Whether it is there, of the version that is wanted, on a machine that is not left."""
        is_left = host.node in self.desired.cordoned
        return host.version == group.version and not is_left and not host.is_gone

    def _make_way(self, good: Sequence[Host], old: Sequence[Host], n_wanted: int) -> None:
        """Drain as many old ones as there are settled ones in their place."""
        n_settled = sum(one.is_settled for one in good)
        n_going = len(old) - max(0, n_wanted - n_settled)
        if n_going <= 0 and any(not one.was_heard and one.waits_s > PLACE_WAIT_S for one in good):
            same = [one for one in self.hosts.values() if one.group == old[0].group]
            is_last = sum(one.is_ready for one in same) <= 1
            is_left = old[0].node in self.desired.cordoned
            n_going = int(not any(one.drains for one in same) and (is_left or not is_last))
        going = sorted(old, key=lambda one: one.is_ready)  # and the older before the younger
        for host in going[: max(0, n_going)]:
            host.drains = True

    def used(self, host: Host) -> float:
        """Share of what it can carry that is taken, by itself or by who waits for it."""
        reports = [other.report for other in self.hosts.values() if other.report is not None]
        if host.report is None:
            return 0.0
        process = host.report.process
        waits = [one.process.queue_age_s.get(process.address, 0.0) for one in reports]
        return min(1.0, max(process.used, max(waits) / ANSWER_S))

    def _start(self, group: Group) -> Start:
        name = self._new_name(group.name)
        self.hosts[name] = Host(name, group.name, group.version)
        return Start(name, group, self.desired.cordoned)
