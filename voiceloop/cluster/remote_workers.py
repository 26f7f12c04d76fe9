"""All workers on the network that a gateway is configured with, joined while it runs.

async with RemoteWorkers(config.workers) as workers:
    engine = workers.of_role("engine")
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic

from voiceloop.backends import OnResumed, RoleName
from voiceloop.canary.trial import Trial
from voiceloop.cluster.address import Address, read_address
from voiceloop.cluster.handshake import LEAST_KEY_BYTES, stretched
from voiceloop.cluster.hello import disagreement, role_of
from voiceloop.cluster.pooled import DOUBTFUL_S, PooledWorkers
from voiceloop.cluster.remote_worker import SILENT_S, Credentials, RemoteWorker
from voiceloop.cluster.tls import client_context
from voiceloop.cluster.worker_list import (
    WorkerList,
    addresses_of,
    read_worker_list,
    watch_worker_list,
)
from voiceloop.errors import ConfigError
from voiceloop.operation import WorkerAddresses, WorkerLoad
from voiceloop.workers.client import answers_of
from voiceloop.workers.messages import CallResumed, HeldModel, Ready

log = logging.getLogger(__name__)

# A server does not wait longer for workers that are not there yet: it says so, and is not ready.
START_WAIT_S = 10.0


def check_keys(settings: WorkerAddresses) -> tuple[str, ...]:
    """Raises: ConfigError where there is no key, or one that can be guessed."""
    for key in settings.key or ("",):
        if len(key.encode()) < LEAST_KEY_BYTES:
            raise ConfigError(
                f"workers.key: expected at least {LEAST_KEY_BYTES} bytes that gateways and workers "
                f"share, found {len(key.encode())}"
            )
    return settings.key


class RemoteWorkers:
    """Enter it to join them, leave it to leave them; they go on.

    roles: those that are elsewhere, whether or not anybody has them yet. is_dispensable: another
    model answers in their place. So no start waits for them, and a line that is silent for as long
    as makes a worker doubtful is given up.
    """

    def __init__(
        self,
        settings: WorkerAddresses,
        roles: Collection[RoleName] | None = None,
        clock: Callable[[], float] = monotonic,
        trial: Trial | None = None,
        *,
        is_dispensable: bool = False,
    ) -> None:
        """trial: of the versions of workers; what a file names is tried there.

        Raises: ConfigError.
        """
        self.workers: tuple[RemoteWorker, ...] = ()
        self._settings = settings
        self._named = addresses_of(settings)
        self._clock = clock
        self._start_wait_s = 0.0 if is_dispensable else START_WAIT_S
        self._silent_s = DOUBTFUL_S if is_dispensable else SILENT_S
        elsewhere = self._named.keys() if roles is None else roles
        self._trial = trial if trial is not None else Trial()
        if self._trial.own_share is not None and not elsewhere:
            wanted = "canary.version: expected workers on the network to try"
            raise ConfigError(f"{wanted}, found none")
        self._pools = {role: PooledWorkers(role, trial=self._trial) for role in elsewhere}
        self._tasks: dict[RemoteWorker, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._is_entered = False
        self._heard: OnResumed = lambda call_id, by: None
        self._credentials = _credentials(settings) if self._pools else None
        if settings.list is not None:
            self._update(read_worker_list(settings.list))
        else:
            self.update(self._named)

    async def __aenter__(self) -> RemoteWorkers:
        self._is_entered = True
        for worker in self.workers:
            self._start(worker)
        if self._settings.list is not None:
            watching = watch_worker_list(self._settings.list, self._update)
            self._watch = asyncio.create_task(watching, name="worker list")
        try:
            async with asyncio.timeout(self._start_wait_s):
                for role in self._named_roles():
                    await self._pools[role].alive()
        except TimeoutError:
            pass  # each has said what is the matter with it
        return self

    async def __aexit__(self, *raised: object) -> None:
        watches = [self._watch] if self._watch is not None else []
        tasks = [*watches, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def update(
        self,
        named: Mapping[RoleName, Sequence[str]],
        shares: Mapping[RoleName, Mapping[str, float]] | None = None,
    ) -> None:
        """Join those that are new; leave those that are not named, once their streams end.

        shares: of new calls, by version. Roles that are not elsewhere are passed over.
        Raises: ConfigError on what is no address.
        """
        wanted = _roles_of({role: named[role] for role in named.keys() & self._pools.keys()})
        staying = [one for one in self.workers if wanted.get(one.address) == one.roles]
        for worker in set(self.workers) - set(staying):
            worker.is_leaving = True
            for role in worker.roles:
                self._pools[role].remove(worker.client)
        known = {worker.address for worker in staying}
        joining = [
            self._new(address, roles) for address, roles in wanted.items() if address not in known
        ]
        self.workers = (*staying, *joining)
        for role, pool in self._pools.items():
            pool.shares = (shares or {}).get(role, {})

    def of_role(self, role: RoleName) -> PooledWorkers | None:
        """Return who has this role; None where it is not elsewhere."""
        return self._pools.get(role)

    def ready(self) -> bool:
        """Whether each role that is elsewhere has a worker that takes new streams."""
        return all(pool.is_alive for pool in self._pools.values())

    async def wait_ready(self) -> None:
        """Return once each role that is elsewhere has had a worker."""
        for pool in self._pools.values():
            await pool.alive()

    def held(self) -> dict[RoleName, HeldModel]:
        """Return what workers say of the model of each role, as far as any has been heard of."""
        told = {role: pool.ready for role, pool in self._pools.items()}
        found = {role: role_of(ready, role) for role, ready in told.items() if ready is not None}
        return {role: one.model for role, one in found.items() if one is not None}

    def loads(self) -> list[WorkerLoad]:
        """The load of each worker; a role without any worker is listed as such."""
        lacking = sorted(self._pools.keys() - self._named_roles())
        nobody = [WorkerLoad(role, (role,), "not named") for role in lacking]
        return [*(worker.load() for worker in self.workers), *nobody]

    def take_answers(self) -> list[tuple[str, float]]:
        """Return what callers waited for since this was last called, with the seconds each took."""
        return answers_of(worker.client.connection for worker in self.workers)

    def tell_resumed(self, call_id: str, by: str) -> None:
        """Tell the other gateways of these workers that a call goes on here."""
        for worker in self.workers:
            if worker.client.connection is not None:
                worker.client.connection.tell(CallResumed(call_id, by))

    def hear_resumed(self, heard: OnResumed) -> None:
        """Have this told, maybe more than once, of each call that goes on at another gateway."""
        self._heard = heard

    def _named_roles(self) -> set[RoleName]:
        return {role for worker in self.workers for role in worker.roles}

    def _update(self, found: WorkerList) -> None:
        """As a file says, beside what the configuration names."""
        listed = addresses_of(found)
        both = {role: (*self._named.get(role, ()), *listed.get(role, ())) for role in self._pools}
        self._trial.begin(found.canary)
        self.update(both, found.shares)

    def _new(self, address: Address, roles: frozenset[RoleName]) -> RemoteWorker:
        assert self._credentials is not None  # there are roles elsewhere
        worker = RemoteWorker(
            address, roles, self._credentials, self._clock,
            objection=self._objection, on_resumed=lambda call: self._heard(call.call_id, call.by),
            silent_s=self._silent_s,
        )  # fmt: skip
        for role in roles:
            self._pools[role].add(worker.client)
        if self._is_entered:  # else it starts with the others
            self._start(worker)
        return worker

    def _start(self, worker: RemoteWorker) -> None:
        task = asyncio.create_task(worker.run(), name=f"worker {worker.address}")
        self._tasks[worker] = task
        task.add_done_callback(lambda ended: self._tasks.pop(worker, None))

    def _objection(self, worker: RemoteWorker, ready: Ready) -> str | None:
        """Return why it cannot serve beside the others."""
        others = [
            (one.client.name, one.client.ready)
            for one in self.workers
            if one is not worker and one.client.is_alive and one.client.ready is not None
        ]
        return disagreement(ready, others, worker.roles)


def _credentials(settings: WorkerAddresses) -> Credentials:
    """Raises: ConfigError."""
    return Credentials(
        tuple(stretched(key.encode()) for key in check_keys(settings)),
        f"{socket.gethostname()}/{os.getpid()}",
        client_context(),
    )


def _roles_of(named: Mapping[RoleName, Sequence[str]]) -> dict[Address, frozenset[RoleName]]:
    """Each address with the roles it is named for: one worker may hold several."""
    found: dict[Address, set[RoleName]] = {}
    for role, texts in named.items():
        for text in texts:
            found.setdefault(read_address(f"workers of the {role}", text), set()).add(role)
    return {address: frozenset(roles) for address, roles in found.items()}
