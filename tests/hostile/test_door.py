"""Every route of the application refuses who may not come in, before it reads or does anything.

The routes are the application's own list: one added later is tried here without being named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Message

from tests.hand_clock import HandClock
from tests.tables import each_row
from voiceloop.access.keys import KeyRing
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.config import Config
from voiceloop.server.app import Gateway, build_app

KEY = "the-only-key"
# Open to all, for they tell nothing: probes, the page (it asks for the key itself), the API's form,
# the widget, and the secret of a site's visitor, which that site's signed id opens (test_sites).
NO_CALLERS = {"/metrics"}  # no key of a caller opens them from elsewhere
OPEN = {
    "/", "/healthz", "/readyz", "/openapi.json", "/web", "/embed", "/embed.js",
    "/v1/realtime/sites/secret",
}  # fmt: skip


def application() -> tuple[ASGIApp, list[BaseRoute], str]:
    """The app with one key, models that break at the first touch, and an expired client secret."""
    gateway = Gateway(Config(keys=(KEY,)), AgentConfig(), cast("Backends", object()))
    clock = HandClock(1_000_000.0)
    gateway.keys = KeyRing((KEY,), clock)
    expired = gateway.keys.issue(KEY, 10, {}).value
    clock.now_s += 11
    app = build_app(gateway)
    return app, list(app.routes), expired


APP, ROUTES, EXPIRED = application()
CALLERS: dict[str, tuple[dict[str, str], int]] = {
    "no key": ({}, 401),
    "bad key": ({"authorization": "Bearer not-it"}, 401),
    "bad azure key": ({"api-key": "not-it"}, 401),
    "expired": ({"authorization": f"Bearer {EXPIRED}"}, 401),
    "invented": ({"authorization": "Bearer ek_invented"}, 401),
    "other origin": ({"authorization": f"Bearer {KEY}", "origin": "https://evil.example"}, 403),
    "null origin": ({"authorization": f"Bearer {KEY}", "origin": "null"}, 403),
}


def path_of(route: BaseRoute) -> str:
    assert isinstance(route, Route | WebSocketRoute | Mount), f"{route}: a kind not tried here"
    return route.path


def guarded() -> list[tuple[str, str]]:
    """Method and path of every route that is not open to all."""
    found = []
    for route in ROUTES:
        path = path_of(route)
        if path in OPEN:
            continue
        assert isinstance(route, Route | WebSocketRoute), f"{path}: a mount behind no door"
        methods = {"WEBSOCKET"} if isinstance(route, WebSocketRoute) else route.methods or set()
        # A browser asks beforehand, without a key, and is told nothing but what it may send.
        for method in sorted(methods - {"OPTIONS"}):
            found.append((method, path.replace("{name:path}", "x")))
    return found


@dataclass(slots=True)
class Request:
    """One request by hand: what the application reads of it and sends."""

    method: str
    path: str
    headers: dict[str, str]
    sent: list[Message] = field(default_factory=list)
    n_read: int = 0

    async def run(self) -> int:
        """The status of the answer; 101 for an accepted WebSocket."""
        is_socket = self.method == "WEBSOCKET"
        headers = {"host": "voice.example", **self.headers}
        scope: dict[str, Any] = {
            "type": "websocket" if is_socket else "http",
            "http_version": "1.1",
            "method": self.method,
            "scheme": "ws" if is_socket else "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "headers": [(k.encode(), v.encode()) for k, v in headers.items()],
            "client": ("192.0.2.1", 5000),
            "server": ("voice.example", 80),
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
            "state": {},
        }
        await APP(scope, self._receive, self._send)
        first = self.sent[0]
        return 101 if first["type"] == "websocket.accept" else int(first["status"])

    async def _receive(self) -> Message:
        if self.method == "WEBSOCKET":
            connect = not self.n_read
            self.n_read += 1
            return {"type": "websocket.connect"} if connect else {"type": "websocket.disconnect"}
        self.n_read += 1
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)


@each_row("caller", CALLERS)
@each_row(("method", "path"), guarded())
async def test_who_may_not_come_in_is_refused_before_any_work(
    method: str, path: str, caller: str
) -> None:
    headers, status = CALLERS[caller]
    request = Request(method, path, headers)
    assert await request.run() == (403 if path in NO_CALLERS else status)
    assert not request.n_read  # not even its body, or the handshake of its socket
    said = repr(request.sent)
    assert KEY not in said and EXPIRED not in said


@each_row(("method", "path"), guarded())
async def test_who_has_the_key_comes_further(method: str, path: str) -> None:
    request = Request(method, path, {"authorization": f"Bearer {KEY}"})
    try:
        status = await request.run()
    except (AttributeError, TypeError):  # it came to the models, which break at a touch
        return
    assert status != 401 and (status != 403 or path in NO_CALLERS)


def test_the_open_routes_are_those() -> None:
    assert OPEN <= {path_of(route) for route in ROUTES}
    assert len(guarded()) >= 9
