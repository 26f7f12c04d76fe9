"""The tools of an agent's MCP servers, as tools like its others.

Owns the connections of one agent (`mcp_connection.py`), and which of the tools that they list are
offered to the model, under which bounds: those of the agent file where it names the tool, else the
defaults. What a server says of itself, that a tool changes nothing, counts only where the agent
file says so too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

from voiceloop.agent import AgentConfig, AgentTool, McpServer
from voiceloop.backends import MAX_TOOLS
from voiceloop.tools.executor import Run
from voiceloop.tools.mcp_connection import ListedTool, McpConnection

log = logging.getLogger(__name__)
ALL = "*"


class McpServers:
    """The MCP servers of one agent. `start`, then `tools` at any time, then `close`.

    Raises:
        ConfigError: as `McpConnection`.
    """

    def __init__(
        self, agent: AgentConfig, environment: Mapping[str, str], folder: str = ""
    ) -> None:
        self._agent = agent
        self.connections = {
            server.name: McpConnection(server, environment, folder) for server in agent.mcp
        }

    async def start(self) -> None:
        """Start the servers; those that do not answer yet are tried again by themselves. Raises:
        ConfigError.
        """
        opening = (connection.start() for connection in self.connections.values())
        failures = await asyncio.gather(*opening, return_exceptions=True)
        for failure in failures:
            if isinstance(failure, BaseException):
                await self.close()
                raise failure

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in self.connections.values()))

    def tools(self) -> tuple[AgentTool, ...]:
        """All tools of the agent as a session is to have them now: its own, and those listed.

        A tool of the file whose server does not list it is left out: nobody would answer it.
        """
        listed = {
            (name, tool.name): tool
            for name, connection in self.connections.items()
            for tool in connection.tools
        }
        found = [
            tool if tool.mcp is None else _described(tool, listed[tool.mcp, tool.name])
            for tool in self._agent.tools
            if tool.mcp is None or (tool.mcp, tool.name) in listed
        ]
        names = {tool.name for tool in self._agent.tools}
        for server in self._agent.mcp:
            for tool in _offered(server, self.connections[server.name].tools):
                if tool.name not in names and len(found) < MAX_TOOLS:
                    names.add(tool.name)  # of two servers with one name the first
                    found.append(tool)
        return tuple(found)

    def runs(self, tool: AgentTool) -> Run:
        """Return what runs one of `tools` that a server lists."""
        assert tool.mcp is not None
        return self.connections[tool.mcp].runs(tool.name)


def _offered(server: McpServer, listed: tuple[ListedTool, ...]) -> Iterator[AgentTool]:
    """The tools that the server's own table lets through."""
    for tool in listed:
        if tool.name in server.tools or ALL in server.tools:
            yield AgentTool(tool.name, tool.description, tool.parameters, mcp=server.name)


def _described(tool: AgentTool, listed: ListedTool) -> AgentTool:
    """The agent file's tool, with the server's words where it has none of its own."""
    return replace(
        tool,
        description=tool.description or listed.description,
        parameters=tool.parameters or listed.parameters,
    )
