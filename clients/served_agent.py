"""The agent that a command calls: one that already runs, or a server that is started for it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from clients.connection import own_key
from clients.server_process import running_server

URL_BEGINS = ("ws://", "wss://", "http://", "https://")


@asynccontextmanager
async def served_agent(
    agent: str, config: Path | None, preset: str | None, key: str | None
) -> AsyncIterator[tuple[str, str | None]]:
    """The agent's address, and the key that it wants.

    agent: an address, an agent file, or the name of one that ships. config, preset: of a server
    that is started. key: None for `own_key`.

    Raises:
        ServerDidNotStart: as `running_server`.
    """
    if agent.startswith(URL_BEGINS):
        yield agent, key or own_key(agent)
        return
    arguments = ["--agent", agent]
    if config is not None:
        arguments += ["--config", str(config)]
    if preset is not None:
        arguments += ["--preset", preset]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        async with running_server(arguments, log=log) as server:
            yield server.url, key or own_key(server.url)
