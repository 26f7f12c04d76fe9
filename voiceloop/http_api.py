"""The HTTP side of the gateway: is it alive, is it ready, what does it count.

Owns thin routes over what the server knows; each kind of request has its own list of routes, so
that further APIs stand beside these.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop.admission import RETRY_AFTER_S
from voiceloop.auth import KeyRing, client_key
from voiceloop.errors import Forbidden, Overloaded, Unauthorized, VoiceLoopError

Handler = Callable[[Request], Awaitable[Response]]


def error_response(error: VoiceLoopError) -> JSONResponse:
    """The error as OpenAI's HTTP APIs send it."""
    status = 400
    headers: dict[str, str] = {}
    if isinstance(error, Unauthorized):
        status, headers = 401, {"WWW-Authenticate": "Bearer"}
    elif isinstance(error, Forbidden):
        status = 403
    elif isinstance(error, Overloaded):
        status, headers = 503, {"Retry-After": str(RETRY_AFTER_S)}
    body = {
        "type": error.type,
        "code": error.wire_code,
        "message": error.message,
        "param": error.param,
    }
    return JSONResponse({"error": body}, status_code=status, headers=headers)


def health_routes(
    *,
    registry: CollectorRegistry,
    keys: KeyRing,
    not_ready: Callable[[], str | None],
) -> list[Route]:
    """``/healthz`` and ``/readyz`` for probes (no key), ``/metrics`` for Prometheus (key).

    Args:
        not_ready: one sentence that says what is missing, None when calls can be taken.
    """

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        reason = not_ready()
        if reason is None:
            return JSONResponse({"status": "ready"})
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        return JSONResponse({"status": "not ready", "reason": reason}, 503, headers)

    async def metrics(request: Request) -> Response:
        try:
            keys.check(client_key(request.headers))
        except Unauthorized as error:
            return error_response(error)
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return [
        Route("/healthz", healthz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]
