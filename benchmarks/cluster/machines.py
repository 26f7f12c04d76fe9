"""Machines of a cluster, on this one: nodes of Ray, of which one can be lost whole."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from voiceloop.cluster.control.status import Status

N_MACHINES = 3
START_WAIT = {"RAY_raylet_start_wait_time_s": "120"}  # read by Ray: 30 are few at load 15
PLACES = {"place": 32}  # of a machine, for processes; the one with the head has none


class Machines:
    """Three machines beside the head's: what one loses goes to two, before another is there."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._nodes = [self._add() for _ in range(N_MACHINES)]

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=1, resources=PLACES)

    def lose_directory(self) -> None:
        """As by a crash; Ray starts it anew."""
        import ray

        from voiceloop.cluster.ray import DIRECTORY, NAMESPACE

        ray.kill(ray.get_actor(DIRECTORY, NAMESPACE), no_restart=False)

    def lose_one(self, status: Status) -> None:
        """Kill everything on the machine that has most calls, at once, and bring another."""
        streams: dict[str, int] = {node.node_id: 0 for node in self._nodes}
        for one in status.processes:
            if one.machine in streams:
                streams[one.machine] += one.streams
        lost = max(self._nodes, key=lambda node: streams[node.node_id])
        for one in status.processes:
            if one.machine == lost.node_id and one.pid:
                with suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
        self._cluster.remove_node(lost, allow_graceful=False)
        self._nodes.remove(lost)
        self._nodes.append(self._add())


@contextmanager
def machines(environ: dict[str, str]) -> Iterator[Machines]:
    """environ: of Ray's processes, and so of what they start."""
    os.environ.update({**START_WAIT, **environ})
    from ray.cluster_utils import Cluster

    # Its own hooks for an exit are of the main thread, and machines come from another.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1}, shutdown_at_exit=False)
    try:
        yield Machines(cluster)
    finally:
        cluster.shutdown()
