"""Says of a worker whether its roles are ready, and how busy it is.

One form for a worker of this machine and for one on the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from voiceloop.backends import RoleName
from voiceloop.operation import WorkerLoad
from voiceloop.workers.client import WorkerConnection
from voiceloop.workers.messages import RoleReady, served_of

WorkerState = Literal["starting", "loading", "ready", "restarting", "stopped"]


class RoleState(msgspec.Struct, frozen=True):
    """One role of a worker of this machine, as whoever starts it and ``doctor`` show it."""

    role: RoleName
    state: WorkerState
    load_ms: float = 0.0
    detail: str = ""


def states_of(
    roles: Sequence[RoleName], state: WorkerState, connection: WorkerConnection | None
) -> list[RoleState]:
    """Each role. connection: the process that is there, or was there last."""
    loaded = {one.role: (one.load_ms, one.detail) for one in _loaded(connection)}
    return [RoleState(role, state, *loaded.get(role, ())) for role in roles]


def load_of(
    name: str,
    roles: Sequence[RoleName],
    state: WorkerState,
    restarts: Mapping[str, int],
    connection: WorkerConnection | None,
    trouble: str = "",
) -> WorkerLoad:
    """How busy a worker is, and how far behind, for this gateway's calls.

    restarts: how often it was started or joined anew, by cause. trouble: why it is not ready, where
    that is known; of one that is, the failure of a device that it serves after.
    """
    if connection is None or not connection.is_alive:
        return WorkerLoad(name, tuple(roles), state, restarts=dict(restarts), trouble=trouble)
    after = [role.after.message for role in _loaded(connection) if role.after is not None]
    last, is_here = connection.pulse.last, connection.is_here
    return WorkerLoad(
        name,
        tuple(roles),
        "draining" if connection.is_draining else state,
        busy=connection.utilization,
        oldest_s=connection.waits.oldest_s(),
        overdue_s=connection.waits.overdue_s(),
        n_streams=connection.n_streams,
        hop_ms=connection.hop_ms,
        restarts=dict(restarts),
        totals=last.totals if last is not None else {},
        n_streams_of_all=last.n_streams if last is not None and not is_here else 0,
        trouble=after[0] if after else "",
        version="" if is_here else connection.version,
        served=served_of(connection.ready),
    )


def _loaded(connection: WorkerConnection | None) -> Sequence[RoleReady]:
    ready = connection.ready if connection is not None else None
    return ready.roles if ready is not None else ()
