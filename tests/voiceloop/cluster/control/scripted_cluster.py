"""Hosts without processes: a directory's actions are carried out in no time, on a clock of ours."""

from __future__ import annotations

import itertools

import msgspec

from voiceloop.canary.trial import Trial
from voiceloop.cluster.control.directory import Directory, Record
from voiceloop.cluster.control.hosts import TICK_S, Remove, Start
from voiceloop.cluster.control.plan import Desired, Group, Launch
from voiceloop.cluster.control.reports import HostReport, HostState, Orders, ProcessReport

LOAD_S = 3.0  # a process is ready so long after it was placed
MISSED_S = 15.0  # after which Ray knows that a machine is gone
DRAIN_S = 20.0  # and gone so long after it was told to drain


def group(
    name: str = "engine", version: str = "one", least: int = 2, most: int = 2, spare: int = 1
) -> Group:
    roles = () if name == "gateways" else (name,)
    return Group(name, roles, version, least, most, spare, Launch((name,)), {"CPU": 1.0})  # type: ignore[arg-type]


class ScriptedHost:
    """One process, as its keeper would tell of it."""

    def __init__(self, start: Start, node: str, now_s: float) -> None:
        self.start, self.node, self.placed_s = start, node, now_s
        self.orders: Orders | None = None
        self.drained_s: float | None = None
        self.used = 0.1
        self.is_silent = False
        self.never_ready = False
        self.trial = Trial()  # of a gateway
        self.pid = 1

    def report(self, now_s: float) -> HostReport:
        state, said = HostState.STARTING, "loading"
        if self.drained_s is not None:
            is_over = now_s - self.drained_s >= DRAIN_S
            state, said = (HostState.ENDED if is_over else HostState.DRAINING), "draining"
        elif now_s - self.placed_s >= LOAD_S and not self.never_ready:
            state, said = HostState.READY, "ready"
        return HostReport(
            self.start.name,
            self.node,
            state,
            ProcessReport(
                said,  # type: ignore[arg-type]
                f"{self.start.name}:1",
                self.used,
                canary=self.trial.report(),
            ),
            pid=self.pid,
        )

    def obey(self, orders: Orders, now_s: float) -> None:
        self.orders = orders
        if orders.workers is not None:
            self.trial.begin(orders.workers.canary)
        if orders.drains and self.drained_s is None:
            self.drained_s = now_s


class ScriptedCluster:
    """Machines with so many places each, a directory, what it has placed, and a Ray that starts
    anew what has died where there is room."""

    def __init__(self, *groups: Group, places: dict[str, int] | None = None) -> None:
        self.now_s = 0.0
        self.places = places or {"a": 100}
        self.hosts: dict[str, ScriptedHost] = {}
        self.waiting: list[Start] = []
        self.given_up: list[str] = []  # why each canary was
        self.missed: list[tuple[float, Start]] = []  # of lost machines: when Ray knows of it
        self._serial = itertools.count()
        self.directory = self._new_directory(Record(Desired(1, groups)))

    def _new_directory(self, record: Record) -> Directory:
        kept = msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=Record)
        return Directory(kept, lambda group: f"{group}-{next(self._serial)}")

    def lose_directory(self) -> None:
        """It is started anew, with what it has kept."""
        self.directory = self._new_directory(self.directory.record)

    def lose_node(self, node: str) -> None:
        """All on it is gone; Ray knows after a while, and has it run elsewhere."""
        self.places.pop(node)
        for name in [name for name, host in self.hosts.items() if host.node == node]:
            self.missed.append((self.now_s + MISSED_S, self.hosts.pop(name).start))

    def kill(self, name: str) -> None:
        """An actor dies, and Ray starts it anew."""
        self.waiting.append(self.hosts.pop(name).start)

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / TICK_S)):
            self.now_s += TICK_S
            for host in list(self.hosts.values()):
                if not host.is_silent:
                    host.obey(self.directory.hear(host.report(self.now_s)), self.now_s)
            tried = self.directory.desired.canary
            actions = self.directory.tick()
            if tried and not self.directory.desired.canary:
                self.given_up.append(self.directory.desired.given_up)
            for action in actions:
                match action:
                    case Start():
                        self.waiting.append(action)
                    case Remove(name):
                        self.hosts.pop(name, None)
                        self.waiting = [one for one in self.waiting if one.name != name]
            self._place()

    def _free(self, node: str) -> int:
        return self.places[node] - sum(host.node == node for host in self.hosts.values())

    def _place(self) -> None:
        """Where there is most room."""
        self.waiting += [start for at_s, start in self.missed if at_s <= self.now_s]
        self.missed = [one for one in self.missed if one[0] > self.now_s]
        still = []
        for start in self.waiting:
            free = {node: self._free(node) for node in self.places if node not in start.avoid}
            node = max(free, key=lambda name: free[name], default=None)
            if node is None or free[node] <= 0:
                still.append(start)
                continue
            self.hosts[start.name] = ScriptedHost(start, node, self.now_s)
        self.waiting = still

    def nodes(self, group: str = "engine") -> list[str]:
        """Of each machine its name as often as it has one of this group that stays."""
        return sorted(
            host.node
            for host in self.hosts.values()
            if host.start.group.name == group and host.drained_s is None
        )

    def ready(self, group: str = "engine", version: str | None = None) -> list[str]:
        """Names of those that take new streams."""
        return [
            name
            for name, host in self.hosts.items()
            if host.start.group.name == group
            and host.drained_s is None
            and not host.is_silent
            and (version is None or host.start.group.version == version)
            and host.report(self.now_s).state is HostState.READY
        ]
