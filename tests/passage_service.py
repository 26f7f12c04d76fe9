"""A stub of a service that searches, by our own contract.

On a real socket. It answers as and when it is told, and keeps what it was asked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


class PassageService:
    """answers: JSON by path. takes_s: before each answer."""

    def __init__(self, answers: dict[str, Any], takes_s: float = 0.0, status: int = 200) -> None:
        self.answers = answers
        self.takes_s = takes_s
        self.status = status
        self.asked: list[tuple[str, Any, str]] = []  # path, body, head
        self.url = ""
        self._answering: set[asyncio.Task[None]] = set()

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._answer(reader, writer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lengths = [line for line in head.lower().splitlines() if "content-length" in line]
                body = await reader.readexactly(int(lengths[0].split(":")[1]))
                path = head.split()[1]
                self.asked.append((path, json.loads(body), head))
                await asyncio.sleep(self.takes_s)
                told = json.dumps(self.answers.get(path)).encode()
                kind = "content-type: application/json"
                start = f"HTTP/1.1 {self.status} X\r\n{kind}\r\ncontent-length: {len(told)}\r\n\r\n"
                writer.write(start.encode() + told)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # whoever asked has gone
        finally:
            writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[PassageService]:
        server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        async with server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            try:
                yield self
            finally:
                for task in self._answering:
                    task.cancel()
                await asyncio.gather(*self._answering, return_exceptions=True)
