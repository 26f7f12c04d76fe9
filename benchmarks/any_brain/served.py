"""One part of the command: what it found, and a server whose every model is a scripted service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.harness.harness import Bar
from benchmarks.long_call.__main__ import served
from benchmarks.peers.stub_services import spoken
from tests.remote_service import Answer, Service, scripted_remote
from voiceloop.agent import AgentConfig
from voiceloop.config import Ahead, Config
from voiceloop.models.opening import open_backends
from voiceloop.server.app import Gateway

AGENT = AgentConfig(name="Plain", instructions="You answer the telephone of a shop, in a sentence.")


@dataclass(slots=True)
class Found:
    """Of one part: its rows of the table, and the figures behind them."""

    bars: list[Bar] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


@asynccontextmanager
async def served_by(
    service: Service, agent: AgentConfig = AGENT, **chosen: Any
) -> AsyncIterator[str]:
    """A server that asks this service alone; yields its URL. chosen: of `Config`.

    No reader of the turn's end runs beside it: these calls are typed.

    Raises: ConfigError, BackendError: the service is not what a server starts with.
    """
    service.say("/audio/speech", Answer([spoken("Four.")], content_type="audio/pcm"))
    service.say("/audio/transcriptions", Answer([b'{"text": ""}']))
    quick = Ahead(("p_end", "p_voice"))
    async with scripted_remote(service):
        url = (f"http://127.0.0.1:{service.port}/v1",)
        config = Config(preset="remote", stt_url=url, llm_url=url, tts_url=url, anticipation=quick)
        config = replace(config, **chosen)
        async with (
            open_backends(config, agents=(agent,)) as (backends, _),
            served(config, Gateway(config, agent, backends)) as address,
        ):
            yield address
