"""Judges from a worker's heartbeats how busy it is, and whether it hangs.

Owns the judgement that a heartbeat, or the next step of loading, is late. A worker that got no
processor, or that the gateway looked at late, does not hang: killing it would make a busy machine
busier. A worker that computes does not hang either. Pure but for `thread_times` and
`peak_memory_mb`, which read /proc.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from msgspec import structs

from voiceloop.workers.messages import Heartbeat

LOAD_SMOOTHING = 0.3  # per heartbeat, of which there are four a second
# Three heartbeats missed: the step under way is a long one, and its time is not yet in their sums.
LATE_AFTER_S = 0.75
# A worker that ran for less of its silence waits for something that does not come. What a stopped
# step loop leaves running (a mask compiler's thread, a device's poll) stays below.
IDLE_SHARE = 0.1


@dataclass(slots=True)
class Pulse:
    """The heartbeats of one worker so far; average: the share of its time it computed lately.

    Their own times are of the worker's clock, which may be another machine's; they are late by
    that of whoever reads them.
    """

    n_beats: int = 0
    average: float = 0.0
    last: Heartbeat | None = None
    last_at_s: float | None = None

    def begin(self, now_s: float) -> None:
        """The worker is ready: from here on it must be heard of."""
        self.last_at_s = now_s

    def silence_s(self, now_s: float) -> float:
        """Return the time since the last one arrived, or the worker was ready; 0 before that."""
        return now_s - self.last_at_s if self.last_at_s is not None else 0.0

    def utilization(self, now_s: float) -> float:
        """0 to 1."""
        return 1.0 if self.silence_s(now_s) > LATE_AFTER_S else self.average

    def observe(self, beat: Heartbeat, now_s: float) -> None:
        if self.last is not None and beat.sent_at > self.last.sent_at:
            passed_ms = 1000 * (beat.sent_at - self.last.sent_at)
            share = min(1.0, (beat.busy_ms - self.last.busy_ms) / passed_ms)
            self.average += LOAD_SMOOTHING * (share - self.average)
        self.n_beats += 1
        if not beat.totals and self.last is not None:
            beat = structs.replace(beat, totals=self.last.totals)
        self.last, self.last_at_s = beat, now_s


class ThreadTimes(NamedTuple):
    """Seconds a thread ran on a processor, and was ready to run and waited for one."""

    ran_s: float
    waited_s: float


class Verdict(Enum):
    """The meaning of a worker's silence."""

    BEATING = "beating"
    SLOW = "slow"  # silent, and it computes: what it was asked for may wait, nothing is killed
    HUNG = "hung"  # silent, and its threads do nothing: a lock, a stopped process, a device
    SPINNING = "spinning"  # it computes and says nothing for longer than any step takes

    @property
    def is_lost(self) -> bool:
        """Whether nothing will come of it any more."""
        return self in (Verdict.HUNG, Verdict.SPINNING)


class WorkerSilence:
    """The silence of one worker since the first look that found no new heartbeat; times in seconds.

    look_every_s: how often it is looked; a look that comes later was held up by the machine.
    read_times: what `thread_times` says of the worker. It reads a file a thread on the event loop,
    so it is asked only once a heartbeat is late.
    """

    def __init__(
        self,
        look_every_s: float,
        now_s: float,
        n_heartbeats: int,
        read_times: Callable[[], Mapping[int, ThreadTimes]],
    ) -> None:
        self._look_every_s = look_every_s
        self._looked_at_s = now_s
        self._n_heartbeats = n_heartbeats
        self._read_times = read_times
        self._since: tuple[float, Mapping[int, ThreadTimes]] | None = None
        self._late_s = 0.0
        self.own_s = 0.0
        self.ran_s: float | None = 0.0  # None: the system does not tell

    def observe(self, now_s: float, n_heartbeats: int) -> None:
        """Look again; `own_s` is then the silence that nothing else accounts for."""
        late_s = max(0.0, now_s - self._looked_at_s - self._look_every_s)
        self._looked_at_s = now_s
        if n_heartbeats != self._n_heartbeats:
            self._n_heartbeats = n_heartbeats
            self._since, self.own_s, self.ran_s = None, 0.0, 0.0
        elif self._since is None:
            self._since, self._late_s = (now_s, self._read_times()), 0.0
        else:
            since_s, times_then = self._since
            self._late_s += late_s
            times_now = self._read_times()
            if bool(times_now) != bool(times_then):
                # One of the two readings failed: begin anew with this one, rather than take what
                # a thread did in all its life for what it did since.
                self._since, self._late_s = (now_s, times_now), 0.0
                return
            unknown = ThreadTimes(0.0, 0.0)
            passed = [
                ThreadTimes(now.ran_s - then.ran_s, now.waited_s - then.waited_s)
                for thread, now in times_now.items()
                for then in (times_then.get(thread, unknown),)
            ]
            self.ran_s = sum(times.ran_s for times in passed) if passed else None
            # A step is as late as the thread that waited longest: the others wait for it.
            waited_s = max((times.waited_s for times in passed), default=0.0)
            # A gateway that is late and a worker that waits are one overload: not counted twice.
            self.own_s = max(0.0, now_s - since_s - max(waited_s, self._late_s))

    def verdict(self, hung_after_s: float, spins_after_s: float) -> Verdict:
        """Return what the silence means by now; where no thread's time is told, every worker may
        spin.
        """
        if self.own_s >= spins_after_s:
            return Verdict.SPINNING
        if self.own_s < hung_after_s:
            return Verdict.BEATING
        is_idle = self.ran_s is not None and self.ran_s < IDLE_SHARE * self.own_s
        return Verdict.HUNG if is_idle else Verdict.SLOW


def thread_times(pid: int) -> dict[int, ThreadTimes]:
    """How long each thread of a process ran and waited for a processor.

    Empty where the kernel does not tell, or the process has gone.
    """
    found: dict[int, ThreadTimes] = {}
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return {}
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
                ran_ns, waited_ns = map(int, file.read().split()[:2])
        except (OSError, ValueError):
            continue  # it has ended meanwhile
        found[int(thread)] = ThreadTimes(ran_ns / 1e9, waited_ns / 1e9)
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


class Hop:
    """How long events are on their way; is_here: sender and reader read one clock.

    Another machine's clock has its own zero. Its quickest message is taken to have needed no time:
    what is measured is what the others needed beyond that.
    """

    def __init__(self, is_here: bool) -> None:
        self._apart_s: float | None = 0.0 if is_here else None
        self._is_here = is_here

    def measure_ms(self, sent_at_s: float, now_s: float) -> float:
        passed_s = now_s - sent_at_s
        if self._apart_s is None or (not self._is_here and passed_s < self._apart_s):
            self._apart_s = passed_s
        return 1000 * (passed_s - self._apart_s)
