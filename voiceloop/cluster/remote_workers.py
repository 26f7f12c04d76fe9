"""All workers on the network that a gateway is configured with, joined while it runs.

async with RemoteWorkers(config.workers) as workers:
    engine = workers.of_role("engine")
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from voiceloop.backends import RoleName
from voiceloop.cluster.address import Address, read_address
from voiceloop.cluster.handshake import LEAST_KEY_BYTES
from voiceloop.cluster.pooled import PooledWorkers
from voiceloop.cluster.remote_worker import Credentials, RemoteWorker
from voiceloop.cluster.tls import client_context
from voiceloop.errors import ConfigError
from voiceloop.operation import WorkerAddresses, WorkerLoad
from voiceloop.workers.process import RoleState

log = logging.getLogger(__name__)

# A server does not wait longer for workers that are not there yet: it says so, and is not ready.
START_WAIT_S = 10.0


def check_key(settings: WorkerAddresses) -> bytes:
    """Raises: ConfigError where there is no key, or one that can be guessed."""
    key = settings.key.encode()
    if len(key) < LEAST_KEY_BYTES:
        raise ConfigError(
            f"workers.key: expected at least {LEAST_KEY_BYTES} bytes that gateways and workers "
            f"share, found {len(key)}"
        )
    return key


def addresses_of(settings: WorkerAddresses) -> dict[RoleName, tuple[str, ...]]:
    """The addresses of each role that is elsewhere."""
    named: dict[RoleName, tuple[str, ...]] = {
        "engine": settings.engine,
        "recognizer": settings.recognizer,
        "voice": settings.voice,
    }
    return {role: addresses for role, addresses in named.items() if addresses}


class RemoteWorkers:
    """Enter it to join them, leave it to leave them; they go on."""

    def __init__(self, settings: WorkerAddresses, clock: Callable[[], float] = monotonic) -> None:
        """Raises: ConfigError."""
        self.workers: tuple[RemoteWorker, ...] = ()
        self._pools: dict[RoleName, PooledWorkers] = {}
        self._tasks: list[asyncio.Task[None]] = []
        roles = _roles_of(addresses_of(settings))
        if not roles:
            return
        tls = None
        if settings.ca is not None:
            tls = client_context(settings.ca, settings.certfile, settings.keyfile)
        elif settings.certfile is not None:
            raise ConfigError(
                "workers.ca: expected who signs the workers' certificates beside workers.certfile, "
                "found none; without it the line is not encrypted"
            )
        elif not all(address.is_loopback for address in roles):
            log.warning(
                "what callers say goes to the workers in plain text; workers.ca has it encrypted"
            )
        name = f"{socket.gethostname()}/{os.getpid()}"
        credentials = Credentials(check_key(settings), name, tls)
        self.workers = tuple(
            RemoteWorker(address, held, credentials, clock) for address, held in roles.items()
        )
        for role in {role for held in roles.values() for role in held}:
            clients = [one.client for one in self.workers if role in one.roles]
            self._pools[role] = PooledWorkers(role, clients)

    async def __aenter__(self) -> RemoteWorkers:
        self._tasks = [
            asyncio.create_task(one.run(), name=f"worker {one.address}") for one in self.workers
        ]
        try:
            async with asyncio.timeout(START_WAIT_S):
                for worker in self.workers:
                    await worker.client.alive()
        except TimeoutError:
            pass  # each has said what is the matter with it
        return self

    async def __aexit__(self, *raised: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def of_role(self, role: RoleName) -> PooledWorkers | None:
        """Who has this role; None where the configuration names nobody."""
        return self._pools.get(role)

    def ready(self) -> bool:
        """Whether each role that is named has a worker that takes new streams."""
        return all(pool.is_alive for pool in self._pools.values())

    def loads(self) -> list[WorkerLoad]:
        return [worker.load() for worker in self.workers]

    def states(self) -> list[RoleState]:
        return [state for worker in self.workers for state in worker.states()]

    def take_answers(self) -> list[tuple[str, float]]:
        """What callers waited for since this was last called, with the seconds each took."""
        connections = [worker.client.connection for worker in self.workers]
        return [
            (ask.value, seconds)
            for connection in connections
            if connection is not None
            for ask, seconds in connection.waits.take_answers()
        ]


def _roles_of(named: Mapping[RoleName, Sequence[str]]) -> dict[Address, frozenset[RoleName]]:
    """Each address with the roles it is named for: one worker may hold several."""
    found: dict[Address, set[RoleName]] = {}
    for role, texts in named.items():
        for text in texts:
            found.setdefault(read_address(f"workers.{role}", text), set()).add(role)
    return {address: frozenset(roles) for address, roles in found.items()}
