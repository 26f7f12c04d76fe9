"""A vendor's WebSocket service, scripted: what it was asked, and what it answers."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import Request, Response, ServerConnection, serve


class ScriptedVendor(ABC):
    """paths, queries, keys: of the handshakes; said: the JSON messages of all connections."""

    key_header = ""

    def __init__(self) -> None:
        self.url = ""
        self.paths: list[str] = []
        self.queries: list[dict[str, list[str]]] = []
        self.keys: list[str | None] = []
        self.said: list[dict[str, Any]] = []
        self.refuses = False
        self.sockets: set[ServerConnection] = set()

    def handshake(self, socket: ServerConnection, request: Request) -> Response | None:
        parts = urlsplit(request.path)
        self.paths.append(parts.path)
        self.queries.append(parse_qs(parts.query))
        self.keys.append(request.headers.get(self.key_header))
        return socket.respond(HTTPStatus.UNAUTHORIZED, "no") if self.refuses else None

    async def handle(self, socket: ServerConnection) -> None:
        self.sockets.add(socket)
        async for frame in socket:
            if isinstance(frame, bytes):
                await self.hear(socket, frame)
                continue
            message = json.loads(frame)
            self.said.append(message)
            await self.answer(socket, message)

    async def hear(self, socket: ServerConnection, sound: bytes) -> None:
        """Sound of the caller, where the vendor takes it as it is."""
        raise AssertionError(f"expected no sound, found {len(sound)} bytes")

    @abstractmethod
    async def answer(self, socket: ServerConnection, message: dict[str, Any]) -> None: ...


@asynccontextmanager
async def serving(vendor: ScriptedVendor) -> AsyncIterator[ScriptedVendor]:
    async with serve(vendor.handle, "127.0.0.1", 0, process_request=vendor.handshake) as server:
        vendor.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield vendor


async def tell(socket: ServerConnection, **event: Any) -> None:
    await socket.send(json.dumps(event))
