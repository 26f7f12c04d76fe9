"""An agent file with a named slot on a real socket: spoken to, read back, confirmed, told of."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, instant_backends, utterance
from tests.serving import serving
from voiceloop.agent_file import load_agent
from voiceloop.backends import Backends
from voiceloop.config import Config
from voiceloop.server import process
from voiceloop.server.app import Gateway, build_app

RATE_HZ = 24_000
AGENT = """
[[slots]]
asked = "booking reference"
kind = "spelling"
name = "reference"
digits = 4
"""
TURNS = ["i want to change a booking", "b as in bravo k four two", "no it's v not b", "yes"]


async def answered(client: ClientConnection) -> list[dict[str, Any]]:
    """The events of one turn, which the client ends by itself: nothing depends on time."""
    sound = base64.b64encode(utterance(1600, RATE_HZ).astype("<i2").tobytes()).decode()
    await client.send(json.dumps({"type": "input_audio_buffer.append", "audio": sound}))
    for wanted in ("input_audio_buffer.commit", "response.create"):
        await client.send(json.dumps({"type": wanted}))
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] != "voiceloop.timeline":
        events.append(json.loads(await client.recv()))
    return events


async def test_a_slot_of_an_agent_file_is_filled_by_a_caller_on_a_socket(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(AGENT, encoding="utf-8")
    model = FakeLanguageModel(["What is your booking reference?", "It is changed."])
    gateway = Gateway(Config(), load_agent(file))
    gateway.backends = instant_backends(
        recognizer=FakeRecognizer(TURNS, ms_per_word=100),
        language_model=model,
        voice=FakeVoice(ms_per_char=6.0),
    )
    async with serving(build_app(gateway), gateway.config) as port, asyncio.timeout(120):
        url = f"ws://127.0.0.1:{port}/v1/realtime"
        url += "?voiceloop.slots=1&voiceloop.timeline=1&greeting=0"
        async with connect(url, proxy=None) as client:
            turns = []
            manual = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
            await client.send(json.dumps({"type": "session.update", "session": manual}))
            for _ in TURNS:
                turns.append(await answered(client))
    slots = [[e for e in events if e["type"] == "voiceloop.slot"] for events in turns]
    told = [(one["name"], one["kind"], one["value"], one["state"]) for of in slots for one in of]
    assert told == [
        ("reference", "spelling", "BK42", "heard"),
        ("reference", "spelling", "VK42", "heard"),
        ("reference", "spelling", "VK42", "confirmed"),
    ]
    assert "- reference = VK42" in model.prompts[-1][-1].behind
    done = "response.output_audio_transcript.done"
    said = [e["transcript"] for e in turns[1] if e["type"] == done]
    assert said == ["I have B K 4 2, is that right?"]


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_server_whose_agent_fills_slots_hears_sessions_in_english_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    @asynccontextmanager
    async def opened(*_: Any, **__: Any) -> AsyncIterator[tuple[Backends, Callable[[], bool]]]:
        yield instant_backends(), lambda: True

    monkeypatch.setattr(process, "open_backends", opened)
    file = tmp_path / "agent.toml"
    named = AGENT if is_named else "[[slots]]\nasked = 'reference'\nkind = 'spelling'"
    file.write_text(named, encoding="utf-8")
    async with AsyncExitStack() as models:
        backends, _ = await process._load(Gateway(Config(), load_agent(file)), models, None)
    assert backends.capabilities.fills_slots is is_named
