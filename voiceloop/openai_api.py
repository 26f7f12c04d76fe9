"""The HTTP routes that stock OpenAI clients know, over the models that also hold the calls.

Owns which of them there are, and how many requests are answered at once.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import Route

from voiceloop.admission import Admission
from voiceloop.agent import AgentConfig
from voiceloop.auth import KeyRing
from voiceloop.backends import Backends
from voiceloop.chat_api import chat_routes
from voiceloop.completions_api import completion_routes
from voiceloop.config import Config
from voiceloop.http_door import Door
from voiceloop.models_api import model_routes
from voiceloop.openapi import openapi_route
from voiceloop.speech_api import speech_routes
from voiceloop.transcription_api import transcription_routes

# Beside the calls, not instead of them: the engine has branches for more, but each request there
# takes a share of every step from the people on the line.
MAX_REQUESTS = 16


def openai_routes(
    config: Config,
    agent: AgentConfig,
    *,
    keys: KeyRing,
    not_ready: Callable[[], str | None],
    backends: Callable[[], Backends | None],
) -> list[Route]:
    door = Door(keys, config.allowed_origins, not_ready, backends, Admission(MAX_REQUESTS))
    max_s = 60.0 * config.limits.uncommitted_audio_minutes
    return [
        openapi_route(),
        *model_routes(keys, config),
        *chat_routes(door),
        *completion_routes(door),
        *speech_routes(door, agent.session_settings()),
        *transcription_routes(door, max_s=max_s, language=agent.language),
    ]
