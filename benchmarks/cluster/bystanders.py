"""Processes that start beside a cluster and serve nobody: what starting alone costs its callers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.cluster.machines import N_MACHINES
from voiceloop.cluster.control.keeper import Keeper
from voiceloop.cluster.control.plan import Group
from voiceloop.cluster.control.reports import HostReport, HostState, Orders
from voiceloop.cluster.worker_list import WorkerList


class Bystanders:
    """As many processes as a deploy would start, and as many at a time.

    groups: of a plan with a port of its own; workers: those of the cluster, for its gateways.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        environ: Mapping[str, str],
        command: Sequence[str],
        workers: WorkerList,
        folder: Path,
    ) -> None:
        self._groups, self._environ, self._command = groups, dict(environ), tuple(command)
        self._workers, self._folder = workers, folder
        self._ready: dict[str, asyncio.Event] = {}
        self._drains = False

    async def start_and_end(self) -> None:
        """Return once all of them have been ready, and have ended."""
        names = [(f"{group.name}-{n}", group) for group in self._groups for n in range(group.least)]
        running: list[asyncio.Task[None]] = []
        try:
            for first in range(0, len(names), N_MACHINES):
                batch = names[first : first + N_MACHINES]
                for name, group in batch:
                    self._ready[name] = asyncio.Event()
                    running.append(asyncio.create_task(self._keeper(name, group).run(), name=name))
                await asyncio.gather(*(self._ready[name].wait() for name, _ in batch))
        finally:
            self._drains = True
            await asyncio.gather(*running)

    def _keeper(self, name: str, group: Group) -> Keeper:
        folder = self._folder / name
        folder.mkdir()
        return Keeper(
            name, group.version, group.launch,
            folder=folder, node="", address="127.0.0.1", ask=self._ask, environ=self._environ,
            command=self._command,
        )  # fmt: skip

    async def _ask(self, report: HostReport) -> Orders:
        if report.state is HostState.READY:
            self._ready[report.name].set()
        return Orders(self._drains, self._workers)
