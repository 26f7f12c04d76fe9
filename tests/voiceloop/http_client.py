"""An HTTP client on the application itself, with scripted models behind it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.fakes import instant_backends
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.config import Config
from voiceloop.server.app import Gateway, build_app

KEY = "secret-key-1"
AGENT = AgentConfig(instructions="Be kind.", voice="ava")


@asynccontextmanager
async def http_client(
    backends: Backends | None = None,
    config: Config | None = None,
    *,
    loaded: bool = True,
    agent: AgentConfig = AGENT,
) -> AsyncIterator[httpx.AsyncClient]:
    gateway = Gateway(config or Config(), agent)
    gateway.backends = (backends or instant_backends()) if loaded else None
    transport = httpx.ASGITransport(build_app(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield http


def sse(text: str) -> list[Any]:
    """The data of server-sent events; "[DONE]" stays a text."""
    found: list[Any] = []
    for block in text.strip().split("\n\n"):
        assert block.startswith("data: ") and "\n" not in block
        data = block.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found
