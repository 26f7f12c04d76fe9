"""The HTTP side of the gateway: is it alive, is it ready, what does it count.

Owns thin routes over what the server knows; each kind of request has its own list of routes, so
that further APIs stand beside these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal
from uuid import uuid4

import msgspec
from msgspec import Meta
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop.access.keys import KeyRing, client_key, is_same_key, tenant_of
from voiceloop.admission.places import retry_after
from voiceloop.capabilities import Capabilities
from voiceloop.errors import Unauthorized, VoiceLoopError
from voiceloop.http.body import checked, read_json
from voiceloop.http.gate import Door, check_is_here, error_response
from voiceloop.realtime.locks import LOCKABLE, Lockable
from voiceloop.realtime.session_update import merge, within_capabilities
from voiceloop.realtime.settings import Json, SessionSettings

MAX_BODY_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the server, as the routes show it. not_ready: what keeps a new caller out;
    report: the server's state.

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
        """Check the key of metrics: they are sums over all tenants, so where they have a key, no
        tenant's opens them.

        Raises: Forbidden, Unauthorized.
        """
        key = client_key(request.headers)
        if not self.metrics_key:
            check_is_here(request)
            self.keys.check_lasting(key)
        elif not is_same_key(key, self.metrics_key):
            raise Unauthorized("Invalid key. Send metrics_key as Authorization: Bearer KEY.")


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


class Expiry(msgspec.Struct, frozen=True):
    """How long a client secret opens calls."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, Meta(ge=10, le=7200)] = 600


# Of what an issuer says of a secret's holder: it is sent along with every call of a tool.
Claims = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=128)]],
    Meta(max_length=8),
]
SessionSeconds = Annotated[int, Meta(ge=1, le=24 * 60 * 60)]


def told(description: str) -> Meta:
    """Return what `/openapi.json` and HTTP.md say of a field."""
    return Meta(description=description)


class SecretBody(msgspec.Struct, frozen=True):
    """The body of a request for a client secret."""

    expires_after: Annotated[Expiry, told("How long it opens calls: `seconds`, 10 to 7200.")] = (
        Expiry()
    )
    session: Annotated[Json, told("What each of its calls begins with, as `session.update`.")] = {}
    max_session_seconds: Annotated[
        SessionSeconds | None, told("The longest call that it opens.")
    ] = None
    browser: Annotated[
        bool | None, told("A web page will hold it. Not given: true if a page asks.")
    ] = None
    lock: Annotated[
        list[Lockable] | None,
        told("What its holder may not change. Not given: all for a browser, else nothing."),
    ] = None
    claims: Annotated[Claims, told("Who its holder is, for the agent's tools.")] = {}
    agent: Annotated[
        str,
        told("Who answers, of several agents. Not given: the one of the address, or the first."),
    ] = ""

    def locked(self, *, is_page: bool) -> tuple[str, ...]:
        """is_page: a browser asks for it."""
        is_for_browser = is_page if self.browser is None else self.browser
        lock = self.lock if self.lock is not None else LOCKABLE if is_for_browser else ()
        return tuple(name for name in LOCKABLE if name in lock)


def realtime_routes(door: Door, settings: Callable[[str], SessionSettings]) -> list[Route]:
    """``POST /v1/realtime/client_secrets``: a short-lived key that a browser may hold.

    settings: what a session with the agent of a name starts with; the session asked for is merged
    into it.
    """

    async def client_secrets(request: Request) -> Response:
        key = client_key(request.headers)
        # Where the door is open any key is taken: no name of a client's choice is counted.
        door.quotas.issue_secret("" if door.keys.is_open else tenant_of(key))
        asked = checked(await read_json(request, MAX_BODY_BYTES), SecretBody, private="claims")
        session, lock = asked.session, asked.locked(is_page="origin" in request.headers)
        backends = door.backends()
        known = backends.capabilities if backends else Capabilities()
        entry = door.keys.check(key)
        agent = entry.named(asked.agent or request.query_params.get("agent", ""))
        merged = within_capabilities(known, merge(settings(agent), session))
        secret = door.keys.issue(
            key,
            asked.expires_after.seconds,
            session,
            asked.max_session_seconds,
            lock,
            asked.claims,
            agent,
        )
        wire = merged.to_wire(f"sess_{uuid4().hex[:24]}", secret.expires_at)
        return JSONResponse(
            {"value": secret.value, "expires_at": secret.expires_at, "session": wire}
        )

    return [Route("/v1/realtime/client_secrets", door.keyed(client_secrets), methods=["POST"])]
