"""Starts the worker processes of a server side by side, and knows which has which role.

    async with Supervisor(specs) as supervisor:      # every worker is ready, or it raises
        recognizer = supervisor.recognizer()

Streams of a worker that dies raise ``WorkerLost``; new ones go to its successor.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from time import monotonic

from voiceloop.backends import RoleName
from voiceloop.errors import ConfigError
from voiceloop.operation import WorkerLoad
from voiceloop.workers.client import WorkerClient, answers_of
from voiceloop.workers.messages import WorkerSpec
from voiceloop.workers.models import WorkerLanguageModel, WorkerRecognizer, WorkerVoice
from voiceloop.workers.process import Progress, WorkerProcess
from voiceloop.workers.status import RoleState

log = logging.getLogger(__name__)


def _end_process_without(watch: asyncio.Task[None]) -> None:
    """A server whose workers nobody watches would answer nobody: let whoever runs it start anew."""
    if watch.cancelled() or (error := watch.exception()) is None:
        return
    log.critical("%s is watched no more; this server ends", watch.get_name(), exc_info=error)
    signal.raise_signal(signal.SIGTERM)


class Supervisor:
    """The workers of one server; enter it to start them, leave it to end them."""

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        *,
        clock: Callable[[], float] = monotonic,
        on_progress: Progress | None = None,
        environ: dict[str, str] | None = None,
    ) -> None:
        self.workers = tuple(
            WorkerProcess(spec, clock=clock, on_progress=on_progress, environ=environ)
            for spec in specs
        )
        self._of_role: dict[RoleName, WorkerProcess] = {}
        for worker in self.workers:
            for role in worker.spec.roles:
                if role.role in self._of_role:
                    raise ConfigError(f"expected one worker with the role {role.role}, found two")
                self._of_role[role.role] = worker
        self._watches: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Supervisor:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start every worker, side by side. Raises: BackendRefused or WorkerLost of the first."""
        try:
            async with asyncio.TaskGroup() as group:
                for worker in self.workers:
                    group.create_task(worker.start())
        except BaseExceptionGroup as errors:
            await self.close()
            raise errors.exceptions[0] from None
        except asyncio.CancelledError:
            await self.close()
            raise
        for worker in self.workers:
            name = f"worker {worker.spec.name}"
            watch = asyncio.create_task(worker.run(), name=name)
            watch.add_done_callback(_end_process_without)
            self._watches.append(watch)

    async def close(self) -> None:
        """End every worker; idempotent."""
        watches, self._watches = self._watches, []
        for watch in watches:
            watch.cancel()
        for outcome in await asyncio.gather(*watches, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error("the watch of a worker ended badly", exc_info=outcome)
        await asyncio.gather(*(worker.end() for worker in self.workers))

    def ready(self) -> bool:
        """Whether every role can take a new stream now."""
        return all(worker.client.is_alive for worker in self.workers)

    def loads(self) -> list[WorkerLoad]:
        return [worker.load() for worker in self.workers]

    def take_answers(self) -> list[tuple[str, float]]:
        """Return what callers waited for since this was last called, with the seconds each took."""
        return answers_of(worker.connection for worker in self.workers)

    def states(self) -> list[RoleState]:
        return [state for worker in self.workers for state in worker.states()]

    def recognizer(self) -> WorkerRecognizer:
        return WorkerRecognizer(self._client("recognizer"))

    def language_model(self) -> WorkerLanguageModel:
        return WorkerLanguageModel(self._client("engine"))

    def voice(self) -> WorkerVoice:
        return WorkerVoice(self._client("voice"))

    def _client(self, role: RoleName) -> WorkerClient:
        worker = self._of_role.get(role)
        if worker is None:
            raise ConfigError(f"expected a worker with the role {role}, found none")
        return worker.client
