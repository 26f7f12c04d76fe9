"""What goes wrong, when: each a moment of the simulated time."""

from __future__ import annotations

from dataclasses import dataclass

from voiceloop.cluster.control.hosts import LOST_S

RESTART_S = 2.0  # of a worker: measured for the embedded models (a start with its loading)
COLD_GPU_S = 90.0  # of an engine with a large model on another machine: assumed


@dataclass(frozen=True, slots=True)
class Crash:
    """So many workers of a stage end by themselves, and are back after `back_s`.

    with_machine: a process is started anew by its own host, one whose machine is gone by the
    directory, on another.
    """

    at_s: float
    stage: str
    n_workers: int = 1
    back_s: float = RESTART_S
    with_machine: bool = False


@dataclass(frozen=True, slots=True)
class DirectoryLost:
    """Until it has heard of everybody again nothing is placed and nothing replaced."""

    at_s: float
    back_s: float = LOST_S


@dataclass(frozen=True, slots=True)
class Gray:
    """One worker is slow, and says nothing of it."""

    at_s: float
    stage: str
    times: float = 3.0
    lasts_s: float = 300.0


@dataclass(frozen=True, slots=True)
class GatewayKilled:
    at_s: float
    back_s: float = RESTART_S


@dataclass(frozen=True, slots=True)
class ZoneLost:
    """All workers and gateways of one zone of three."""

    at_s: float
    zone: int = 0
    back_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Deploy:
    """Each worker of a stage is replaced by one of a new version, one after the other.

    The new one is there first; new calls go by the share of workers of each version; the old one
    ends with its last call, or after `drain_s`.
    """

    at_s: float
    stage: str
    each_s: float = 30.0
    drain_s: float = 120.0


Fault = Crash | DirectoryLost | Gray | GatewayKilled | ZoneLost | Deploy
