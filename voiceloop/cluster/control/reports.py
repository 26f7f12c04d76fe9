"""Reports between the processes of a cluster, their hosts and the directory. Pure."""

from __future__ import annotations

from enum import Enum
from typing import Literal

import msgspec

from voiceloop.canary.trial import TrialReport
from voiceloop.canary.turns import Turns, added
from voiceloop.cluster.worker_list import WorkerList
from voiceloop.errors import VoiceLoopError

REPORT_EVERY_S = 0.5
MAX_LINE_BYTES = 4096  # a pipe takes as much at once or not at all

ProcessState = Literal["loading", "ready", "draining"]


class ReportError(VoiceLoopError):
    """A line that no process of ours writes."""

    code = "wrong_report"


class ProcessReport(msgspec.Struct, frozen=True):
    """The report that ``voiceloop worker --json`` and ``voiceloop gateway --json`` write twice a
    second.

    address: HOST:PORT of a worker, the URL of a gateway. used: share of what it can carry, 0 to 1.
    n_streams: streams of a worker, calls of a gateway. queue_age_s: of the workers that a gateway
    uses, how long what waits longest has waited, by address. trouble: why it is not ready. canary:
    what the gateway has counted of one that is tried.
    """

    state: ProcessState
    address: str = ""
    used: float = 0.0
    n_streams: int = 0
    queue_age_s: dict[str, float] = {}
    trouble: str = ""
    canary: TrialReport | None = None


class HostState(Enum):
    """A process as its host has it."""

    STARTING = "starting"  # placed, loading, or between two starts
    READY = "ready"
    DRAINING = "draining"
    ENDED = "ended"  # drained, and gone for good


class HostReport(msgspec.Struct, frozen=True):
    """The report of a host to the directory. node: the machine that it is on."""

    name: str
    node: str
    state: HostState
    process: ProcessReport
    n_restarts: int = 0
    pid: int = 0


class Orders(msgspec.Struct, frozen=True):
    """The directory's answer. workers: None where it does not know them yet."""

    drains: bool = False
    workers: WorkerList | None = None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ProcessReport)


def encode_line(report: ProcessReport) -> bytes:
    """One line; of the queues only the longest, where all would not fit in one."""
    line = _encoder.encode(report)
    if len(line) >= MAX_LINE_BYTES:
        oldest = sorted(report.queue_age_s.items(), key=lambda item: item[1])[-16:]
        kept = msgspec.structs.replace(
            report, queue_age_s=dict(oldest), trouble=report.trouble[:500]
        )
        line = _encoder.encode(kept)
    return line + b"\n"


def decode_line(line: bytes) -> ProcessReport:
    """Raises: ReportError."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ReportError(f"expected a line of a process of ours, found {error}") from None


class CanaryCounts:
    """The counts of a canary by all gateways, of one trial at a time.

    A gateway tells sums that grow, until its process ends.
    """

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
