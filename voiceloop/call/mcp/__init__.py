"""The MCP servers that one session names: connected, listed, asked.

Owns that nothing of this is loaded where no session may name one, for the package that speaks to
them is an extra. Start reading at `session_mcp.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from voiceloop.call.events import AnswerOwed, CallEvent
from voiceloop.capabilities import Capabilities
from voiceloop.realtime.protocol import Protocol
from voiceloop.tools.pending import SessionTools

if TYPE_CHECKING:
    from voiceloop.call.mcp.session_mcp import SessionMcp


def servers_of(
    known: Capabilities,
    protocol: Protocol,
    tools: SessionTools,
    tasks: asyncio.TaskGroup,
    advance: Callable[[CallEvent], None],
) -> SessionMcp | None:
    """Open the servers of one session, for as long as its tasks run; None where it may name none.

    advance: of the call's one loop.
    """
    if not known.mcp_hosts:
        return None
    from voiceloop.call.mcp.session_mcp import SessionMcp

    servers = SessionMcp(protocol, tools, tasks, lambda: advance(AnswerOwed()))
    servers.configure()
    return servers
