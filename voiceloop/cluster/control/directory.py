"""The directory: which processes there are, and what is to be done about it. Pure: clock passed in.

Hosts report twice a second and are answered with orders. Nothing is kept on a disk: each host knows
the newest wishes it has heard of, so that a directory that is started anew has all of it back from
the first reports. It places nothing before that.

One rule replaces processes, whether another version is wanted or a machine is to be left: as many
as are wanted are started beside the old ones, new calls go to them as they get ready, and an old
one is drained for each that has been ready for a while.
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
from voiceloop.cluster.control.hosts import LEASE_S, LOST_S, Action, Host, Remove, Start
from voiceloop.cluster.control.machines import Machine, Machines
from voiceloop.cluster.control.moves import STEADY_S, Moves, Way
from voiceloop.cluster.control.plan import Desired, Group
from voiceloop.cluster.control.reports import CanaryCounts, HostReport, HostState, Orders
from voiceloop.cluster.control.scaling import Scaler
from voiceloop.cluster.pool import shares_beside
from voiceloop.cluster.worker_list import WorkerList

log = logging.getLogger(__name__)

PLACE_WAIT_S = 60.0  # for room beside the old ones; after that one of these makes room
CANARY = "-canary"  # behind the name of the group that it is tried beside
SURGE = 2  # processes being started beside those they replace, of one group

ANSWER_S = 0.5  # a queue as old as what callers are promised (slo.answer_ms) is a full worker


class Directory:
    """The processes of a cluster, and what is wanted of it.

    new_name: a name for a host that no other has had, of a group's. is_anew: whether there was one
    before it. Then it knows of everybody who lives by the first reports; who was not heard yet may
    be late, and counts as lost when any other would: until then it places nothing, and names no
    which workers there are.
    """

    def __init__(
        self,
        desired: Desired,
        now_s: float,
        new_name: Callable[[str], str],
        *,
        is_anew: bool = False,
    ) -> None:
        self.desired = desired
        self.hosts: dict[str, Host] = {}
        self._scalers: dict[str, Scaler] = {}
        self.machines = Machines()
        self.moves = Moves()
        self.trial = CanaryCounts()  # of the canary that is wanted, or was wanted last
        self._rebuilt_s = now_s + LOST_S if is_anew else now_s
        self._ticked_s: float | None = None
        self._acts_s: float | None = None  # from when on, where its own hearing is in doubt
        self._new_name = new_name

    @property
    def is_down(self) -> bool:
        """Whether nothing is left of a cluster that was told to stop."""
        return self.desired.is_stopping and not self.hosts

    @property
    def is_known(self) -> bool:
        """Whether a host has heard of what is wanted: a directory after this one will know it."""
        reports = [host.report for host in self.hosts.values() if host.report is not None]
        newest = max((report.generation for report in reports), default=self.desired.generation)
        return newest >= self.desired.generation

    def n_wanted(self, group: Group) -> int:
        """How many processes of a group there are to be."""
        if self.desired.is_stopping:
            return 0
        scaler = self._scalers.get(group.name)
        return scaler.n_wanted if scaler is not None else group.least

    def is_rebuilding(self, now_s: float) -> bool:
        return now_s < self._rebuilt_s

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

    def cordon(self, node: str) -> None:
        """Leave a machine: replace its processes elsewhere, then drain them."""
        nodes = tuple(sorted({*self.desired.cordoned, node}))
        self._change(msgspec.structs.replace(self.desired, cordoned=nodes))

    def uncordon(self, node: str) -> None:
        nodes = tuple(name for name in self.desired.cordoned if name != node)
        self._change(msgspec.structs.replace(self.desired, cordoned=nodes))

    def stop(self) -> None:
        self._change(msgspec.structs.replace(self.desired, is_stopping=True))

    def _change(self, desired: Desired) -> None:
        self.desired = msgspec.structs.replace(desired, generation=self.desired.generation + 1)

    def hear(self, report: HostReport, now_s: float) -> Orders:
        """Take one host's report; returns what it is to do and to know."""
        if report.desired is not None and report.desired.generation > self.desired.generation:
            self.desired = report.desired
        before = self.hosts.get(report.name)
        if before is None:  # placed by a directory before this one
            before = Host(report.name, report.group, report.version, now_s, now_s)
        is_ready = report.state is HostState.READY
        host = replace(
            before,
            heard_s=now_s,
            report=report,
            ready_s=(now_s if before.ready_s is None else before.ready_s) if is_ready else None,
            drains=before.drains or report.state in (HostState.DRAINING, HostState.ENDED),
        )
        self.hosts[report.name] = host
        self.trial.hear(self.desired.trial, report)
        return self._orders(host, now_s)

    def see(self, machines: Sequence[Machine], now_s: float) -> None:
        """Take the machines that there are now; without any, Ray chooses where a process goes."""
        self.machines.see(machines, now_s)

    def forget(self, name: str) -> None:
        """Forget a host whose end Ray has seen."""
        self.hosts.pop(name, None)

    def lose(self, name: str, now_s: float) -> None:
        """This host has died, perhaps with its machine."""
        if (host := self.hosts.pop(name, None)) is not None:
            self.machines.lose_process(host.node, now_s)

    def _orders(self, host: Host, now_s: float) -> Orders:
        assert host.report is not None
        is_older = self.desired.generation > host.report.generation
        return Orders(
            generation=self.desired.generation,
            drains=host.drains,
            desired=self.desired if is_older else None,
            workers=None if self.is_rebuilding(now_s) else self.worker_list(),
        )

    def worker_list(self) -> WorkerList:
        """Every worker that takes new streams, and the shares of versions that replace each other.

        Whether a worker that is silent still serves, its gateways know better: it stays listed.
        """
        listed: dict[RoleName, list[HostReport]] = {"engine": [], "recognizer": [], "voice": []}
        for host in self.hosts.values():
            group = self.desired.group(host.group)
            if host.report is None or host.drains or host.ready_s is None or group is None:
                continue
            for role in group.roles:
                listed[role].append(host.report)
        shares = {role: self._shares(role, reports) for role, reports in listed.items()}
        addresses = {
            role: tuple(sorted(report.process.address for report in reports))
            for role, reports in listed.items()
        }
        versions = tuple(sorted({group.version for group in self.desired.canary}))
        return WorkerList(
            **addresses,
            shares={role: by for role, by in shares.items() if by},
            canary=Canary(self.desired.trial, versions) if versions else None,
        )

    def _shares(self, role: RoleName, reports: Sequence[HostReport]) -> dict[str, float]:
        """Of new calls: to a canary its share, to the others as many as each has workers; to a
        canary that was given up none.

        None where all versions are wanted alike.
        """
        canary = {group.name: group for group in self.desired.canary if role in group.roles}
        tried = {group.version for group in canary.values()}
        counts = Counter(report.version for report in reports)
        wanted = {group.version for group in self.desired.groups}
        # Of a canary before this one, until it is drained.
        given_up = {one.version for one in reports if one.group in canary} - tried - wanted
        others = {v: n for v, n in counts.items() if v not in tried and v not in given_up}
        if not others or (others.keys() <= wanted and others.keys() == counts.keys()):
            return {}
        return shares_beside(counts.keys() & tried, self.desired.share, others)

    # --- what it does about it ---

    def tick(self, now_s: float) -> list[Action]:
        """Say what to place and what to end now; drains go out in answers to reports."""
        is_late = self._ticked_s is not None and now_s - self._ticked_s > LEASE_S
        self._ticked_s = now_s
        if self.is_rebuilding(now_s) or self._doubts_itself(now_s, is_late=is_late):
            return []
        actions: list[Action] = []
        self._judge_canary()
        for host in list(self.hosts.values()):
            is_over = host.report is not None and host.report.state is HostState.ENDED
            if is_over or host.is_lost(now_s) or (host.drains and host.report is None):
                actions.append(Remove(host.name))
                if host.is_lost(now_s):
                    self.lose(host.name, now_s)
                else:
                    self.forget(host.name)
        wanted = () if self.desired.is_stopping else self.desired.all_groups
        if late := self.moves.end(self.hosts, now_s):
            self._drain(self.hosts[late])
            log.error("%s is not ready in the place it was to go to; nothing leaves", late)
        names = {group.name for group in wanted}
        for host in list(self.hosts.values()):
            if host.group not in names:
                self._drain(host)
        for group in wanted:
            actions += self._settle(group, now_s)
        return actions

    def _judge_canary(self) -> None:
        """Go back to the plan there is, as a deploy of it would, where the canary is worse."""
        worse = judge(self.trial.turns) if self.desired.canary else None
        if worse is not None:
            log.error("the canary is given up: %s", worse)
            self._change(self.desired.without_canary(str(worse)))

    def _doubts_itself(self, now_s: float, *, is_late: bool) -> bool:
        """Whether more likely the directory hears nothing than that most hosts are lost at once.

        is_late: it was held up itself, and what hosts have told meanwhile is still on its way.
        """
        heard = [host for host in self.hosts.values() if host.report is not None]
        are_most_lost = 2 * sum(host.is_lost(now_s) for host in heard) > len(heard)
        if is_late or (are_most_lost and self._acts_s is None):
            self._acts_s = now_s + LOST_S
        if self._acts_s is None or now_s < self._acts_s:
            return self._acts_s is not None
        if not are_most_lost:
            self._acts_s = None
        return False

    def _settle(self, group: Group, now_s: float) -> list[Action]:
        """Bring one group nearer to what is wanted of it."""
        staying = [one for one in self.hosts.values() if one.group == group.name and not one.drains]
        good = [one for one in staying if self.is_wanted(one, group)]
        old = [one for one in staying if one not in good]
        n_wanted = self._scaler(group.name, len(good)).observe(
            [self.used(one) for one in staying if one.is_ready(now_s)],
            now_s,
            least=group.least,
            most=group.most,
            n_spare=group.spare,
        )
        n_missing = n_wanted - len(good)
        if old:
            self._make_way(good, old, n_wanted, now_s)
            n_missing = min(n_missing, SURGE - sum(not one.is_ready(now_s) for one in good))
        else:
            n_missing += self.moves.n_beside(group.name)
            self._thin_out(good, -n_missing, now_s)
            if n_missing == 0:
                return self._even_out(group, good, now_s)
        return self._place(group, n_missing, now_s)

    def _thin_out(self, good: Sequence[Host], n_too_many: int, now_s: float) -> None:
        """Drain so many: the youngest of the machine that has most; it has the least to lose."""
        staying = list(good)
        for _ in range(n_too_many):
            own = Counter(one.node for one in staying)
            order = [(one.is_ready(now_s), -own[one.node], -one.placed_s) for one in staying]
            self._drain(staying.pop(order.index(min(order))))

    def _even_out(self, group: Group, good: Sequence[Host], now_s: float) -> list[Action]:
        """Start one more where fewest are; once it has settled, one leaves where most are."""
        is_at_rest = not self._is_replacing() and all(one.is_settled(now_s) for one in good)
        way = self.way_for(group, now_s, STEADY_S)
        if way is None or not is_at_rest or not self.moves.may_begin(now_s):
            return []
        start = self._start(group, now_s, way.machine, way.origin)
        self.moves.begin(group.name, start.name, way, now_s)
        return [start]

    def _is_replacing(self) -> bool:
        """Whether a process of any group is going, or is to go."""
        of = [(host, self.desired.group(host.group)) for host in self.hosts.values()]
        return any(h.drains or g is None or not self.is_wanted(h, g) for h, g in of)

    def way_for(self, group: Group, now_s: float, there_for_s: float = 0.0) -> Way | None:
        """From which machine to which one of this group is to move, where it lies unevenly."""
        hosts = self.hosts.values()
        return self.moves.wanted(
            group, self.desired, self.machines, hosts, now_s, there_for_s=there_for_s
        )

    def is_wanted(self, host: Host, group: Group) -> bool:
        """Whether it is of the version that is wanted, on a machine that is not being left."""
        return host.version == group.version and host.node not in self.desired.cordoned

    def _make_way(
        self, good: Sequence[Host], old: Sequence[Host], n_wanted: int, now_s: float
    ) -> None:
        """Drain as many old ones as there are settled ones in their place."""
        n_settled = sum(one.is_settled(now_s) for one in good)
        going = sorted(old, key=lambda one: (one.is_ready(now_s), one.placed_s))
        n_going = len(old) - max(0, n_wanted - n_settled)
        if n_going <= 0 and self._waits_for_room(good, now_s):
            same = [one for one in self.hosts.values() if one.group == old[0].group]
            is_draining = any(one.drains for one in same)
            serve = [one for one in (*good, *old) if one.is_ready(now_s)]
            is_last = len(serve) <= 1 and old[0].node not in self.desired.cordoned
            n_going = 0 if is_draining or is_last else 1
        for host in going[: max(0, n_going)]:
            self._drain(host)

    def _waits_for_room(self, good: Sequence[Host], now_s: float) -> bool:
        return any(one.report is None and now_s - one.placed_s > PLACE_WAIT_S for one in good)

    def used(self, host: Host) -> float:
        """Share of what it can carry that is taken, by itself or by who waits for it."""
        assert host.report is not None
        process = host.report.process
        waits = [
            other.report.process.queue_age_s.get(process.address, 0.0)
            for other in self.hosts.values()
            if other.report is not None
        ]
        return min(1.0, max(process.used, max(waits) / ANSWER_S))

    def _place(self, group: Group, n: int, now_s: float) -> list[Action]:
        """Start so many processes, apart from the others of their group."""
        starts: list[Action] = []
        for _ in range(n):
            machine = self.machines.emptiest(group, self.desired, self.hosts.values(), now_s)
            starts.append(self._start(group, now_s, machine))
        return starts

    def _start(self, group: Group, now_s: float, machine: str, origin: str = "") -> Start:
        name = self._new_name(group.name)
        self.hosts[name] = Host(name, group.name, group.version, now_s, now_s, machine=machine)
        return Start(name, group, self.desired.cordoned, machine, origin)

    def _drain(self, host: Host) -> None:
        self.hosts[host.name] = replace(host, drains=True)

    def _scaler(self, group: str, n_there: int) -> Scaler:
        """A directory that begins takes nothing down of what it finds, for want of its history."""
        return self._scalers.setdefault(group, Scaler(n_there))
