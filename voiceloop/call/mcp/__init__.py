"""The MCP servers that one session names: connected, listed, asked.

Owns that nothing of this is loaded where no session may name one, for the package that speaks to
them is an extra. Start reading at `session_mcp.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol as Shape

from voiceloop.call.events import CallEvent, ResultLate
from voiceloop.capabilities import Capabilities
from voiceloop.realtime.items import Item
from voiceloop.realtime.protocol import Protocol
from voiceloop.tools.pending import SessionTools


class SessionServers(Shape):
    """As `session_mcp.SessionMcp`."""

    def configure(self) -> None: ...

    def observe(self, item: Item) -> None: ...


class NoServers:
    """Of a session that may name none; its settings have none."""

    def configure(self) -> None: ...

    def observe(self, item: Item) -> None: ...


def servers_of(
    known: Capabilities,
    protocol: Protocol,
    tools: SessionTools,
    tasks: asyncio.TaskGroup,
    advance: Callable[[CallEvent], None],
) -> SessionServers:
    """Those of one session, for as long as its tasks run. advance: of the call's one loop."""
    if not known.mcp_hosts:
        return NoServers()
    from voiceloop.call.mcp.session_mcp import SessionMcp

    servers = SessionMcp(protocol, tools, tasks, lambda: advance(ResultLate()))
    servers.configure()
    return servers
