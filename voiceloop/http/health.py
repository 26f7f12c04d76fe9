"""The HTTP side of the gateway: is it alive, is it ready, what does it count.

Owns thin routes over what the server knows; each kind of request has its own list of routes, so
that further APIs stand beside these.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from uuid import uuid4

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop.capabilities import Capabilities
from voiceloop.errors import (
    BackendError,
    BackendRefused,
    BackendTimeout,
    Forbidden,
    FrameTooLarge,
    InternalError,
    InvalidRequest,
    MissingExtra,
    Overloaded,
    RateLimited,
    Unauthorized,
    VoiceLoopError,
    WorkerLost,
    expected,
)
from voiceloop.http.admission import RETRY_AFTER_S
from voiceloop.http.auth import KeyRing, check_origin, client_key
from voiceloop.realtime.client_events import parse_frame
from voiceloop.realtime.session_update import check_capabilities, merge
from voiceloop.realtime.settings import Json, SessionSettings

log = logging.getLogger(__name__)

DEFAULT_SECRET_S = 600
MAX_BODY_BYTES = 512 * 1024


def error_response(error: VoiceLoopError) -> JSONResponse:
    """The error as OpenAI's HTTP APIs send it; one of a model's stands in the log too."""
    status = _status(error)
    if isinstance(error, BackendError) and status >= 500:
        log.warning("an answer over HTTP failed (%s): %s", error.wire_code, error.message)
    headers: dict[str, str] = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    elif status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    body = {
        "type": error.type,
        "code": error.wire_code,
        "message": error.message,
        "param": error.param,
    }
    return JSONResponse({"error": body}, status_code=status, headers=headers)


def _status(error: VoiceLoopError) -> int:
    match error:
        case Unauthorized():
            return 401
        case Forbidden():
            return 403
        case FrameTooLarge():
            return 413
        case RateLimited():
            return 429
        case MissingExtra():
            return 501
        case Overloaded() | WorkerLost():
            return 503
        case BackendTimeout():
            return 504
        case BackendRefused() | InvalidRequest():
            return 400
        case BackendError():
            return 502
        case InternalError():
            return 500
    return 400


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


def health_routes(
    *,
    registry: CollectorRegistry,
    keys: KeyRing,
    allowed_origins: Sequence[str],
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
            check_origin(request.headers, allowed_origins, is_keyed=not keys.is_open)
            keys.check_lasting(client_key(request.headers))
        except VoiceLoopError as error:
            return error_response(error)
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return [
        Route("/healthz", healthz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def realtime_routes(
    *,
    keys: KeyRing,
    allowed_origins: Sequence[str],
    settings: SessionSettings,
    capabilities: Callable[[], Capabilities],
) -> list[Route]:
    """``POST /v1/realtime/client_secrets``: a short-lived key that a browser may hold.

    Args:
        settings: what a session starts with; the session asked for is merged into it.
        capabilities: what is known of the models by now.
    """

    async def client_secrets(request: Request) -> Response:
        try:
            check_origin(request.headers, allowed_origins, is_keyed=not keys.is_open)
            keys.check_lasting(client_key(request.headers))
            seconds, session = _read_secret_request(await _body(request))
            merged = merge(settings, session)
            check_capabilities(capabilities(), merged)
            secret = keys.issue(seconds, session)
        except VoiceLoopError as error:
            return error_response(error)
        wire = merged.to_wire(f"sess_{uuid4().hex[:24]}", secret.expires_at)
        return JSONResponse(
            {"value": secret.value, "expires_at": secret.expires_at, "session": wire}
        )

    return [Route("/v1/realtime/client_secrets", client_secrets, methods=["POST"])]


async def _body(request: Request) -> Json:
    """The JSON object of a request; nothing counts as an empty one. Raises: InvalidRequest."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise InvalidRequest(f"expected a body of at most {MAX_BODY_BYTES} bytes, found more")
    if not body.strip():
        return {}
    try:
        return parse_frame(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidRequest("expected UTF-8 JSON, found other bytes") from None


def _read_secret_request(raw: Json) -> tuple[int, Json]:
    """Lifetime in seconds and the session's settings. Raises: InvalidRequest."""
    expires = raw.get("expires_after") or {}
    session = raw.get("session") or {}
    if not isinstance(expires, dict):
        raise expected("expires_after", "an object", expires)
    if not isinstance(session, dict):
        raise expected("session", "an object", session)
    if expires.get("anchor", "created_at") != "created_at":
        raise expected("expires_after.anchor", "created_at", expires["anchor"])
    seconds = expires.get("seconds", DEFAULT_SECRET_S)
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 10 <= seconds <= 7200:
        raise expected("expires_after.seconds", "10 to 7200", seconds)
    return seconds, session
