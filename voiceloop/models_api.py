"""``GET /v1/models``: what this server answers with, for clients that ask before they begin.

Owns the names. Any model name is accepted by the other routes: a server has one model of each kind.
"""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop.auth import KeyRing, check_origin, client_key
from voiceloop.config import Config
from voiceloop.errors import InvalidRequest, VoiceLoopError
from voiceloop.http_api import error_response
from voiceloop.settings import Json

OWN_NAME = "voiceloop"


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
