"""Calls from pages that have no server of their own: site ids, and the visitors' client secrets.

Owns the two routes and their bounds: a key makes a site id once, its page's visitors come with it.
"""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop.access.keys import client_key
from voiceloop.access.origins import check_origin
from voiceloop.access.sites import Site, Visitors, pack, read, unpack, write
from voiceloop.capabilities import Capabilities
from voiceloop.config_reader import is_origin
from voiceloop.errors import Forbidden, InvalidRequest, VoiceLoopError, expected
from voiceloop.http.gate import Door, error_response
from voiceloop.http.health import MAX_SESSION_S, body_of
from voiceloop.realtime.locks import LOCKABLE
from voiceloop.realtime.session_update import merge, within_capabilities
from voiceloop.realtime.settings import Json, SessionSettings
from voiceloop.strangers import network_of

MAX_ORIGINS = 20
MAX_SITE_BODY_BYTES = 16 * 1024  # twice the longest id
DEFAULT_SITE_SESSION_S = 600
DEFAULT_CALLS_PER_HOUR, MAX_CALLS_PER_HOUR = 10, 1000
SECRET_S = 60  # the visitor has clicked: the call begins now
# The answer is for the page that asked, which may be anybody's; no cookie counts here.
READABLE = {"Access-Control-Allow-Origin": "*", "Cache-Control": "no-store"}


def site_routes(door: Door, settings: SessionSettings) -> list[Route]:
    """settings: what a session starts with; the site's is merged into it."""
    visitors = Visitors(time.monotonic)

    async def sites(request: Request) -> Response:
        site = _read_site(await body_of(request))
        backends = door.backends()
        known = backends.capabilities if backends else Capabilities()
        within_capabilities(known, merge(settings, site.session))
        body = pack(site)
        value = write(body, door.keys.sign_site(client_key(request.headers), body))
        return JSONResponse({"object": "voiceloop.site", "site": value})

    async def secret(request: Request) -> Response:
        raw = await body_of(request, MAX_SITE_BODY_BYTES)
        value = raw.get("site")
        if not isinstance(value, str):
            raise expected("site", "a site id", value)
        body, mac = read(value)
        issuer = door.keys.issuer_of_site(body, mac)
        site = unpack(body)
        origin = request.headers.get("origin", "")
        if origin not in site.origins:
            raise Forbidden(f"expected a page of this site, found {origin[:80]!r}")
        # The call itself is held against these: say so here, where its page can read it.
        check_origin(request.headers, door.allowed_origins, is_keyed=not door.keys.is_open)
        client = request.client.host if request.client is not None else ""
        if network := network_of(client):  # "": a proxy here, which stands for many
            visitors.admit(mac, network, site.calls_per_hour)
        made = door.keys.issue_from(issuer, SECRET_S, site.session, site.max_session_s, LOCKABLE)
        return JSONResponse({"value": made.value, "expires_at": made.expires_at}, headers=READABLE)

    async def open_to_pages(request: Request) -> Response:
        try:
            return await secret(request)
        except VoiceLoopError as error:
            response = error_response(error)
            response.headers.update(READABLE)
            return response

    return [
        Route("/v1/realtime/sites", door.keyed(sites), methods=["POST"]),
        Route("/v1/realtime/sites/secret", open_to_pages, methods=["POST"]),
    ]


def _read_site(raw: Json) -> Site:
    """Raises: InvalidRequest."""
    origins, session = raw.get("origins"), raw.get("session") or {}
    if not isinstance(origins, list) or not 1 <= len(origins) <= MAX_ORIGINS:
        raise expected("origins", f"a list of 1 to {MAX_ORIGINS}", origins)
    for origin in origins:
        if not isinstance(origin, str) or not is_origin(origin):
            raise expected("origins", "scheme://host or scheme://host:port", origin)
    if not isinstance(session, dict):
        raise expected("session", "an object", session)
    if session.get("tools"):  # the id is read by everybody
        raise InvalidRequest("expected no tools in a site's session, found some", param="session")
    return Site(
        tuple(origins),
        session,
        _whole(raw, "max_session_seconds", DEFAULT_SITE_SESSION_S, MAX_SESSION_S),
        _whole(raw, "calls_per_hour", DEFAULT_CALLS_PER_HOUR, MAX_CALLS_PER_HOUR),
    )


def _whole(raw: Json, name: str, default: int, most: int) -> int:
    value = raw.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise expected(name, f"1 to {most}", value)
    return value
