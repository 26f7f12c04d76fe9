"""Hosts without processes: a directory's actions are carried out in no time, on a clock of ours."""

from __future__ import annotations

import itertools

from voiceloop.canary.trial import Trial
from voiceloop.cluster.control.directory import Directory
from voiceloop.cluster.control.hosts import Remove, Start
from voiceloop.cluster.control.machines import Machine
from voiceloop.cluster.control.plan import Desired, Group, Launch, Needs
from voiceloop.cluster.control.reports import HostReport, HostState, Orders, ProcessReport

TICK_S = 0.5
LOAD_S = 3.0  # a process is ready so long after it was placed
DRAIN_S = 20.0  # and gone so long after it was told to drain


def group(
    name: str = "engine", version: str = "one", least: int = 2, most: int = 2, spare: int = 1
) -> Group:
    roles = () if name == "gateways" else (name,)
    return Group(name, roles, version, least, most, spare, Launch((name,)), Needs(1.0))  # type: ignore[arg-type]


class ScriptedHost:
    """One process, as its keeper would tell of it."""

    def __init__(self, start: Start, node: str, now_s: float, desired: Desired) -> None:
        self.start, self.node, self.placed_s = start, node, now_s
        self.desired = desired
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
        is_behind = self.orders is not None and self.orders.generation < self.desired.generation
        return HostReport(
            self.start.name,
            self.start.group.name,
            self.start.group.version,
            self.node,
            state,
            ProcessReport(
                said,  # type: ignore[arg-type]
                f"{self.start.name}:1",
                self.used,
                canary=self.trial.report(),
            ),
            self.desired.generation,
            pid=self.pid,
            desired=self.desired if is_behind else None,
        )

    def obey(self, orders: Orders, now_s: float) -> None:
        self.orders = orders
        if orders.desired is not None:
            self.desired = orders.desired
        if orders.workers is not None:
            self.trial.begin(orders.workers.canary)
        if orders.drains and self.drained_s is None:
            self.drained_s = now_s


class ScriptedCluster:
    """Machines with so many places each, a directory, and what it has placed."""

    def __init__(self, *groups: Group, places: dict[str, int] | None = None) -> None:
        self.now_s = 0.0
        self.places = places or {"a": 100}
        self.hosts: dict[str, ScriptedHost] = {}
        self.waiting: list[Start] = []
        self.moves: list[tuple[float, Start]] = []  # when each was begun
        self.given_up: list[str] = []  # why each canary was
        self.moves_given_up: list[str] = []
        self.gone: set[str] = set()  # machines that Ray has not missed yet
        self._serial = itertools.count()
        self._first = Desired(1, groups)
        self.directory = self._new_directory()

    def _new_directory(self, is_anew: bool = False) -> Directory:
        return Directory(
            self._first,
            self.now_s,
            lambda group: f"{group}-{next(self._serial)}",
            is_anew=is_anew,
        )

    def lose_directory(self) -> None:
        """It is started anew, with what it was started with at first."""
        self.directory = self._new_directory(is_anew=True)

    def lose_node(self, node: str, *, is_missed: bool = True) -> None:
        """is_missed: whether Ray knows of it, and places nothing there any more."""
        self.places.pop(node)
        if not is_missed:
            self.gone.add(node)
        for name in [name for name, host in self.hosts.items() if host.node == node]:
            self.kill(name)

    def kill(self, name: str) -> None:
        """An actor dies, and Ray tells of it."""
        del self.hosts[name]
        self.directory.lose(name, self.now_s)

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / TICK_S)):
            self.now_s += TICK_S
            for host in list(self.hosts.values()):
                if not host.is_silent:
                    report = host.report(self.now_s)
                    host.obey(self.directory.hear(report, self.now_s), self.now_s)
            self.directory.see(self.machines(), self.now_s)
            move, desired = self.directory.moves.current, self.directory.desired
            actions = self.directory.tick(self.now_s)
            if desired.canary and not self.directory.desired.canary:
                self.given_up.append(self.directory.desired.given_up)
            if move is not None and self.directory.moves.current is None:
                host = self.directory.hosts.get(move.name)
                self.moves_given_up += [move.name] if host is not None and host.drains else []
            for action in actions:
                match action:
                    case Start():
                        self.waiting.append(action)
                        if action.relieves:
                            self.moves.append((self.now_s, action))
                    case Remove(name):
                        self.hosts.pop(name, None)
                        self.waiting = [one for one in self.waiting if one.name != name]
            self._place()

    def machines(self) -> list[Machine]:
        free = {node: float(self._free(node)) for node in self.places} | dict.fromkeys(
            self.gone, 100.0
        )
        return [Machine(node, node, free={"CPU": amount}) for node, amount in free.items()]

    def _free(self, node: str) -> int:
        return self.places[node] - sum(host.node == node for host in self.hosts.values())

    def _place(self) -> None:
        """Where it is to be, else where there is most room."""
        still = []
        for start in self.waiting:
            free = {node: self._free(node) for node in self.places if node not in start.avoid}
            node = max(free, key=lambda name: free[name], default=None)
            if start.machine in self.gone or free.get(start.machine, 0) > 0:
                node = start.machine
            if node in self.gone:  # waits for an answer that does not come
                still.append(start)
                continue
            if node is None or free[node] <= 0:
                still.append(start)
                continue
            desired = self.directory.desired
            self.hosts[start.name] = ScriptedHost(start, node, self.now_s, desired)
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
