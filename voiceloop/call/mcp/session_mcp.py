"""The MCP servers that one session names: connected while it lasts, listed, and asked.

Owns their connections. Which hosts a session may name is the operator's to say, and is checked
before (`realtime/mcp/entry.py`); nothing of our environment goes into an address or a header. What
a server lists is offered to the model beside the session's functions. A call that the client has to
allow is waited for by no task: it is an item, and the client's answer another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from voiceloop.agent import AgentTool, McpServer
from voiceloop.backends import MAX_TOOLS, Tool, ToolCall
from voiceloop.errors import expected
from voiceloop.realtime import events
from voiceloop.realtime.items import (
    Item,
    ListedTool,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
)
from voiceloop.realtime.mcp.calls import finished
from voiceloop.realtime.mcp.entry import McpEntry
from voiceloop.realtime.protocol import Protocol
from voiceloop.tools.mcp_connection import McpConnection
from voiceloop.tools.mcp_servers import McpTool
from voiceloop.tools.pending import SessionTools
from voiceloop.tools.slots import Slots
from voiceloop.tools.toolbox import ServedTool

REFUSED = "not done: it was not allowed"
Line = tuple[str, str, tuple[tuple[str, str], ...]]  # label, address, headers


class SessionMcp:
    """`configure` at each change of settings, `observe` each item, `run` until the session ends.

    on_news: the model is to say what came of a call that the client has answered.
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
        self._lines: dict[Line, McpConnection | None] = {}  # None: it is being opened
        self._answered: set[str] = set()  # requests

    async def run(self) -> None:
        """Hold the connections until cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            await self._tools.own.close()
            await asyncio.gather(*(one.close() for one in self._lines.values() if one))

    def configure(self) -> None:
        """Connect to those servers of the settings that are new, and let the others go."""
        entries = {_line(entry): entry for entry in self._protocol.settings.mcp}
        for line in [line for line in self._lines if line not in entries]:
            connection = self._lines.pop(line)
            if connection is not None:
                self._tasks.create_task(connection.close())
        for line, entry in entries.items():
            if line not in self._lines:
                self._lines[line] = None
                self._tasks.create_task(self._list(entry), name=f"mcp {entry.server_label}")
        self._offer()

    async def _list(self, entry: McpEntry) -> None:
        protocol, line, item_id = self._protocol, _line(entry), self._protocol.new_id("mcpl")
        protocol.send(events.McpListToolsInProgress(item_id=item_id))
        server = McpServer(entry.server_label, entry.server_url, dict(entry.headers))
        connection = McpConnection(server, {})
        is_listed = False
        try:
            await connection.start()
            is_listed = connection.is_open and line in self._lines
        finally:
            if not is_listed:
                await connection.close()
        if not is_listed:
            self._lines.pop(line, None)  # another update may try again
            protocol.send(events.McpListToolsFailed(item_id=item_id))
            return
        self._lines[line] = connection
        listed = tuple(
            ListedTool(name=one.name, description=one.description, input_schema=one.parameters)
            for one in connection.tools
            if entry.lets_through(one.name)
        )
        label = entry.server_label
        protocol.add_item(McpListTools(id=item_id, server_label=label, tools=listed))
        protocol.send(events.McpListToolsCompleted(item_id=item_id))
        self._offer()

    def _offer(self) -> None:
        """The session's functions, and behind them what its servers list."""
        settings = self._protocol.settings
        offered = {tool.name: tool for tool in settings.tools if not tool.server_label}
        self._tools.own.served.clear()
        for entry in settings.mcp:
            connection, label = self._lines.get(_line(entry)), entry.server_label
            if connection is None:
                continue
            for listed in connection.tools:
                name = listed.name
                if not entry.lets_through(name) or name in offered or len(offered) == MAX_TOOLS:
                    continue
                tool = AgentTool(name, listed.description, listed.parameters, mcp=label)
                slots = Slots(name, tool.at_once)
                self._tools.own.served[name] = ServedTool(tool, McpTool(connection, name), slots)
                offered[name] = Tool(
                    name, listed.description, listed.parameters,
                    server_label=label, needs_approval=entry.needs_approval(name),
                )  # fmt: skip
        self._protocol.settings = replace(settings, tools=tuple(offered.values()))

    # --- calls that the client allows ---

    def observe(self, item: Item) -> None:
        """The client added this item: it may be its yes or no."""
        if not isinstance(item, McpApprovalResponse):
            return
        request_id = item.approval_request_id
        request = self._protocol.conversation.get(request_id)
        if not isinstance(request, McpApprovalRequest) or request_id in self._answered:
            wanted = "the id of a request that waits for an answer"
            self._protocol.error(expected("item.approval_request_id", wanted, request_id))
            return
        self._answered.add(request_id)
        self._tasks.create_task(self._answer(request, item), name=f"mcp call {request.name}")

    async def _answer(self, request: McpApprovalRequest, answer: McpApprovalResponse) -> None:
        call = McpCall(
            id=self._protocol.new_id("mcp"),
            server_label=request.server_label,
            name=request.name,
            arguments=request.arguments,
            approval_request_id=request.id,
        )
        served = self._tools.own.served.get(request.name)
        if not answer.approve:
            text, is_error = answer.reason or REFUSED, True
        elif served is None:
            text, is_error = "the server has gone", True
        else:
            wanted = ToolCall(call.id, request.name, request.arguments)
            pending = self._tools.begin(served.tool, wanted, is_recorded=False)
            await pending.settled()
            text, is_error = pending.told
        self._protocol.add_item(finished(call, text, is_error=is_error))
        self._on_news()


def _line(entry: McpEntry) -> Line:
    return entry.server_label, entry.server_url, entry.headers
