"""The readers of the turn's end are killed in a call beside services: it goes on, they return."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import httpx
import pytest

from benchmarks.any_brain.served import served_by
from clients.call.script import load_call, load_utterances
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ, RealtimeConnection
from tests.dialect_service import streamed
from tests.remote_service import Answer, Service
from voiceloop.config import Ahead

pytestmark = [pytest.mark.call, pytest.mark.timeout(90)]


class Shop(Service):
    """Hears the same words in every turn, and answers them."""

    def answer_to(self, path: str, body: bytes) -> Answer:
        if path.endswith("/chat/completions"):
            return streamed({"content": "Four "}, {"content": "dollars."})
        return super().answer_to(path, body)


def readers() -> list[int]:
    """The worker processes of this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if (
                int(parent) == os.getpid()
                and b"workers.worker" in (folder / "cmdline").read_bytes()
            ):
                found.append(int(folder.name))
        except (OSError, IndexError):
            continue
    return found


async def seen(url: str, status: str) -> None:
    async with httpx.AsyncClient() as client, asyncio.timeout(20):
        while (await client.get(f"{url}/readyz")).json()["status"] != status:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_call_goes_on_while_its_readers_are_dead_and_they_return() -> None:
    service = Shop()
    script = load_call()
    utterances = load_utterances(script, script.voices[0], RATE_HZ)[:3]
    async with served_by(service, anticipation=Ahead()) as address:
        service.say("/audio/transcriptions", Answer([json.dumps({"text": "a latte"}).encode()]))
        url = address.replace("ws:", "http:").removesuffix("/v1/realtime")
        await seen(url, "ready")
        pids = readers()
        assert len(pids) == 2
        states: list[asyncio.Task[None]] = []

        def kill_before_the_second(utterance: object) -> bool:
            if utterance is utterances[1]:
                states.append(asyncio.create_task(seen(url, "degraded")))
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
            return False

        connection = await RealtimeConnection.open(address)
        call = SimulatedCall(connection, utterances, skips=kill_before_the_second)
        result = await call.run()
        await states[0]
        await seen(url, "ready")
        assert not set(readers()) & set(pids) and len(readers()) == 2
    assert [turn.answered for turn in result.turns] == [True] * 3
