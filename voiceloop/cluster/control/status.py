"""What ``voiceloop cluster status`` shows: machines, processes, versions, load. Pure."""

from __future__ import annotations

import msgspec

from voiceloop.canary.judge import figure
from voiceloop.canary.trial import TrialState, TrialStatus
from voiceloop.canary.trial import status_of as status_of_trial
from voiceloop.cluster.control.directory import Directory
from voiceloop.cluster.control.hosts import Host
from voiceloop.cluster.control.machines import Machine
from voiceloop.cluster.control.plan import Group

NO_REPORT = "waits for room"
COLUMNS = ("process", "machine", "address", "version", "state", "used", "streams", "restarts", "")


class ProcessStatus(msgspec.Struct, frozen=True):
    """One process. streams: of a worker; of a gateway calls. silent_s: since it was heard."""

    name: str
    group: str
    roles: tuple[str, ...]
    machine: str = ""
    address: str = ""
    version: str = ""
    state: str = NO_REPORT
    used: float = 0.0
    streams: int = 0
    restarts: int = 0
    pid: int = 0
    silent_s: float = 0.0
    trouble: str = ""


class GroupStatus(msgspec.Struct, frozen=True):
    """One group: how many of it are ready, wanted, and of another version than the wanted one.

    is_uneven: one of it is to move to a machine that has fewer.
    """

    name: str
    roles: tuple[str, ...]
    version: str
    ready: int
    wanted: int
    old: int
    is_uneven: bool = False


class MoveStatus(msgspec.Struct, frozen=True):
    """A process that was started on one machine, so that one of its group may leave another."""

    process: str
    group: str
    origin: str
    machine: str


class Status(msgspec.Struct, frozen=True):
    """The whole cluster. generation: how often what is wanted of it has changed."""

    generation: int
    is_stopping: bool
    is_settled: bool
    groups: tuple[GroupStatus, ...]
    processes: tuple[ProcessStatus, ...]
    machines: tuple[Machine, ...] = ()
    canary: TrialStatus | None = None  # that is tried, or was given up last
    move: MoveStatus | None = None


def status_of(directory: Directory, now_s: float) -> Status:
    """What the directory knows now."""
    desired = directory.desired
    cordoned = set(desired.cordoned)
    groups = tuple(_group(directory, group, now_s) for group in desired.all_groups)
    hosts = sorted(directory.hosts.values(), key=lambda host: host.name)
    is_settled = directory.moves.current is None and all(
        group.ready == group.wanted and not group.old and not group.is_uneven for group in groups
    )
    return Status(
        desired.generation,
        desired.is_stopping,
        is_settled and not any(host.drains for host in hosts),
        groups,
        tuple(_process(directory, host, now_s) for host in hosts),
        tuple(
            msgspec.structs.replace(machine, is_cordoned=machine.id in cordoned)
            for machine in directory.machines.seen
        ),
        _canary(directory),
        _move(directory),
    )


def _canary(directory: Directory) -> TrialStatus | None:
    desired = directory.desired
    if not desired.canary and not desired.given_up:
        return None
    state = TrialState.TRYING if desired.canary else TrialState.GIVEN_UP
    versions = (group.version for group in desired.canary)
    return status_of_trial(state, versions, directory.trial.turns, desired.given_up)


def _move(directory: Directory) -> MoveStatus | None:
    move = directory.moves.current
    if move is None:
        return None
    return MoveStatus(move.name, move.group, move.origin, move.machine)


def _group(directory: Directory, group: Group, now_s: float) -> GroupStatus:
    hosts = [
        host for host in directory.hosts.values() if host.group == group.name and not host.drains
    ]
    old = sum(not directory.is_wanted(host, group) for host in hosts)
    n_ready = sum(host.is_ready(now_s) and directory.is_wanted(host, group) for host in hosts)
    wanted = directory.n_wanted(group)
    is_uneven = directory.way_for(group, now_s) is not None
    return GroupStatus(group.name, group.roles, group.version, n_ready, wanted, old, is_uneven)


def _process(directory: Directory, host: Host, now_s: float) -> ProcessStatus:
    group, report = directory.desired.group(host.group), host.report
    told = ProcessStatus(
        host.name,
        host.group,
        group.roles if group is not None else (),
        version=host.version,
        silent_s=round(now_s - host.heard_s, 1),
    )
    if report is None:
        return told
    state = report.state.value if host.is_fresh(now_s) else "silent"
    return msgspec.structs.replace(
        told,
        machine=report.node,
        address=report.process.address,
        state="draining" if host.drains else state,
        used=round(directory.used(host), 3),
        streams=report.process.n_streams,
        restarts=report.n_restarts,
        pid=report.pid,
        trouble=report.process.trouble,
    )


def text_of(status: Status) -> str:
    """The table a person reads."""
    addresses = {machine.id: machine.address for machine in status.machines}
    rows = [COLUMNS]
    for one in status.processes:
        rows.append((
            one.name,
            addresses.get(one.machine, one.machine[:8]),
            one.address,
            one.version,
            one.state,
            f"{one.used:.0%}",
            str(one.streams),
            str(one.restarts),
            one.trouble,
        ))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
             for row in rows]  # fmt: skip
    for machine in status.machines:
        free = ", ".join(f"{amount:g} {name}" for name, amount in sorted(machine.free.items()))
        told = " (being left)" if machine.is_cordoned else ""
        lines.append(f"machine {machine.address}{told}: free {free or 'nothing'} [{machine.id}]")
    for group in status.groups:
        told = f", {group.old} old ones to go" if group.old else ""
        told += ", one is to move to an emptier machine" if group.is_uneven else ""
        lines.append(f"{group.name} {group.version}: {group.ready} of {group.wanted} ready{told}")
    if (move := status.move) is not None:
        origin, place = (addresses.get(one, one) for one in (move.origin, move.machine))
        lines.append(f"{move.process} is started on {place}: one is to leave {origin} for it")
    if status.canary is not None:
        lines += _lines_of_canary(status.canary)
    return "\n".join(lines)


def _lines_of_canary(canary: TrialStatus) -> list[str]:
    told = f": {canary.given_up}" if canary.given_up else ""
    lines = [" ".join(["canary", *canary.versions, canary.state.value]) + told]
    for one in canary.measures:
        if one.canary is None or one.baseline is None or one.low is None or one.high is None:
            continue
        lines.append(
            f"  {one.measure.value}: {figure(one.canary)} of {one.n_canary} beside "
            f"{figure(one.baseline)} of {one.n_baseline}; "
            f"apart {figure(one.low, '+')} to {figure(one.high, '+')}"
        )
    return lines
