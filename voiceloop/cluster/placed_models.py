"""Each model of a server over the workers that hold it: started here, or joined on the network."""

from __future__ import annotations

from dataclasses import dataclass

from voiceloop.cluster.remote_workers import RemoteWorkers
from voiceloop.workers.models import WorkerLanguageModel, WorkerRecognizer, WorkerVoice
from voiceloop.workers.supervisor import Supervisor


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
