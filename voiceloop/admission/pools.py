"""The load of the workers of each role together: a call goes where there is room. Pure.

Of several workers that hold one role none is full while another is empty (`cluster/pool.py` sees to
that), so they count as one. Where they serve other gateways too, what these take is kept
apart from what our own calls cost: by streams, which every worker counts for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from voiceloop.operation import WorkerLoad

READY = "ready"


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """The workers of a role at one moment, 0 to 1 each.

    own_busy, others_busy: of their time, what our calls and those of other gateways take. kv_used:
    of their KV blocks those that conversations hold.
    """

    name: str
    own_busy: float
    others_busy: float
    kv_used: float

    @property
    def busy(self) -> float:
        return self.own_busy + self.others_busy


def pools_of(workers: Iterable[WorkerLoad]) -> list[PoolLoad]:
    """One of each role; roles that the very same workers hold are one."""
    members: dict[str, list[WorkerLoad]] = {}
    for worker in workers:
        if worker.state == READY:
            for role in worker.roles:
                members.setdefault(role, []).append(worker)
    roles_of: dict[tuple[str, ...], list[str]] = {}
    for role, holding in members.items():
        roles_of.setdefault(tuple(one.name for one in holding), []).append(role)
    return [
        # Named by its roles alone: what calls cost there is learned under this name.
        _pool(" and ".join(sorted(roles)), members[roles[0]])
        for roles in roles_of.values()
    ]


def _pool(name: str, workers: Sequence[WorkerLoad]) -> PoolLoad:
    own = sum(worker.busy * _own_share(worker) for worker in workers) / len(workers)
    busy = sum(worker.busy for worker in workers) / len(workers)
    n_blocks = sum(worker.totals.get("kv_blocks", 0.0) for worker in workers)
    n_held = sum(worker.totals.get("kv_blocks_held", 0.0) for worker in workers)
    return PoolLoad(name, own, busy - own, n_held / n_blocks if n_blocks else 0.0)


def _own_share(worker: WorkerLoad) -> float:
    """Return our streams among a worker's; its news of all may be a moment old."""
    if not worker.n_streams_of_all:
        return 1.0
    return min(1.0, worker.n_streams / worker.n_streams_of_all)
