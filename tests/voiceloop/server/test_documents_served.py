"""An agent with documents on a real socket: read at the start, asked in a call, told of."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from clients.connection import typed
from tests.fakes import FakeLanguageModel, instant_backends
from tests.serving import serving
from voiceloop.agent_file import load_agent, shipped_agent
from voiceloop.config import Config
from voiceloop.errors import ConfigError
from voiceloop.knowledge import retrieval
from voiceloop.knowledge.sources import open_retriever
from voiceloop.server.app import Gateway, build_app
from voiceloop.server.process import serve

TEXT_REPLY = {"type": "response.create", "response": {"output_modalities": ["text"]}}


async def ask(url: str, text: str) -> dict[str, dict[str, Any]]:
    """The events until the response is done and reported, the last of each type."""
    events: dict[str, dict[str, Any]] = {}
    async with asyncio.timeout(10), connect(url, proxy=None) as client:
        turn = {"type": "conversation.item.create", "item": typed(text)}
        for frame in (turn, TEXT_REPLY):
            await client.send(json.dumps(frame))
        while "voiceloop.timeline" not in events:
            event = json.loads(await client.recv())
            events[event["type"]] = event
    return events


async def test_what_stands_in_the_folder_reaches_the_model_and_its_place_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retrieval, "LOOK_UP_MS", 5000.0)  # not how fast: this machine may be busy
    agent = replace(shipped_agent("library"), greeting="")
    model = FakeLanguageModel(["One week.", "You are welcome."])
    async with open_retriever(agent.knowledge, agent.language, {}) as retriever:
        gateway = Gateway(Config(), agent)
        gateway.calls.retriever = retriever
        gateway.backends = instant_backends(language_model=model)
        async with serving(build_app(gateway), gateway.config) as port:
            url = f"ws://127.0.0.1:{port}/v1/realtime?voiceloop.sources=1&voiceloop.timeline=1"
            found = await ask(url, "How long can I keep a film?")
            nothing = await ask(url, "great, thank you")
    asked, thanked = model.prompts
    assert asked[-1].content == "How long can I keep a film?"
    assert "what: film. how long: one week" in asked[-1].behind and thanked[-1].behind == ""
    sources = found["voiceloop.sources"]["sources"]
    assert {"path": "library/lending.csv", "heading": ""} in sources
    assert found["voiceloop.timeline"]["timeline"]["retrieval"]["fate"] == "waited"
    assert "voiceloop.sources" not in nothing
    assert nothing["voiceloop.timeline"]["timeline"]["retrieval"]["fate"] == "none"


async def test_a_folder_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("[[knowledge]]\nsource = 'pages'", encoding="utf-8")
    expected = f"knowledge: expected a folder, found none at {tmp_path / 'pages'}"
    with pytest.raises(ConfigError, match=expected):
        await serve(Config(port=0, preset="embedded"), agent=load_agent(file))
