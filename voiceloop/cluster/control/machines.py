"""The machines of a cluster: which there are, and which of them has fewest of a group. Pure.

Ray tells of a machine that has gone after some 15 s, and would place what is lost there again until
then: a machine whose processes are lost, or all silent, is not chosen before one of them is heard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from voiceloop.cluster.control.hosts import Host
from voiceloop.cluster.control.plan import Desired, Group, Needs

SUSPECT_S = 30.0  # twice what Ray takes to tell: five looks, three seconds apart
BYTES_IN_MB = 2**20


class Machine(msgspec.Struct, frozen=True):
    """One machine of the cluster. free: of each resource, what no process has taken, in Ray's
    units: memory in bytes."""

    id: str
    address: str
    is_cordoned: bool = False
    free: Mapping[str, float] = {}


def machine_of(node: Mapping[str, Any], free: Mapping[str, float]) -> Machine:
    """One node as Ray tells of it; without the resources that Ray keeps for itself."""
    kept = ("node:", "object_store")
    named = {name: round(amount, 3) for name, amount in free.items() if not name.startswith(kept)}
    return Machine(node["NodeID"], node["NodeManagerAddress"], free=named)


class Machines:
    """What was seen of them last, since when each is there, and when one lost a process."""

    def __init__(self) -> None:
        self.seen: tuple[Machine, ...] = ()
        self._since_s: dict[str, float] = {}
        self._lost_s: dict[str, float] = {}

    def see(self, machines: Sequence[Machine], now_s: float) -> None:
        """All that there are now."""
        self.seen = tuple(machines)
        self._since_s = {one.id: self._since_s.get(one.id, now_s) for one in machines}
        self._lost_s = {node: at_s for node, at_s in self._lost_s.items() if node in self._since_s}

    def lose_process(self, node: str, now_s: float) -> None:
        """One of this machine's has died; perhaps the machine has."""
        if node in self._since_s:
            self._lost_s[node] = now_s

    def emptiest(
        self,
        group: Group,
        desired: Desired,
        hosts: Collection[Host],
        now_s: float,
        *,
        there_for_s: float = 0.0,
    ) -> str:
        """The id of one with room for a process of this group: fewest of its own, then of all.

        there_for_s: how long it is to have been there. Empty where no such machine is known.
        """
        own = counts(hosts, group.name)
        everybody = Counter(host.node for host in hosts if not host.drains)
        fit = [
            one.id
            for one in self.seen
            if one.id not in desired.cordoned
            and now_s - self._since_s[one.id] >= there_for_s
            and not self._is_suspect(one.id, hosts, now_s)
            and _has_room(one, group.needs, desired, hosts)
        ]
        return min(fit, key=lambda node: (own[node], everybody[node], node), default="")

    def _is_suspect(self, node: str, hosts: Collection[Host], now_s: float) -> bool:
        there = [host for host in hosts if host.node == node and host.report is not None]
        lost_s = self._lost_s.get(node)
        if lost_s is not None and now_s - lost_s < SUSPECT_S:
            return not any(host.heard_s > lost_s for host in there)
        return bool(there) and not any(host.is_fresh(now_s) for host in there)


def counts(hosts: Collection[Host], group: str) -> Counter[str]:
    """How many of a group each machine has that stay, those on their way to it included."""
    staying = (host for host in hosts if host.group == group and not host.drains)
    return Counter(host.node for host in staying if host.node)


def _has_room(machine: Machine, needs: Needs, desired: Desired, hosts: Collection[Host]) -> bool:
    """Whether it has, for what was placed there and is not heard yet as well."""
    wanted = Counter(_amounts(needs))
    for host in hosts:
        group = desired.group(host.group)
        if host.report is None and host.machine == machine.id and group is not None:
            wanted.update(_amounts(group.needs))
    return all(machine.free.get(name, 0.0) >= amount for name, amount in wanted.items())


def _amounts(needs: Needs) -> dict[str, float]:
    """By the names that Ray has for them; what is not needed is left out."""
    memory = float(needs.memory_mb * BYTES_IN_MB)
    named = {"CPU": needs.cpus, "GPU": needs.gpus, "memory": memory, **needs.resources}
    return {name: amount for name, amount in named.items() if amount}
