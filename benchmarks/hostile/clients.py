"""Hostile clients, one function a kind: each does for some seconds what no client should.

The kinds are those of `tests/hostile` and of the review of reliability; what the server answers is
theirs to meet, and no error of this program.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from benchmarks.hostile.offers import OFFER_KINDS
from clients.connection import typed
from clients.server_process import ServerProcess

LASTS_S = 6.0
_FRAME = 2_000_000  # characters: just under what a frame may have
_DIGITS = "8305917264" * (_FRAME // 10)


@dataclass(frozen=True, slots=True)
class Hostile:
    name: str
    attack: Callable[[ServerProcess], Awaitable[None]]


async def _flood(server: ServerProcess, *frames: dict[str, Any] | str, pause_s: float) -> None:
    """Send these frames over and over on one connection, and another where it is closed."""
    until_s = time.monotonic() + LASTS_S
    raw = [frame if isinstance(frame, str) else json.dumps(frame) for frame in frames]
    while time.monotonic() < until_s:
        with suppress(WebSocketException, OSError):
            async with connect(server.url, compression=None, max_size=None) as socket:
                reading = asyncio.create_task(_read(socket))
                while time.monotonic() < until_s:
                    for frame in raw:
                        await socket.send(frame)
                    await asyncio.sleep(pause_s)
                reading.cancel()
        await asyncio.sleep(0.1)


async def _read(socket: ClientConnection) -> None:
    with suppress(WebSocketException):
        async for _ in socket:
            pass


async def digits(server: ServerProcess) -> None:
    own = {"conversation": "none", "output_modalities": ["text"], "input": [typed(_DIGITS)]}
    await _flood(server, {"type": "response.create", "response": own}, pause_s=0.5)


async def references(server: ServerProcess) -> None:
    item = {**typed("w" * 400_000), "id": "i1"}
    many = [{"type": "item_reference", "id": "i1"}] * 90
    own = {"conversation": "none", "output_modalities": ["text"], "input": many}
    create = {"type": "conversation.item.create", "item": item}
    await _flood(server, create, {"type": "response.create", "response": own}, pause_s=0.5)


async def long_instructions(server: ServerProcess) -> None:
    session = {"type": "realtime", "instructions": "Be kind to all. " * 420}
    update = {"type": "session.update", "session": session}
    await _flood(server, update, {"type": "response.create"}, pause_s=0.2)


async def item_audio(server: ServerProcess) -> None:
    audio = {"input": {"format": {"type": "audio/pcmu"}}}
    update = {"type": "session.update", "session": {"type": "realtime", "audio": audio}}
    part = {"type": "input_audio", "audio": "/" * _FRAME}
    item = {"type": "message", "role": "user", "content": [part]}
    create = {"type": "conversation.item.create", "item": item}
    await _flood(server, update, create, pause_s=0.5)


async def json_nodes(server: ServerProcess) -> None:
    empty = ",".join(["{}"] * (_FRAME // 3))
    await _flood(server, f'{{"type": "session.update", "session": [{empty}]}}', pause_s=0.3)


async def deep_json(server: ServerProcess) -> None:
    nested = "[" * 400_000 + "]" * 400_000
    await _flood(server, f'{{"type": "session.update", "session": {nested}}}', pause_s=0.3)


async def fast_audio(server: ServerProcess) -> None:
    second = base64.b64encode(bytes(range(256)) * 187).decode()
    manual = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    update = {"type": "session.update", "session": manual}
    append = {"type": "input_audio_buffer.append", "audio": second}
    await _flood(server, update, *[append] * 40, pause_s=0.1)


async def options(server: ServerProcess) -> None:
    """Other words for the recognizer, some sound, and clear: 160 times a second."""
    second = base64.b64encode(bytes(range(256)) * 18).decode()
    words = [
        {"type": "realtime", "audio": {"input": {"transcription": {"prompt": f"word {k}"}}}}
        for k in range(8)
    ]
    frames: list[dict[str, Any]] = []
    for session in words:
        frames.append({"type": "session.update", "session": session})
        frames.append({"type": "input_audio_buffer.append", "audio": second})
        frames.append({"type": "input_audio_buffer.clear"})
    await _flood(server, *frames, pause_s=0.05)


async def grammar(server: ServerProcess) -> None:
    shape = {
        "type": "object",
        "properties": {f"p{k}": {"type": "string", "pattern": "(a|b)*" * 200} for k in range(8)},
    }
    tools = [{"type": "function", "name": f"t{k}", "parameters": shape} for k in range(32)]
    update = {"type": "session.update", "session": {"type": "realtime", "tools": tools}}
    reply = {"output_modalities": ["text"], "tool_choice": "required"}
    await _flood(server, update, {"type": "response.create", "response": reply}, pause_s=0.3)


async def pings(server: ServerProcess) -> None:
    """Empty pings as fast as the socket takes them."""
    until_s = time.monotonic() + LASTS_S
    while time.monotonic() < until_s:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(
                b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
                b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                b"Sec-WebSocket-Version: 13\r\n\r\n"
            )
            await reader.readuntil(b"\r\n\r\n")
            while time.monotonic() < until_s and not reader.at_eof():
                writer.write(b"\x89\x80\0\0\0\0" * 4000)
                await writer.drain()
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1 << 16), 0.01)
            writer.close()
        await asyncio.sleep(0.1)


async def idle(server: ServerProcess) -> None:
    writers = []
    for _ in range(300):
        with suppress(OSError):
            writers.append((await asyncio.open_connection("127.0.0.1", server.port))[1])
    await asyncio.sleep(LASTS_S)
    for writer in writers:
        writer.close()


async def deaf(server: ServerProcess) -> None:
    """Asks for long answers and reads none."""
    with suppress(WebSocketException, OSError):
        async with connect(server.url, compression=None, max_queue=1) as socket:
            for _ in range(12):
                item = typed("Tell me all about the menu and the hours. " * 20)
                await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
                await socket.send(json.dumps({"type": "response.create"}))
                await asyncio.sleep(LASTS_S / 12)
            socket.transport.abort()


async def _post(server: ServerProcess, path: str, n_at_once: int, **content: Any) -> None:
    async def one(client: httpx.AsyncClient) -> None:
        with suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(LASTS_S):
                await client.post(f"http://127.0.0.1:{server.port}{path}", **content)

    async with httpx.AsyncClient(timeout=LASTS_S) as client:
        await asyncio.gather(*[one(client) for _ in range(n_at_once)])


async def flac_of_one_hertz(server: ServerProcess) -> None:
    """A file of some hundred bytes whose frames are seconds long by its own word."""
    stream = struct.pack(">HH", 4096, 4096) + bytes(6)
    rate, channels, bits, n_samples = 1, 1, 16, 1 << 20
    packed = rate << 44 | (channels - 1) << 41 | (bits - 1) << 36 | n_samples
    stream += packed.to_bytes(8, "big") + bytes(16)
    frame = bytes([0xFF, 0xF8, 0xC0, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00])
    flac = b"fLaC" + bytes([0x80, 0, 0, 34]) + stream + frame * 4
    files = {"file": ("a.flac", flac, "audio/flac")}
    await _post(server, "/v1/audio/transcriptions", 6, files=files, data={"model": "any"})


async def uploads(server: ServerProcess) -> None:
    rate, n_samples = 16_000, 16_000 * 60
    head = struct.pack("<4sI4s", b"RIFF", 36 + 2 * n_samples, b"WAVE")
    head += struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    head += struct.pack("<4sI", b"data", 2 * n_samples)
    files = {"file": ("a.wav", head + bytes(range(256)) * (n_samples // 128), "audio/wav")}
    await _post(server, "/v1/audio/transcriptions", 16, files=files, data={"model": "any"})


async def unread(server: ServerProcess) -> None:
    """Streams of speech that nobody reads."""
    body = json.dumps({"model": "any", "voice": "alloy", "input": "One more. " * 300,
                       "response_format": "pcm"}).encode()  # fmt: skip
    writers = []
    for _ in range(16):
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
            writer.write(
                b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\n"
                + f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            writers.append(writer)
    await asyncio.sleep(LASTS_S)
    for writer in writers:
        writer.transport.abort()


async def chat_digits(server: ServerProcess) -> None:
    body = {"model": "any", "messages": [{"role": "user", "content": _DIGITS[:500_000]}]}
    await _post(server, "/v1/chat/completions", 16, json=body)


HOSTILE = tuple(
    Hostile(attack.__name__.replace("_", " "), attack)
    for attack in (
        digits, chat_digits, references, long_instructions, item_audio, json_nodes, deep_json,
        fast_audio, options, grammar, pings, idle, deaf, flac_of_one_hertz, uploads, unread,
    )
) + tuple(
    Hostile(attack.__name__.replace("_", " "), partial(attack, for_s=LASTS_S))
    for attack in OFFER_KINDS
)  # fmt: skip
