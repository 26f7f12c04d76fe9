"""Memory stays flat: what a thousand calls leave behind in the gateway's process.

``VOICELOOP_CONNECTIONS=5000`` for more of them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from clients.connection import typed
from clients.server_process import ServerProcess, running_server

pytestmark = [pytest.mark.call(seconds=20), pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
N_CONNECTIONS = int(os.environ.get("VOICELOOP_CONNECTIONS", "1000"))
N_BEFORE = 400  # until the allocator and the caches have what they keep
AT_ONCE = 15
GROWTH_MB = 10.0
COMMAND = (sys.executable, "-m", "benchmarks.calls.fake_server")
AUDIO = base64.b64encode(bytes(48 * 500)).decode()  # half a second


async def call(url: str, n: int) -> None:
    """Settings, some audio, a turn in words, a wrong event; every third hangs up without a word."""
    async with connect(url, proxy=None) as socket:

        async def until(kind: str) -> None:
            async with asyncio.timeout(60):
                while json.loads(await socket.recv())["type"] != kind:
                    pass

        await until("session.created")
        session = {"instructions": f"Call {n}.", "output_modalities": ["text"]}
        await socket.send(json.dumps({"type": "session.update", "session": session}))
        await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": AUDIO}))
        await until("session.updated")
        if n % 3 == 0:
            socket.transport.abort()
            return
        await socket.send(
            json.dumps({"type": "conversation.item.create", "item": typed("Hello there.")})
        )
        await socket.send(json.dumps({"type": "nothing"}))
        await until("error")
        await socket.send(json.dumps({"type": "response.create"}))
        await until("response.done")


async def calls(server: ServerProcess, n_calls: int) -> None:
    free = asyncio.Semaphore(AT_ONCE)

    async def one(n: int) -> None:
        async with free:
            await call(server.url, n)

    async with asyncio.TaskGroup() as group:
        for n in range(n_calls):
            group.create_task(one(n))


async def test_a_thousand_connections_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    async with running_server(command=COMMAND) as server:
        await calls(server, N_BEFORE)
        before_mb = server.resident_mb()
        await calls(server, N_CONNECTIONS)
        growth_mb = server.resident_mb() - before_mb
    print(f"{N_CONNECTIONS} connections: {growth_mb:+.1f} MB from {before_mb:.0f} MB")
    assert growth_mb <= GROWTH_MB
