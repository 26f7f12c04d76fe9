"""The HTTP routes: those that stock OpenAI clients know, probes, the page, and what has no route.

Owns which of them there are, the list of models (any model name is accepted by the other routes,
since a server has one model of each kind; an agent's is that one with its adapter), and what a
client may know of the agent before it calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from audio import opus
from voiceloop.access.keys import KeyRing, client_key
from voiceloop.access.quotas import Quotas
from voiceloop.admission.places import Admission
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends, Usage
from voiceloop.config import Config
from voiceloop.errors import InvalidRequest
from voiceloop.http.chat import chat_routes
from voiceloop.http.gate import Door, error_response
from voiceloop.http.health import Health, health_routes, realtime_routes
from voiceloop.http.openapi import openapi_route
from voiceloop.http.sites import site_routes
from voiceloop.http.speech import speech_routes
from voiceloop.http.transcription import transcription_routes
from voiceloop.http.web_page import page_routes
from voiceloop.realtime.settings import Json

OWN_NAME = "voiceloop"


def http_routes(
    config: Config,
    agent: AgentConfig,
    agent_named: Callable[[str], AgentConfig],
    *,
    names: Sequence[str] = (),
    keys: KeyRing,
    quotas: Quotas,
    admission: Admission,
    backends: Callable[[], Backends | None],
    not_ready: Callable[[], str | None],
    not_ready_for_calls: Callable[[], str | None],
    report: Callable[[], Json],
    registry: CollectorRegistry,
    observe_usage: Callable[[Usage, str], None],
    answered_by: Callable[[str, Backends], Backends],
) -> list[BaseRoute]:
    """All that is answered over plain HTTP; the arguments: see `Door` and `Health`.

    agent: the first; agent_named: of several that of a name, "" the first; names: theirs.
    """
    origins, settings = config.allowed_origins, agent.session_settings()
    door = Door(keys, origins, not_ready, quotas, backends, admission, observe_usage, answered_by)

    def adapted() -> list[str]:
        return [name for name in names if agent_named(name).llm_adapter is not None]

    max_s = 60.0 * config.limits.uncommitted_audio_minutes
    return [
        *health_routes(Health(not_ready_for_calls, report, registry, keys, config.metrics_key)),
        *realtime_routes(door, lambda name: agent_named(name).session_settings()),
        *site_routes(door, settings),
        openapi_route(),
        *model_routes(door, config, adapted),
        *agent_routes(door, config, agent_named, names),
        *chat_routes(door, names),
        *speech_routes(door, settings),
        *transcription_routes(door, max_s=max_s, language=agent.language),
        *page_routes(),
    ]


async def no_such_route(request: Request, error: Exception) -> Response:
    """A wrong path or method, in the form of every other error."""
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path[:80]}"
    body = {
        "type": "invalid_request_error",
        "code": error.detail.lower().replace(" ", "_"),
        "message": f"expected a path and method of /openapi.json, found {where}",
        "param": None,
    }
    return JSONResponse({"error": body}, error.status_code, error.headers)


# --- GET /v1/models: for clients that ask before they begin ---------------------------------------


def model_names(config: Config) -> tuple[str, ...]:
    """Our own name (session and chat), then the remote models that it calls."""
    remote = (
        (config.llm_url, config.llm_model),
        (config.stt_url, config.stt_model),
        (config.tts_url, config.tts_model),
    )
    named = [name for url, name in remote if url and name]
    return tuple(dict.fromkeys([OWN_NAME, *named]))


def model_routes(door: Door, config: Config, adapted: Callable[[], Sequence[str]]) -> list[Route]:
    """The list and each model alone. A client secret may read it, as it may open a session.

    adapted: agents with an adapter of their own, of which a key lists those that it opens.
    """
    created = int(time.time())

    def named(request: Request) -> list[str]:
        entry = door.keys.check(client_key(request.headers))
        return [*model_names(config), *(name for name in adapted() if entry.opens(name))]

    def card(name: str) -> Json:
        return {"id": name, "object": "model", "created": created, "owned_by": "voiceloop"}

    async def models(request: Request) -> Response:
        data = [card(name) for name in named(request)]
        return JSONResponse({"object": "list", "data": data})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in named(request):
            missing = InvalidRequest(
                f"expected one of {', '.join(named(request))}, found {name[:80]!r}",
                param="model",
                code="model_not_found",
            )
            response = error_response(missing)
            response.status_code = 404
            return response
        return JSONResponse(card(name))

    return [
        Route("/v1/models", door.keyed(models, takes_secrets=True), methods=["GET"]),
        Route("/v1/models/{name:path}", door.keyed(model, takes_secrets=True), methods=["GET"]),
    ]


# --- GET /v1/agent, /v1/agents: who will answer, and who else could -----------------------------


def agent_routes(
    door: Door, config: Config, agent_named: Callable[[str], AgentConfig], names: Sequence[str]
) -> list[Route]:
    """Return the routes that are not OpenAI's. A client secret may read it, as it may open a
    session.
    """

    async def card(request: Request) -> Response:
        entry = door.keys.check(client_key(request.headers))
        agent = agent_named(entry.named(request.query_params.get("agent", "")))
        known = door.models().capabilities
        body = {
            "object": "voiceloop.agent",
            "name": agent.name,
            "try_saying": list(agent.try_saying),
            "preset": config.preset,
            # Our own by their names in MODELS.md, a service's as it is asked for; "" where the
            # service chooses.
            "models": {
                "recognizer": known.recognizer or config.stt_model,
                "language_model": known.language_model or config.llm_model,
                "voice": known.voice_model or config.tts_model,
            },
            "voices": sorted(known.voices),
            "client_tools": [tool.name for tool in agent.tools if tool.is_clients],
            "webrtc": find_spec("aiortc") is not None and opus.is_available(),
        }
        return JSONResponse(body)

    async def several(request: Request) -> Response:
        entry = door.keys.check(client_key(request.headers))
        data = [{"name": name} for name in names if entry.opens(name)]
        return JSONResponse({"object": "list", "data": data})

    return [
        Route("/v1/agent", door.keyed(card, takes_secrets=True), methods=["GET"]),
        Route("/v1/agents", door.keyed(several), methods=["GET"]),
    ]
