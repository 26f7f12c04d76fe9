"""A relay that makes a line bad: what it carries comes late, and after a while nothing comes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_CHUNK = 4096
_MOST_LATE_S = 0.2  # mostly far less: a chunk waits the square of a random part of it, in order


class BadLine:
    """Carries connections to `port`; once `is_dead`, both ends stay open and nothing arrives."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self.is_dead = False
        self._port = port
        self._rng = rng
        self._writers: list[asyncio.StreamWriter] = []

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One caller's connection, until both ends have closed it."""
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += (writer, far_writer)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._copy(reader, far_writer))
            group.create_task(self._copy(far_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # one end has gone: the other is told, where the line still lives
            while chunk := await reader.read(_CHUNK):
                await asyncio.sleep(_MOST_LATE_S * self._rng.random() ** 2)
                if not self.is_dead:
                    writer.write(chunk)
                    await writer.drain()
        if not self.is_dead:
            writer.close()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def bad_line(port: int, rng: random.Random) -> AsyncIterator[tuple[BadLine, str]]:
    """The line, and the URL under which it takes calls for a server on `port`."""
    line = BadLine(port, rng)
    server = await asyncio.start_server(line.carry, "127.0.0.1", 0)
    own_port = server.sockets[0].getsockname()[1]
    try:
        yield line, f"ws://127.0.0.1:{own_port}/v1/realtime"
    finally:
        server.close()
        line.hang_up()
