"""Each model of a server over the workers that hold it: started here, or joined on the network."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from voiceloop.cluster.remote_workers import RemoteWorkers
from voiceloop.errors import BackendRefused
from voiceloop.workers.models import WorkerLanguageModel, WorkerRecognizer, WorkerVoice
from voiceloop.workers.supervisor import Supervisor

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlacedModels:
    """The models of a server, wherever its configuration places them."""

    supervisor: Supervisor
    elsewhere: RemoteWorkers

    def recognizer(self) -> WorkerRecognizer:
        pool = self.elsewhere.of_role("recognizer")
        return WorkerRecognizer(pool) if pool is not None else self.supervisor.recognizer()

    def language_model(self) -> WorkerLanguageModel:
        pool = self.elsewhere.of_role("engine")
        return WorkerLanguageModel(pool) if pool is not None else self.supervisor.language_model()

    def voice(self) -> WorkerVoice:
        pool = self.elsewhere.of_role("voice")
        return WorkerVoice(pool) if pool is not None else self.supervisor.voice()


class TokenCounting:
    """How the language model counts tokens, once a worker that holds it has said so."""

    def __init__(self) -> None:
        self._counter: Callable[[str], int] | None = None

    def counter(self) -> Callable[[str], int] | None:
        """None while that is not known, and where the model has no tokenizer of its own."""
        return self._counter

    @asynccontextmanager
    async def of(self, model: WorkerLanguageModel) -> AsyncIterator[None]:
        """Learn it: at once where a worker is ready, else as soon as one is."""
        if model.is_ready:
            await self._learn(model)
        waiting = asyncio.create_task(self._wait(model), name="token counter")
        try:
            yield
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def _wait(self, model: WorkerLanguageModel) -> None:
        await model.wait_ready()
        if self._counter is None:
            await self._learn(model)

    async def _learn(self, model: WorkerLanguageModel) -> None:
        try:
            self._counter = await asyncio.to_thread(model.token_counter)
        except BackendRefused as error:
            log.error("tokens are counted by their bytes: %s", error)
