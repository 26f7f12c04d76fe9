"""What all gateways have counted of a canary, together. Pure."""

from __future__ import annotations

from voiceloop.canary.turns import Turns, added
from voiceloop.cluster.control.reports import HostReport


class CanaryCounts:
    """Of one trial at a time. A gateway tells sums that grow, until its process ends."""

    def __init__(self) -> None:
        self._trial = 0
        self._latest: dict[str, tuple[int, Turns]] = {}  # of each host: its process, what it told
        self._before: Turns = {}  # of processes that are gone

    def hear(self, trial: int, report: HostReport) -> None:
        """trial: the one that is wanted; what was counted of another is nothing to it."""
        if trial != self._trial:
            self._trial, self._before = trial, {}
            self._latest.clear()
        told = report.process.canary
        if told is None or told.serial != trial:
            return
        pid, turns = self._latest.get(report.name, (report.pid, {}))
        if pid != report.pid:
            self._before = added((self._before, turns))
        self._latest[report.name] = report.pid, told.turns

    @property
    def turns(self) -> Turns:
        return added((self._before, *(turns for _, turns in self._latest.values())))
