"""The web page at ``/``, and ``/embed.js`` for the pages of others: the files of ``clients/web``.

Owns where those files lie and the headers that keep the page to its own server: it loads nothing
from elsewhere, nobody may frame it, and it alone may use the microphone. Its files are open to all,
for they hold no secret and the page asks for the key itself; what it talks to checks that key.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Found, not imported: the gateway meets its clients only on the wire. A wheel holds the folder in
# the same place as a checkout.
WEB_DIR = Path(__file__).resolve().parents[2] / "clients" / "web"

# What a Host header may be that is named in another header.
HOST = re.compile(rb"[A-Za-z0-9.:\[\]-]{1,255}")
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"permissions-policy", b"microphone=(self), camera=(), geolocation=()"),
    (b"cache-control", b"no-cache"),  # unchanged files still answer 304
    # Another's page runs the widget, whose modules and worklets a browser reads as that page.
    (b"access-control-allow-origin", b"*"),
    (b"cross-origin-resource-policy", b"cross-origin"),
)


class _PageHeaders:
    """Adds ``HEADERS`` to every response of the application behind it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS, _policy(scope)]
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _policy(scope: Scope) -> tuple[bytes, bytes]:
    """The page connects to the server that it came from, which Safari's 'self' takes for http."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    own = b" ws://%b wss://%b" % (host, host) if HOST.fullmatch(host) else b""
    return (
        b"content-security-policy",
        b"default-src 'self'; connect-src 'self'" + own + b"; frame-ancestors 'none'; "
        b"base-uri 'none'; form-action 'none'",
    )


def page_routes(directory: Path = WEB_DIR) -> list[BaseRoute]:
    """``/``, ``/embed`` (an example of a page with the widget), ``/embed.js`` and ``/web/...``.

    Nothing where the folder is absent (a gateway installed alone).
    """
    if not (directory / "index.html").is_file():
        return []

    def file(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
        async def served(request: Request) -> Response:
            return FileResponse(directory / name, media_type=media_type)

        return served

    headers = [Middleware(_PageHeaders), Middleware(GZipMiddleware)]
    example, script = file("embed.html", "text/html"), file("embed.js", "text/javascript")
    return [
        Route("/", file("index.html", "text/html"), methods=["GET"], middleware=headers),
        Route("/embed", example, methods=["GET"], middleware=headers),
        Route("/embed.js", script, methods=["GET"], middleware=headers),
        Mount("/web", StaticFiles(directory=directory), name="web", middleware=headers),
    ]
