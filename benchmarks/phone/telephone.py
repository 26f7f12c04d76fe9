"""A telephone at the far end of a scripted carrier or exchange: it rings, speaks, and hears.

Owns the carrier's side of a call in real time: the ring over HTTP, the stream, the sound that the
caller hears (in 20 ms pieces, at the time at which each is played), the marks that come back once
that is done, and what a `clear` drops.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import numpy as np
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from audio.codec import decode, encode
from audio.frames import Samples, samples_in
from audio.resample import Resampler
from benchmarks.phone.peers import PEERS, Frame, TwilioPeer

PIECE_MS = 20
HEAR_HZ = 24_000
LOUD = 184  # -45 dBFS, from which the benchmarks call a sample audible


class TcpStream:
    """A connection of AudioSocket, with the shape of a WebSocket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, frame: Frame) -> None:
        assert isinstance(frame, bytes)
        self._writer.write(frame)
        await self._writer.drain()

    async def recv(self) -> Frame:
        head = await self._reader.readexactly(3)
        return head + await self._reader.readexactly(int.from_bytes(head[1:], "big"))

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


class Telephone:
    """One call. url: of the server, as its carriers sign it; at: where it is. on_piece: of what is
    heard.

    cleared_at: when the server had the carrier drop what it held. ended: the stream is closed.
    """

    def __init__(
        self,
        url: str,
        peer: TwilioPeer,
        on_piece: Callable[[float, Samples], None] = lambda at, samples: None,
        at: str = "",
    ) -> None:
        self.url = url
        self.at = at or url
        self.peer = peer
        self.answer = ""
        self.heard: list[tuple[float, Samples]] = []
        self.cleared_at: list[float] = []
        self.keys_sent = ""
        self.hung_up = False
        self.ended = asyncio.Event()
        self._on_piece = on_piece
        self._now = asyncio.get_running_loop().time
        self._queue: deque[tuple[str, bytes]] = deque()  # media, or a mark by its name
        self._queued = asyncio.Event()
        self._stream: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._in = Resampler(HEAR_HZ, peer.rate_hz)
        # What the filter withholds is put in front: else each piece waits for the next to be said.
        self._in.push(np.zeros(round(self._in.delay_ms * HEAR_HZ / 1000.0), np.int16))
        self._out = Resampler(peer.rate_hz, HEAR_HZ)
        self._rest = np.zeros(0, np.int16)

    @classmethod
    def of(cls, url: str, name: str, **options: Any) -> Telephone:
        return cls(url, PEERS[name](), **options)

    async def post(self, path: str = "", **fields: str) -> httpx.Response:
        """A request of the carrier about the call."""
        full = f"{self.url}/v1/phone/{self.peer.name}"
        body, headers = self.peer.ring(full, path, **fields)
        async with httpx.AsyncClient(trust_env=False) as http:
            address = f"{self.at}/v1/phone/{self.peer.name}{path}"
            return await http.post(address, content=body, headers=headers)

    async def dial(self) -> None:
        """Ring, and open the stream that the answer names."""
        told = await self.post()
        self.answer = told.text
        assert told.status_code == 200, told.text
        await self.open(*self.peer.stream_of(self.answer))

    async def open(self, url: str, ticket: str) -> None:
        here = (
            "ws" + self.at.removeprefix("http") + url[len("ws" + self.url.removeprefix("http")) :]
        )
        await self.attach(await connect(here, additional_headers=self.peer.upgrade(url)))
        for frame in self.peer.opening(ticket):
            await self.send(frame)

    async def attach(self, stream: Any) -> None:
        """Speak over this connection from now on."""
        self._stream = stream
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._play())]

    async def send(self, frame: Frame) -> None:
        await self._stream.send(frame)

    async def press(self, key: str) -> None:
        await self.send(self.peer.digit(key))

    async def say(self, samples: Samples) -> None:
        """Send samples at 24 kHz at once; the caller of this keeps the pace. Less than a piece
        waits for more."""
        self._rest = np.concatenate((self._rest, self._in.push(samples)))
        n_piece = samples_in(PIECE_MS, self.peer.rate_hz)
        while len(self._rest) >= n_piece:
            piece, self._rest = self._rest[:n_piece], self._rest[n_piece:]
            await self.send(self.peer.sound(encode(piece, self.peer.encoding)))

    async def speak(self, samples: Samples) -> None:
        """Send samples at 24 kHz in real time."""
        n_piece, began = samples_in(PIECE_MS, HEAR_HZ), self._now()
        for number, start in enumerate(range(0, len(samples), n_piece)):
            await asyncio.sleep(max(0.0, began + number * PIECE_MS / 1000.0 - self._now()))
            await self.say(samples[start : start + n_piece])

    async def hang_up(self) -> None:
        if hasattr(self.peer, "stop") and self.peer.name not in ("asterisk", "audiosocket", "sip"):
            await self.send(self.peer.stop())
        await self.close()

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- what the server sends ---

    async def _read(self) -> None:
        try:
            while True:
                await self._take(await self._stream.recv())
        except Exception:  # of whichever connection: it is closed
            self.ended.set()

    async def _take(self, frame: Frame) -> None:
        told = self.peer.told(frame)
        match told.kind:
            case "media":
                self._queue.append(("", told.payload))
                self._queued.set()
                if len(self._queue) > self.peer.most_held:  # skipped, not waited for
                    self._queue.popleft()
                    self.heard.append((self._now(), np.zeros(0, np.int16)))
            case "mark":
                self._queue.append((told.name, b""))
                self._queued.set()
            case "clear":
                self.cleared_at.append(self._now())
                marks = [name for name, _ in self._queue if name]
                self._queue.clear()
                if self.peer.returns_cleared_marks:
                    for name in marks:
                        await self._returned(name)
            case "hang_up":
                self.hung_up = True
            case _:
                self.keys_sent += told.name

    async def _returned(self, name: str) -> None:
        frame = self.peer.played(name)
        if frame is not None and not self.ended.is_set():
            with suppress(ConnectionClosed):
                await self.send(frame)

    async def _play(self) -> None:
        """Each piece at the moment it is heard, one behind the other by the telephone's own clock:
        however late this loop wakes, what is there in time plays without a gap.
        """
        plays_at = 0.0
        while True:
            while not self._queue:
                self._queued.clear()
                await self._queued.wait()
                plays_at = max(plays_at, self._now())
            name, payload = self._queue.popleft()
            if name:
                await asyncio.sleep(max(0.0, plays_at - self._now()))
                await self._returned(name)
                continue
            samples = self._out.push(decode(payload, self.peer.encoding))
            self.heard.append((plays_at, samples))
            self._on_piece(plays_at, samples)
            plays_at += PIECE_MS / 1000.0
            await asyncio.sleep(max(0.0, plays_at - self._now()))

    # --- what was heard ---

    def loud_at(self, since: float = 0.0) -> list[float]:
        """When a piece was heard in which something sounds."""
        loud = (at for at, samples in self.heard if at >= since and is_loud(samples))
        return list(loud)


def is_loud(samples: Samples) -> bool:
    return bool(len(samples)) and int(np.abs(samples.astype(np.int32)).max()) > LOUD
