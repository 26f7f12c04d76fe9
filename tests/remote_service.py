"""A scripted HTTP service on loopback: slow, dropping, refusing or overflowing as told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from voiceloop.remote.service import RemoteService


@dataclass
class Answer:
    """What the service says to one request; pieces are sent one by one."""

    pieces: list[bytes]
    status: int = 200
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    drop_before: bool = False
    drop_after: bool = False
    hold: asyncio.Event | None = None  # before the first byte
    hold_end: asyncio.Event | None = None  # before the last piece


class Service:
    """An HTTP/1.1 service whose answers are scripted by path; the last one of a path repeats."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {"/v1/models": [Answer([b"{}"])]}
        self.port = 0
        self.requests: list[tuple[str, bytes]] = []
        self.heads: list[dict[str, str]] = []  # of each, in lower case
        self.n_connections = 0
        self.hung_up = asyncio.Event()
        self._handlers: set[asyncio.Task[None]] = set()
        self._asked = asyncio.Event()

    async def wait_asked(self, path: str, n_requests: int) -> None:
        while len(self.asked(path)) < n_requests:
            self._asked.clear()
            await self._asked.wait()

    def asked(self, path: str) -> list[bytes]:
        return [body for asked, body in self.requests if asked == f"/v1{path}"]

    def say(self, path: str, *answers: Answer) -> None:
        self.answers[f"/v1{path}"] = list(answers)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        self.n_connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hung_up.set()
        finally:
            writer.close()
            self._handlers.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1]
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:-2])
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        self.requests.append((path, body))
        self.heads.append(fields)
        self._asked.set()
        answer = self.answer_to(path, body)
        if answer.hold is not None:
            await self._hold_or_hang_up(reader, answer.hold)
        if answer.drop_before:
            return False
        extra = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        writer.write(
            f"HTTP/1.1 {answer.status} X\r\ncontent-type: {answer.content_type}\r\n{extra}"
            "transfer-encoding: chunked\r\n\r\n".encode()
        )
        for index, piece in enumerate(answer.pieces):
            if answer.hold_end is not None and index == len(answer.pieces) - 1:
                await self._hold_or_hang_up(reader, answer.hold_end)
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
        if answer.drop_after:
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def answer_to(self, path: str, body: bytes) -> Answer:
        script = self.answers[path]
        return script.pop(0) if len(script) > 1 else script[0]

    async def _hold_or_hang_up(self, reader: asyncio.StreamReader, release: asyncio.Event) -> None:
        released = asyncio.create_task(release.wait())
        gone = asyncio.create_task(reader.read(1))
        await asyncio.wait([released, gone], return_when=asyncio.FIRST_COMPLETED)
        released.cancel()
        gone.cancel()
        await asyncio.wait([released, gone])  # the next request is read by nobody else
        if not release.is_set():
            raise ConnectionError("the client hung up")

    async def close(self) -> None:
        """Wait until every client has hung up."""
        await asyncio.gather(*self._handlers)


class Remote:
    """A scripted service and the connections to it."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.opened: list[RemoteService] = []

    def connect(self, **options: Any) -> RemoteService:
        url = f"http://127.0.0.1:{self.service.port}/v1/"
        self.opened.append(RemoteService(url, **{"model": "m", **options}))
        return self.opened[-1]


@asynccontextmanager
async def scripted_remote(service: Service | None = None) -> AsyncIterator[Remote]:
    service = service or Service()
    server = await asyncio.start_server(service.handle, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    remote = Remote(service)
    try:
        yield remote
    finally:
        for connection in remote.opened:
            await connection.close()
        server.close()
        await service.close()
