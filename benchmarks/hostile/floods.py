"""Floods of connections that ask nothing, or slowly: one function a kind.

Each opens again what the server closes. How long one of its connections lasted at most tells
whether the server bounds it: the flood itself would hold it to the end.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from clients.server_process import ServerProcess

READ_EVERY_S = 0.5
FLOOD_NICE = 10
SMALL_BUFFER = 4096  # of a reader's kernel: what the server writes beyond it waits at the server
UNVERIFIED = ssl._create_unverified_context()  # the server's certificate is drawn for this run


@dataclass(slots=True)
class Held:
    """What became of a flood's connections. longest_s: that the server let one of them last."""

    n_opened: int = 0
    n_cut: int = 0
    n_bytes_read: int = 0
    longest_s: float = 0.0


One = Callable[[ServerProcess, Held, float], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Flood:
    """n_at_once connections of this kind, opened again_s after they were closed.

    most_s: that the server may let one last; None: as long as it has room for it.
    """

    name: str
    one: One
    n_at_once: int
    most_s: float | None
    again_s: float = 1.0

    async def attack(self, server: ServerProcess, for_s: float) -> Held:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context, os.nice, (FLOOD_NICE,)) as pool:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(pool, _flood, self.name, server.port, for_s)

    async def hold(self, server: ServerProcess, for_s: float) -> Held:
        """In this process."""
        held = Held()
        until_s = time.monotonic() + for_s
        lives = [self._again(server, held, until_s) for _ in range(self.n_at_once)]
        with suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await asyncio.gather(*lives)
        return held

    async def _again(self, server: ServerProcess, held: Held, until_s: float) -> None:
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            held.n_opened += 1
            try:
                with suppress(OSError, WebSocketException, asyncio.IncompleteReadError):
                    await self.one(server, held, until_s)
                held.n_cut += 1
            finally:
                held.longest_s = max(held.longest_s, time.monotonic() - began_s)
            await asyncio.sleep(self.again_s)


async def silent_tls(server: ServerProcess, held: Held, until_s: float) -> None:
    """Connects, and never says hello."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        await reader.read(1)  # until it is closed
    finally:
        writer.transport.abort()


async def slow_bodies(server: ServerProcess, held: Held, until_s: float) -> None:
    """Promises an upload, and sends twenty bytes of it a second."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=UNVERIFIED)
    try:
        writer.write(
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 2000000\r\n\r\n"
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        )
        while not reader.at_eof() and not reader._buffer:  # type: ignore[attr-defined]
            writer.write(b"-")
            await writer.drain()
            await asyncio.sleep(0.05)
    finally:
        writer.transport.abort()


async def slow_readers(server: ServerProcess, held: Held, until_s: float) -> None:
    """Has a long text spoken, and reads a hundred bytes of it twice a second."""
    body = json.dumps({"model": "any", "voice": "alloy", "input": "One more. " * 300,
                       "response_format": "pcm"}).encode()  # fmt: skip
    head = (
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(body)}\r\n\r\n".encode()
    )
    loop = asyncio.get_running_loop()
    with socket.socket() as line:
        # Before the connection: the window is agreed with it.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        line.setblocking(False)
        await loop.sock_connect(line, ("127.0.0.1", server.port))
        inside, outside = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = UNVERIFIED.wrap_bio(inside, outside)
        await _shake(line, tls, inside, outside)
        tls.write(head + body)
        await loop.sock_sendall(line, outside.read())
        while data := await loop.sock_recv(line, 100):
            held.n_bytes_read += len(data)
            await asyncio.sleep(READ_EVERY_S)
            if line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                return  # it was reset; a read still finds what lies in our own buffer


async def _shake(
    line: socket.socket, tls: ssl.SSLObject, inside: ssl.MemoryBIO, outside: ssl.MemoryBIO
) -> None:
    """Raises: OSError where the server does not agree, or hangs up."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            await loop.sock_sendall(line, outside.read())
            data = await loop.sock_recv(line, 65_536)
            if not data:
                raise ConnectionError("the server hangs up") from None
            inside.write(data)
        else:
            await loop.sock_sendall(line, outside.read())
            return


async def silent_calls(server: ServerProcess, held: Held, until_s: float) -> None:
    """Opens a call in which nobody speaks."""
    async with connect(server.url, compression=None, ssl=UNVERIFIED, proxy=None) as call:
        async for _ in call:
            pass


# most_s: HANDSHAKE_S of 5 and HEAD_S of 5; SLOW_BODY_S of 5; SLOW_READER_S of 10 and what waits at
# 8 KB/s (the server's own buffers hold some 150 kB), and as long until the voice begins. Of silent
# calls some give way where a caller needs their place; the others may last.
FLOODS = (
    Flood("silent TLS", silent_tls, 400, 11.0),
    Flood("slow bodies", slow_bodies, 100, 8.0),
    Flood("slow readers", slow_readers, 32, 45.0),
    Flood("silent calls", silent_calls, 30, None, again_s=10.0),
)


def _flood(name: str, port: int, for_s: float) -> Held:
    """A flood's whole process."""
    [flood] = [one for one in FLOODS if one.name == name]
    return asyncio.run(flood.hold(ServerProcess(0, port, 0.0, UNVERIFIED), for_s))
