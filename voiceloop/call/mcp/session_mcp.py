"""The MCP servers that one session names: connected while it lasts, listed, and asked.

Owns their connections. Which hosts a session may name is the operator's to say, and is checked
before (`realtime/mcp/entry.py`); nothing of our environment goes into an address or a header. What
a server lists is offered to the model beside the session's functions. A call that the client has to
allow is waited for by no task: it is an item, and the client's answer another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from voiceloop.agent import McpServer
from voiceloop.backends import MAX_TOOLS, Tool, ToolCall
from voiceloop.errors import expected
from voiceloop.realtime import events
from voiceloop.realtime.items import (
    ListedTool,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
)
from voiceloop.realtime.mcp.calls import finished
from voiceloop.realtime.mcp.entry import MAX_SERVERS, McpEntry
from voiceloop.realtime.protocol import Protocol
from voiceloop.tools.limit import CallLimit
from voiceloop.tools.mcp_connection import McpConnection
from voiceloop.tools.pending import SessionTools
from voiceloop.tools.toolbox import SessionTool

log = logging.getLogger(__name__)

# Connections at once, those that are being closed included: a client may change its mind about all
# of its servers, and again, but then it waits for the first to be closed.
MAX_CONNECTIONS = 2 * MAX_SERVERS
CALLS_AT_ONCE = 8  # of a tool, as in an agent file
REFUSED = "not done: it was not allowed"
Line = tuple[str, str, tuple[tuple[str, str], ...]]  # label, address, headers


@dataclass(slots=True, eq=False)
class _Server:
    """One that the settings name. tools: what it lists and the settings let through, by name."""

    entry: McpEntry
    task: asyncio.Task[None] | None = None
    tools: dict[str, SessionTool] = field(default_factory=dict)


class SessionMcp:
    """`configure` at each change of settings, `observe` each item, until the session ends.

    tasks: of the session; each server has one, and with it ends its connection. on_news: the model
    is to say what came of a call that the client has answered.
    """

    def __init__(
        self,
        protocol: Protocol,
        tools: SessionTools,
        tasks: asyncio.TaskGroup,
        on_news: Callable[[], None],
    ) -> None:
        self._protocol = protocol
        self._tools = tools
        self._tasks = tasks
        self._on_news = on_news
        self._servers: dict[Line, _Server] = {}
        self._free = asyncio.Semaphore(MAX_CONNECTIONS)
        self._answered: set[str] = set()  # requests

    def configure(self) -> None:
        """Connect to those servers of the settings that are new, and let the others go."""
        entries = {_line(entry): entry for entry in self._protocol.settings.mcp}
        for line in [line for line in self._servers if line not in entries]:
            gone = self._servers.pop(line)
            if gone.task is not None:
                gone.task.cancel()
        for line, entry in entries.items():
            if line in self._servers:
                self._servers[line].entry = entry  # which of its tools may have changed
                continue
            server = self._servers[line] = _Server(entry)
            name = f"mcp {entry.server_label}"
            server.task = self._tasks.create_task(self._hold(line, server), name=name)
        self._offer()

    async def _hold(self, line: Line, server: _Server) -> None:
        """Open the connection, list its tools, and keep it until this is cancelled."""
        protocol, entry, item_id = self._protocol, server.entry, self._protocol.new_id("mcpl")
        protocol.send(events.McpListToolsInProgress(item_id=item_id))
        called = McpServer(entry.server_label, entry.server_url, dict(entry.headers))
        connection = McpConnection(called, {})
        await self._free.acquire()
        is_listed = False
        try:
            await connection.start()
            server.tools = _tools_of(connection) if connection.is_open else {}
            self._offer()
            listed = self._listed(server.entry)
            if is_listed := connection.is_open and bool(listed or not server.tools):
                label = entry.server_label
                protocol.add_item(McpListTools(id=item_id, server_label=label, tools=listed))
                protocol.send(events.McpListToolsCompleted(item_id=item_id))
                await asyncio.Event().wait()
        finally:
            if not is_listed:
                protocol.send(events.McpListToolsFailed(item_id=item_id))
            if self._servers.get(line) is server:
                del self._servers[line]  # another update may try again
            self._tools.let_go(lambda: self._close(connection))

    async def _close(self, connection: McpConnection) -> None:
        try:
            await connection.close()
        finally:
            self._free.release()

    def _offer(self) -> None:
        """The session's functions, and behind them what its servers list."""
        protocol = self._protocol
        offered = {tool.name: tool for tool in protocol.settings.tools if not tool.server_label}
        self._tools.of_servers.clear()
        for entry in protocol.settings.mcp:
            server = self._servers.get(_line(entry))
            for name, tool in server.tools.items() if server is not None else ():
                if not entry.lets_through(name) or name in offered or len(offered) == MAX_TOOLS:
                    continue
                self._tools.of_servers[entry.server_label, name] = tool
                offered[name] = Tool(
                    name, tool.description, dict(tool.parameters),
                    server_label=entry.server_label, needs_approval=entry.needs_approval(name),
                )  # fmt: skip
        protocol.offer_tools(tuple(offered.values()))
        if n_over := len(offered) - len(protocol.settings.tools):
            log.warning("%d tools of MCP servers are left out: no room in the context", n_over)

    def _listed(self, entry: McpEntry) -> tuple[ListedTool, ...]:
        """Return what of the server the model is offered."""
        return tuple(
            ListedTool(name=one.name, description=one.description, input_schema=one.parameters)
            for one in self._protocol.settings.tools
            if one.server_label == entry.server_label
        )

    # --- calls that the client allows ---

    def observe(self, item: McpApprovalResponse) -> None:
        request_id = item.approval_request_id
        request = self._protocol.conversation.get(request_id)
        if not isinstance(request, McpApprovalRequest) or request_id in self._answered:
            wanted = "the id of a request that waits for an answer"
            self._protocol.error(expected("item.approval_request_id", wanted, request_id))
            return
        self._answered.add(request_id)
        self._tasks.create_task(self._answer(request, item), name=f"mcp call {request.name}")

    async def _answer(self, request: McpApprovalRequest, answer: McpApprovalResponse) -> None:
        protocol = self._protocol
        call = McpCall(
            id=protocol.new_id("mcp"),
            server_label=request.server_label,
            name=request.name,
            arguments=request.arguments,
            approval_request_id=request.id,
        )
        tool = self._tools.of_servers.get((request.server_label, request.name))
        # First: a result that comes late is put into it.
        previous = protocol.conversation.insert(call)
        protocol.send(events.ItemAdded(previous_item_id=previous, item=call))
        if not answer.approve:
            text, is_error = answer.reason or REFUSED, True
        elif tool is None:
            text, is_error = "the server has gone", True
        else:
            wanted = ToolCall(call.id, request.name, request.arguments)
            pending = self._tools.begin(tool, wanted, is_recorded=True, is_allowed=True)
            await pending.settled()
            text, is_error = pending.told
            if pending.is_over:
                pending.take()
            else:
                pending.postpone()
        call = finished(call, text, is_error=is_error)
        protocol.conversation.replace(call)
        previous = protocol.conversation.previous_id(call.id)
        protocol.send(events.ItemDone(previous_item_id=previous, item=call))
        self._on_news()


def _tools_of(connection: McpConnection) -> dict[str, SessionTool]:
    """Return the tools that it lists, with the bounds of tools in an agent file."""
    label = connection.server.name
    return {
        listed.name: SessionTool(
            listed.name,
            listed.description,
            listed.parameters,
            mcp=label,
            run=connection.runs(listed.name),
            limit=CallLimit(listed.name, CALLS_AT_ONCE),
            says_read_only=listed.is_read_only,
        )
        for listed in connection.tools
    }


def _line(entry: McpEntry) -> Line:
    return entry.server_label, entry.server_url, entry.headers
