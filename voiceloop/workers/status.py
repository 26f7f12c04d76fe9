"""Says of a worker whether its roles are ready, and how busy it is.

One form for a worker of this machine and for one on the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from voiceloop.backends import RoleName
from voiceloop.operation import WorkerLoad
from voiceloop.workers.client import WorkerConnection
from voiceloop.workers.messages import RoleReady, served_of

WorkerState = Literal["starting", "loading", "ready", "restarting", "stopped"]


class RoleState(msgspec.Struct, frozen=True):
    """One role as /readyz and ``doctor`` show it."""

    role: RoleName
    worker: str
    ready: bool
    state: WorkerState
    n_restarts: int
    load_ms: float = 0.0
    hop_ms: float = 0.0  # the last event's way from the worker's step to this process
    detail: str = ""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker at one moment. connection: the process that is there, or was there last.

    restarts: how often it was started or joined anew, by cause. trouble: why it is not ready, where
    that is known; of one that is, the failure of a device that it serves after.
    """

    name: str
    roles: Sequence[RoleName]
    state: WorkerState
    restarts: Mapping[str, int]
    connection: WorkerConnection | None
    trouble: str = ""

    def of_roles(self, *, is_ready: bool) -> list[RoleState]:
        """Each role. is_ready: whether it takes new streams now."""
        connection = self.connection
        loaded = {role.role: role for role in _loaded(connection)}
        return [
            RoleState(
                role=role,
                worker=self.name,
                ready=is_ready,
                state=self.state,
                n_restarts=sum(self.restarts.values()),
                load_ms=loaded[role].load_ms if role in loaded else 0.0,
                hop_ms=connection.hop_ms if connection is not None else 0.0,
                detail=loaded[role].detail if role in loaded else self.trouble,
            )
            for role in self.roles
        ]

    def load(self) -> WorkerLoad:
        """How busy it is, and how far behind, for this gateway's calls."""
        connection, roles, restarts = self.connection, tuple(self.roles), dict(self.restarts)
        if connection is None or not connection.is_alive:
            return WorkerLoad(self.name, roles, self.state, restarts=restarts, trouble=self.trouble)
        after = [role.after.message for role in _loaded(connection) if role.after is not None]
        last, is_here = connection.pulse.last, connection.is_here
        return WorkerLoad(
            self.name,
            roles,
            "draining" if connection.is_draining else self.state,
            busy=connection.utilization,
            oldest_s=connection.waits.oldest_s(),
            overdue_s=connection.waits.overdue_s(),
            n_streams=connection.n_streams,
            hop_ms=connection.hop_ms,
            restarts=restarts,
            totals=last.totals if last is not None else {},
            n_streams_of_all=last.n_streams if last is not None and not is_here else 0,
            trouble=after[0] if after else "",
            version="" if is_here else connection.version,
            served=served_of(connection.ready),
        )


def _loaded(connection: WorkerConnection | None) -> Sequence[RoleReady]:
    ready = connection.ready if connection is not None else None
    return ready.roles if ready is not None else ()
