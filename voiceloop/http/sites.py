"""Calls from pages that have no server of their own: site ids, and the visitors' client secrets.

Owns the two routes and their bounds: a key makes a site id once, its page's visitors come with it.
"""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop.access.keys import client_key
from voiceloop.access.origins import check_origin
from voiceloop.access.signing import written
from voiceloop.access.sites import PREFIX, Site, Visitors, pack, read, unpack
from voiceloop.capabilities import Capabilities
from voiceloop.config_reader import is_origin
from voiceloop.errors import Forbidden, InvalidRequest, VoiceLoopError, expected
from voiceloop.http.body import checked, read_json
from voiceloop.http.gate import Door, error_response
from voiceloop.http.health import MAX_BODY_BYTES, SessionSeconds, told
from voiceloop.realtime.locks import LOCKABLE
from voiceloop.realtime.session_update import merge, within_capabilities
from voiceloop.realtime.settings import Json, SessionSettings
from voiceloop.strangers import network_of

MAX_SITE_BODY_BYTES = 16 * 1024  # twice the longest id
SECRET_S = 60  # the visitor has clicked: the call begins now
# The answer is for the page that asked, which may be anybody's; no cookie counts here.
READABLE = {"Access-Control-Allow-Origin": "*", "Cache-Control": "no-store"}


Origins = Annotated[list[str], Meta(min_length=1, max_length=20)]
CallsPerHour = Annotated[int, Meta(ge=1, le=1000)]


class SiteBody(msgspec.Struct, frozen=True):
    """The body of a request for an id of a page."""

    origins: Annotated[Origins, told("Where the page lies, as `https://shop.example`.")]
    session: Annotated[Json, told("What each call begins with. It holds no tools.")] = {}
    max_session_seconds: Annotated[SessionSeconds, told("The longest call.")] = 600
    calls_per_hour: Annotated[CallsPerHour, told("Calls of one address in an hour.")] = 10


class VisitorBody(msgspec.Struct, frozen=True):
    """The body of a request by a visitor of such a page."""

    site: Annotated[str, told("The id, `site_...`.")]


def site_routes(door: Door, settings: SessionSettings) -> list[Route]:
    """settings: what a session starts with; the site's is merged into it."""
    visitors = Visitors(time.monotonic)

    async def sites(request: Request) -> Response:
        site = _site(checked(await read_json(request, MAX_BODY_BYTES), SiteBody))
        backends = door.backends()
        known = backends.capabilities if backends else Capabilities()
        within_capabilities(known, merge(settings, site.session))
        body = pack(site)
        value = written(PREFIX, body, door.keys.sign_site(client_key(request.headers), body))
        return JSONResponse({"object": "voiceloop.site", "site": value})

    async def secret(request: Request) -> Response:
        asked = checked(await read_json(request, MAX_SITE_BODY_BYTES), VisitorBody)
        body, mac = read(asked.site)
        issuer = door.keys.issuer_of_site(body, mac)
        site = unpack(body)
        origin = request.headers.get("origin", "")
        if origin not in site.origins:
            raise Forbidden(f"The page {origin[:80]!r} is not in this site id.")
        # The call itself is held against these: say so here, where its page can read it.
        check_origin(request.headers, door.allowed_origins, is_keyed=not door.keys.is_open)
        client = request.client.host if request.client is not None else ""
        if network := network_of(client):  # "": a proxy here, which stands for many
            visitors.admit(mac, network, site.calls_per_hour)
        made = door.keys.secrets.issue(issuer, SECRET_S, site.session, site.max_session_s, LOCKABLE)
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


def _site(asked: SiteBody) -> Site:
    """Raises: InvalidRequest."""
    for origin in asked.origins:
        if not is_origin(origin):
            raise expected("origins", "scheme://host or scheme://host:port", origin)
    if asked.session.get("tools"):  # the id is read by everybody
        raise InvalidRequest("expected no tools in a site's session, found some", param="session")
    seconds, calls_per_hour = asked.max_session_seconds, asked.calls_per_hour
    return Site(tuple(asked.origins), asked.session, seconds, calls_per_hour)
