"""How busy a worker's heartbeats say it is, and how long it has said nothing of its own doing.

Owns the judgement that a heartbeat, or the next step of loading, is late. One that is late because
the machine gave its process no processor, or because the gateway did not look, tells of a busy
machine and not of a hang, and to kill a worker for it would make the machine busier. Pure but for
`cpu_waits` and `peak_memory_mb`, which read /proc.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from voiceloop.workers.messages import Heartbeat

LOAD_SMOOTHING = 0.3  # per heartbeat, of which there are four a second


@dataclass(slots=True)
class Pulse:
    """The heartbeats of one worker so far; utilization: the share of its time it computes."""

    n_beats: int = 0
    utilization: float = 0.0
    last: Heartbeat | None = None

    def observe(self, beat: Heartbeat) -> None:
        if self.last is not None and beat.sent_at > self.last.sent_at:
            passed_ms = 1000 * (beat.sent_at - self.last.sent_at)
            share = min(1.0, (beat.busy_ms - self.last.busy_ms) / passed_ms)
            self.utilization += LOAD_SMOOTHING * (share - self.utilization)
        self.n_beats += 1
        self.last = beat


class WorkerSilence:
    """Since the first look that found no new heartbeat of one worker; times in seconds.

    look_every_s: how often it is looked; a look that comes later was held up by the machine.
    read_waits: what `cpu_waits` says of the worker. It reads a file a thread on the event loop, so
    it is asked only once a heartbeat is late.
    """

    def __init__(
        self,
        look_every_s: float,
        now_s: float,
        n_heartbeats: int,
        read_waits: Callable[[], Mapping[int, float]],
    ) -> None:
        self._look_every_s = look_every_s
        self._looked_at_s = now_s
        self._n_heartbeats = n_heartbeats
        self._read_waits = read_waits
        self._since: tuple[float, Mapping[int, float]] | None = None
        self._late_s = 0.0
        self.own_s = 0.0

    def observe(self, now_s: float, n_heartbeats: int) -> None:
        """Look again; `own_s` is then the silence that nothing else accounts for."""
        late_s = max(0.0, now_s - self._looked_at_s - self._look_every_s)
        self._looked_at_s = now_s
        if n_heartbeats != self._n_heartbeats:
            self._n_heartbeats = n_heartbeats
            self._since, self.own_s = None, 0.0
        elif self._since is None:
            self._since, self._late_s = (now_s, self._read_waits()), 0.0
        else:
            since_s, waits_then_s = self._since
            self._late_s += late_s
            # A step is as late as the thread that waited longest: the others wait for it.
            waited_s = max(
                (
                    wait - waits_then_s.get(thread, 0.0)
                    for thread, wait in self._read_waits().items()
                ),
                default=0.0,
            )
            # A gateway that is late and a worker that waits are one overload: not counted twice.
            self.own_s = max(0.0, now_s - since_s - max(waited_s, self._late_s))


def cpu_waits(pid: int) -> dict[int, float]:
    """Seconds that each thread of a process was ready to run and had to wait for a processor.

    Empty where the kernel does not tell, or the process has gone.
    """
    found: dict[int, float] = {}
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                found[int(thread)] = int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return {}
    return found


def peak_memory_mb(pid: int) -> int:
    """The most memory a process ever held, which grows while it loads a model; 0: not told."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) // 1000
    except (OSError, ValueError, IndexError):
        pass
    return 0
