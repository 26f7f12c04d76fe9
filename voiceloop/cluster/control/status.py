"""The report of ``voiceloop cluster status``: machines, processes, versions, load. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from voiceloop.canary.judge import figure
from voiceloop.canary.trial import TrialState, TrialStatus
from voiceloop.canary.trial import status_of as status_of_trial
from voiceloop.cluster.control.directory import Directory
from voiceloop.cluster.control.hosts import Host, Machine
from voiceloop.cluster.control.plan import Group

NO_REPORT = "waits for room"
COLUMNS = ("process", "machine", "address", "version", "state", "used", "streams", "restarts", "")


class ProcessStatus(msgspec.Struct, frozen=True):
    """One process. streams: of a worker; of a gateway calls. silent_s: since it was heard."""

    name: str
    group: str
    roles: tuple[str, ...]
    version: str
    silent_s: float = 0.0
    machine: str = ""
    address: str = ""
    state: str = NO_REPORT
    used: float = 0.0
    streams: int = 0
    restarts: int = 0
    pid: int = 0
    trouble: str = ""


class GroupStatus(msgspec.Struct, frozen=True):
    """One group: how many of it are ready, wanted, and of another version than the wanted one."""

    name: str
    roles: tuple[str, ...]
    version: str
    ready: int
    wanted: int
    old: int


class Status(msgspec.Struct, frozen=True):
    """The whole cluster. generation: how often what is wanted of it has changed."""

    generation: int
    is_stopping: bool
    is_settled: bool
    groups: tuple[GroupStatus, ...]
    processes: tuple[ProcessStatus, ...]
    machines: tuple[Machine, ...] = ()
    canary: TrialStatus | None = None  # that is tried, or was given up last


def status_of(directory: Directory, machines: Iterable[Machine] = ()) -> Status:
    """Return what the directory knows now. machines: as Ray tells of them."""
    desired, hosts = directory.desired, directory.hosts.values()
    groups = tuple(_group(directory, group) for group in desired.all_groups)
    are_groups_settled = all(one.ready == one.wanted and not one.old for one in groups)
    return Status(
        desired.generation,
        desired.is_stopping,
        are_groups_settled and all(host.is_ready for host in hosts),
        groups,
        tuple(_process(directory, host) for host in sorted(hosts, key=lambda host: host.name)),
        tuple(
            msgspec.structs.replace(machine, is_cordoned=machine.id in desired.cordoned)
            for machine in machines
        ),
        _canary(directory),
    )


def _canary(directory: Directory) -> TrialStatus | None:
    desired = directory.desired
    if not desired.canary and not desired.given_up:
        return None
    state = TrialState.TRYING if desired.canary else TrialState.GIVEN_UP
    versions = (group.version for group in desired.canary)
    return status_of_trial(state, versions, directory.trial.turns, desired.given_up)


def _group(directory: Directory, group: Group) -> GroupStatus:
    hosts = [
        host for host in directory.hosts.values() if host.group == group.name and not host.drains
    ]
    good = [host for host in hosts if directory.is_wanted(host, group)]
    return GroupStatus(
        group.name,
        group.roles,
        group.version,
        sum(host.is_ready for host in good),
        directory.n_wanted(group),
        len(hosts) - len(good),
    )


def _process(directory: Directory, host: Host) -> ProcessStatus:
    group, report = directory.desired.group(host.group), host.report
    roles = group.roles if group is not None else ()
    told = ProcessStatus(host.name, host.group, roles, host.version, host.silent_s)
    if report is None:
        return told
    state = report.state.value if host.is_fresh else "silent"
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
        place = addresses.get(one.machine, one.machine[:8])
        load = f"{one.used:.0%}", str(one.streams), str(one.restarts)
        rows.append((one.name, place, one.address, one.version, one.state, *load, one.trouble))
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
             for row in rows]  # fmt: skip
    for machine in status.machines:
        told = " (being left)" if machine.is_cordoned else ""
        lines.append(f"machine {machine.address}{told}: free {_free(machine)} [{machine.id}]")
    for group in status.groups:
        told = f", {group.old} old ones to go" if group.old else ""
        lines.append(f"{group.name} {group.version}: {group.ready} of {group.wanted} ready{told}")
    return "\n".join([*lines, *(_lines_of_canary(status.canary) if status.canary else ())])


def lack_of_room(status: Status) -> str:
    """Return which processes no machine has room for, in a sentence; "" where there are none."""
    waiting = [one.name for one in status.processes if one.state == NO_REPORT]
    if not waiting:
        return ""
    machines = [f"{_free(one)} at {one.address}" for one in status.machines]
    wanted = f"expected room on a machine for {', '.join(waiting)}"
    return f"{wanted}, found {'; '.join(machines) or 'no machine'}. They start once there is room"


def _free(machine: Machine) -> str:
    free = ", ".join(f"{amount:g} {name}" for name, amount in sorted(machine.free.items()))
    return free or "nothing"


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
