"""Calls over WebRTC on real sockets of this machine, by an aiortc client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aioice.ice
import pytest

from tests.fakes import EnergyVad, FakeRecognizer, instant_backends
from tests.webrtc_caller import calling
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.config import Config
from voiceloop.server.app import Gateway, build_app
from voiceloop.server.process import listen, make_server

LONG = "Once upon a time there was a cafe that had everything, and everybody came to eat there."


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """aioice leaves the address of loopback out."""
    monkeypatch.setattr(aioice.ice, "get_host_addresses", lambda **kinds: ["127.0.0.1"])


@asynccontextmanager
async def served(
    backends: Backends | None = None, config: Config | None = None, **state: Any
) -> AsyncIterator[tuple[Gateway, str]]:
    agent = state.pop("agent", AgentConfig(instructions="Be kind."))
    gateway = Gateway(config or Config(), agent, **state)
    gateway.backends = backends or instant_backends()
    gateway.calls.new_vad = EnergyVad
    sock = listen("127.0.0.1", 0)
    server = make_server(build_app(gateway), gateway.config)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield gateway, f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        await gateway.drain()
        gateway.doors.close()
        server.should_exit = True
        server.force_exit = True
        await serving


async def test_a_text_turn_is_answered() -> None:
    async with served() as (gateway, url), calling(url) as caller:
        created = await caller.until("session.created")
        assert created["session"]["instructions"] == "Be kind."
        content = [{"type": "input_text", "text": "hello"}]
        item = {"type": "message", "role": "user", "content": content}
        caller.send("conversation.item.create", item=item)
        caller.send("response.create", response={"output_modalities": ["text"]})
        done = await caller.until("response.done")
        assert done["response"]["status"] == "completed"


async def test_a_spoken_turn_is_heard_and_answered_aloud() -> None:
    backends = instant_backends(recognizer=FakeRecognizer(["a latte please"]))
    async with served(backends) as (gateway, url), calling(url) as caller:
        await caller.until("session.created")
        said_s = await caller.say(800)
        await caller.until("output_audio_buffer.stopped")
        loud = [at_s for at_s, level in caller.heard if level > 300 and at_s > said_s]
        print("gap", loud[0] - said_s, len(loud), caller.types())
        assert len(loud) > 10
