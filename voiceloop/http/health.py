"""The HTTP side of the gateway: is it alive, is it ready, what does it count.

Owns thin routes over what the server knows; each kind of request has its own list of routes, so
that further APIs stand beside these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop.access.keys import KeyRing, client_key, is_same_key, tenant_of
from voiceloop.admission.places import retry_after
from voiceloop.capabilities import Capabilities
from voiceloop.errors import InvalidRequest, Unauthorized, VoiceLoopError, expected
from voiceloop.http.gate import Door, check_is_here, error_response
from voiceloop.realtime.client_events import parse_frame
from voiceloop.realtime.locks import LOCKABLE
from voiceloop.realtime.session_update import merge, within_capabilities
from voiceloop.realtime.settings import Json, SessionSettings

MAX_SESSION_S = 24 * 60 * 60
DEFAULT_SECRET_S = 600
MAX_BODY_BYTES = 512 * 1024
# Of what an issuer says of a secret's holder: it is sent along with every call of a tool.
MAX_CLAIMS, MAX_CLAIM_NAME_CHARS, MAX_CLAIM_CHARS = 8, 64, 128


@dataclass(frozen=True, slots=True)
class Health:
    """What the routes tell. not_ready: what keeps a new caller out; report: the server's state.

    metrics_key: the one that opens the metrics and the report, "" where only this machine may read
    them, with one of the keys where there are any: a plain proxy on it says nothing of whom it asks
    for.
    """

    not_ready: Callable[[], str | None]
    report: Callable[[], Json]
    registry: CollectorRegistry
    keys: KeyRing
    metrics_key: str = ""

    def check_metrics(self, request: Request) -> None:
        """They are sums over all tenants: where they have a key, no tenant's opens them.

        Raises: Forbidden, Unauthorized.
        """
        key = client_key(request.headers)
        if not self.metrics_key:
            check_is_here(request)
            self.keys.check_lasting(key)
        elif not is_same_key(key, self.metrics_key):
            raise Unauthorized("expected the key of the metrics, found none or another one")


def health_routes(health: Health) -> list[Route]:
    """``/healthz`` and ``/readyz`` for probes (no key), ``/metrics`` for Prometheus.

    Who may read the metrics finds the report and the reason in ``/readyz`` too.
    """

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> Response:
        reason, report = health.not_ready(), health.report()
        is_whole = all(worker["state"] == "ready" for worker in report["workers"])
        serves = "ready" if is_whole else "degraded"
        body: Json = {"status": serves if reason is None else "not ready"}
        try:
            health.check_metrics(request)
        except VoiceLoopError:
            pass  # a stranger learns neither the load nor what workers there are
        else:
            body |= ({} if reason is None else {"reason": reason}) | report
        if reason is None:
            return JSONResponse(body)
        return JSONResponse(body, 503, {"Retry-After": retry_after()})

    async def metrics(request: Request) -> Response:
        try:
            health.check_metrics(request)
        except VoiceLoopError as error:
            return error_response(error)
        return Response(generate_latest(health.registry), media_type=CONTENT_TYPE_LATEST)

    return [
        Route("/healthz", healthz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def realtime_routes(door: Door, settings: Callable[[str], SessionSettings]) -> list[Route]:
    """``POST /v1/realtime/client_secrets``: a short-lived key that a browser may hold.

    settings: what a session with the agent of a name starts with; the session asked for is merged
    into it.
    """

    async def client_secrets(request: Request) -> Response:
        key = client_key(request.headers)
        # Where the door is open any key is taken: no name of a client's choice is counted.
        door.quotas.issue_secret("" if door.keys.is_open else tenant_of(key))
        asked = _read_secret_request(await body_of(request), is_page="origin" in request.headers)
        session = asked.session
        backends = door.backends()
        known = backends.capabilities if backends else Capabilities()
        entry = door.keys.check(key)
        agent = entry.named(asked.agent or request.query_params.get("agent", ""))
        merged = within_capabilities(known, merge(settings(agent), session))
        secret = door.keys.issue(
            key, asked.seconds, session, asked.max_session_s, asked.lock, asked.claims, agent
        )
        wire = merged.to_wire(f"sess_{uuid4().hex[:24]}", secret.expires_at)
        return JSONResponse(
            {"value": secret.value, "expires_at": secret.expires_at, "session": wire}
        )

    return [Route("/v1/realtime/client_secrets", door.keyed(client_secrets), methods=["POST"])]


async def body_of(request: Request, most: int = MAX_BODY_BYTES) -> Json:
    """The JSON object of a request; nothing counts as an empty one. Raises: InvalidRequest."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise InvalidRequest(f"expected a body of at most {most} bytes, found more")
    if not body.strip():
        return {}
    try:
        return parse_frame(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidRequest("expected UTF-8 JSON, found other bytes") from None


@dataclass(frozen=True, slots=True)
class _SecretRequest:
    """seconds: its life. max_session_s: of a session that it opens. claims: of its holder. agent:
    who answers; "": of the address, else the server's first.
    """

    seconds: int
    session: Json
    max_session_s: int | None
    lock: tuple[str, ...]
    claims: dict[str, str]
    agent: str


def _read_secret_request(raw: Json, *, is_page: bool) -> _SecretRequest:
    """is_page: a browser asks for it. Raises: InvalidRequest."""
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
    longest = raw.get("max_session_seconds")
    is_whole = isinstance(longest, int) and not isinstance(longest, bool)
    if longest is not None and not (is_whole and 1 <= longest <= MAX_SESSION_S):
        raise expected("max_session_seconds", f"1 to {MAX_SESSION_S}", longest)
    is_for_browser = raw.get("browser", is_page)
    if not isinstance(is_for_browser, bool):
        raise expected("browser", "true or false", is_for_browser)
    lock = raw.get("lock", list(LOCKABLE) if is_for_browser else [])
    if not isinstance(lock, list) or any(name not in LOCKABLE for name in lock):
        raise expected("lock", f"a list of {', '.join(LOCKABLE)}", lock)
    locked = tuple(name for name in LOCKABLE if name in lock)
    agent = raw.get("agent", "")
    if not isinstance(agent, str):
        raise expected("agent", "the name of an agent", agent)
    claims = _read_claims(raw.get("claims") or {})
    return _SecretRequest(seconds, session, longest, locked, claims, agent)


def _read_claims(raw: Any) -> dict[str, str]:
    """What the issuer says of the secret's holder. Raises: InvalidRequest, which repeats none."""
    if not isinstance(raw, dict) or len(raw) > MAX_CLAIMS:
        raise InvalidRequest(
            f"claims: expected an object of at most {MAX_CLAIMS}, found another", param="claims"
        )
    for name, value in raw.items():
        if len(name) > MAX_CLAIM_NAME_CHARS or not isinstance(value, str):
            wanted = f"names of at most {MAX_CLAIM_NAME_CHARS} characters, and strings"
            raise InvalidRequest(f"claims: expected {wanted}, found others", param="claims")
        if len(value) > MAX_CLAIM_CHARS:
            most = f"at most {MAX_CLAIM_CHARS} characters"
            raise InvalidRequest(f"claims: expected {most}, found more", param="claims")
    return raw
