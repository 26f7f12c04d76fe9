"""The HTTP routes that stock OpenAI clients know, over the models that also hold the calls.

Owns which of them there are, how many requests are answered at once, and the list of models: any
model name is accepted by the other routes, since a server has one model of each kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.config import Config
from voiceloop.errors import InvalidRequest, VoiceLoopError
from voiceloop.http.admission import Admission
from voiceloop.http.auth import KeyRing, check_origin, client_key
from voiceloop.http.chat import chat_routes
from voiceloop.http.completions import completion_routes
from voiceloop.http.gate import Door
from voiceloop.http.health import error_response
from voiceloop.http.openapi import openapi_route
from voiceloop.http.speech import speech_routes
from voiceloop.http.transcription import transcription_routes
from voiceloop.realtime.settings import Json

OWN_NAME = "voiceloop"
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


# --- GET /v1/models: for clients that ask before they begin ---------------------------------------


def model_names(config: Config) -> tuple[str, ...]:
    """Our own name (session and chat), then the remote models that it calls."""
    remote = (
        (config.llm_url, config.llm_model),
        (config.stt_url, config.stt_model),
        (config.tts_url, config.tts_model),
    )
    named = [name for url, name in remote if url is not None and name]
    return tuple(dict.fromkeys([OWN_NAME, *named]))


def model_routes(keys: KeyRing, config: Config) -> list[Route]:
    """The list and each model alone. A client secret may read it, as it may open a session."""
    created = int(time.time())

    def card(name: str) -> Json:
        return {"id": name, "object": "model", "created": created, "owned_by": "voiceloop"}

    def check(request: Request) -> None:
        check_origin(request.headers, config.allowed_origins, is_keyed=not keys.is_open)
        keys.check(client_key(request.headers))

    async def models(request: Request) -> Response:
        try:
            check(request)
        except VoiceLoopError as error:
            return error_response(error)
        data = [card(name) for name in model_names(config)]
        return JSONResponse({"object": "list", "data": data})

    async def model(request: Request) -> Response:
        try:
            check(request)
        except VoiceLoopError as error:
            return error_response(error)
        name = request.path_params["name"]
        if name not in model_names(config):
            missing = InvalidRequest(
                f"expected one of {', '.join(model_names(config))}, found {name[:80]!r}",
                param="model",
                code="model_not_found",
            )
            response = error_response(missing)
            response.status_code = 404
            return response
        return JSONResponse(card(name))

    return [
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", model, methods=["GET"]),
    ]
