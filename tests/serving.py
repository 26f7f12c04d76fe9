"""A gateway of the test itself on a free port of this machine, its models scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import socket
from typing import Any

from tests.fakes import EnergyVad, instant_backends
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.config import Config
from voiceloop.server.app import Gateway, build_app
from voiceloop.server.process import listen, make_server


@asynccontextmanager
async def serving(app: Any, config: Config, sock: socket | None = None) -> AsyncIterator[int]:
    """This application; yields its port."""
    sock = sock or listen("127.0.0.1", 0)
    server = make_server(app, config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield sock.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await task


def gateway_of(
    backends: Backends | None = None, config: Config | None = None, **state: Any
) -> Gateway:
    """One on the clock of the test's loop. state: what else `Gateway` is given."""
    state.setdefault("clock", asyncio.get_running_loop().time)
    agent = state.pop("agent", AgentConfig(instructions="Be kind."))
    gateway: Gateway = state.pop("kind", Gateway)(config or Config(), agent, **state)
    gateway.backends = backends or instant_backends()
    return gateway


@asynccontextmanager
async def served(
    backends: Backends | None = None, config: Config | None = None, **state: Any
) -> AsyncIterator[tuple[Gateway, str]]:
    """`gateway_of` all this with its doors, which hears by loudness; yields it and its URL."""
    sock = state.pop("sock", None)
    gateway = gateway_of(backends, config, **state)
    gateway.calls.new_vad = EnergyVad
    async with serving(build_app(gateway), gateway.config, sock) as port:
        try:
            yield gateway, f"http://127.0.0.1:{port}"
        finally:
            await gateway.drain()
            gateway.doors.close()
