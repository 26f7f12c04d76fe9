"""Our server on a real socket with scripted models, as it is or with a fault put in at the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from clients.conformance.check import Target
from clients.conformance.suite import recorded_speech
from tests.conformance.mutants import Mutant, MutatedApp
from tests.fakes import EnergyVad, FakeLanguageModel, FakeRecognizer, FakeVoice, instant_backends
from tests.serving import serving
from voiceloop.agent import AgentConfig
from voiceloop.config import Config, Limits
from voiceloop.server.app import Gateway, build_app

KEY = "conformance-key"
WORDS = "We open at nine and close at five every day."


@asynccontextmanager
async def conforming(mutants: Iterable[Mutant] = (), greeting: str = "") -> AsyncIterator[str]:
    """Yields the URL of the session; ``?mutant=NAME`` puts that fault in.

    greeting: what the agent says first to a client that does not configure its session.
    """
    backends = instant_backends(
        recognizer=FakeRecognizer(("what time do you close on saturday",)),
        language_model=FakeLanguageModel((WORDS,), p_end_of_turn=lambda text: 1.0),
        voice=FakeVoice(ms_per_char=15.0),
    )
    config = Config(keys=(KEY,), limits=Limits(max_sessions=1000, admit_by_load=False))
    agent = AgentConfig(instructions="Be kind.", greeting=greeting)
    gateway = Gateway(config, agent, backends)
    gateway.calls.new_vad = EnergyVad  # a network for each of 100 calls
    async with serving(MutatedApp(build_app(gateway), mutants), config) as port:
        yield f"ws://127.0.0.1:{port}/v1/realtime"


def target_of(url: str, **fields: object) -> Target:
    """Impatient: the scripted models answer at once."""
    speech = recorded_speech("3_yes")
    options: dict[str, object] = {"quiet_s": 0.1, "idle_timeout_ms": 1000, "timeout_s": 20.0}
    return Target(url, speech, KEY, **{**options, **fields})  # type: ignore[arg-type]
