"""Checks the tools of an agent file without calling one.

The doctor connects to a service's address with no key and no argument, starts the process of a
function, and has an MCP server list its tools.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator

import httpx

from voiceloop.agent import AgentConfig, AgentTool, McpServer
from voiceloop.doctor.finding import Finding
from voiceloop.errors import ConfigError
from voiceloop.tools.http import HttpTool
from voiceloop.tools.toolbox import Toolbox, toolbox_of

PROBE_S = 5.0  # a service further away than this would be of no use to a caller


async def check_agent_tools(agent: AgentConfig, folder: str) -> AsyncIterator[Finding]:
    """Each tool, then each MCP server. folder: of the agent file."""
    if not agent.tools and not agent.mcp:
        yield Finding("ok", "tools", f"{agent.name} has none")
        return
    try:
        box = toolbox_of(agent, time.monotonic, folder=folder)
    except ConfigError as error:
        yield Finding("problem", "tools", error.message, "mend the agent file, or set the variable")
        return
    try:
        for tool in agent.tools:
            if tool.mcp is None:
                yield await _check_tool(tool, box)
        if agent.mcp:
            async for finding in _check_servers(agent, box):
                yield finding
    finally:
        await box.close()


async def _check_tool(tool: AgentTool, box: Toolbox) -> Finding:
    subject = f"tool {tool.name}"
    if tool.is_clients:
        return Finding("ok", subject, "the client has to answer its calls")
    if not tool.is_executed:
        return Finding("ok", subject, "the agent file answers its calls")
    if tool.url is not None:
        assert box.client is not None
        return await _probe(subject, HttpTool(tool, os.environ, box.client).source, box.client)
    process = box.processes.get(tool.name) or box.own_class
    assert process is not None
    try:
        await process.start()
    except ConfigError as error:
        remedy = "the module stands beside the agent file, or is installed"
        return Finding("problem", subject, error.message, remedy)
    return Finding("ok", subject, f"{tool.python} is there")


async def _probe(subject: str, origin: str, client: httpx.AsyncClient) -> Finding:
    """Any answer at all says that somebody listens; OPTIONS changes nothing anywhere."""
    began_s = time.monotonic()
    try:
        response = await client.request("OPTIONS", f"{origin}/", timeout=PROBE_S)
    except httpx.HTTPError as error:
        found = f"nobody answers at {origin} ({type(error).__name__})"
        return Finding("problem", subject, found, "start the service, or mend the address")
    took_ms = 1000 * (time.monotonic() - began_s)
    # Its status is of OPTIONS, which many a service does not know.
    found = f"somebody listens at {origin} (answered {response.status_code} in {took_ms:.0f} ms)"
    return Finding("ok", subject, found)


async def _check_servers(agent: AgentConfig, box: Toolbox) -> AsyncIterator[Finding]:
    assert box.mcp is not None
    try:
        await box.connect()
    except ConfigError as error:
        yield Finding("problem", "mcp", error.message, "install the command, or mend its name")
        return
    for server in agent.mcp:
        connection = box.mcp.connections[server.name]
        subject = f"mcp {server.name}"
        if not connection.is_open:
            remedy = "start the server; its tools are not offered until it answers"
            yield Finding("problem", subject, connection.problem, remedy)
            continue
        listed = {tool.name for tool in connection.tools}
        offered = [tool.name for tool in box.mcp.tools() if tool.mcp == server.name]
        found = f"lists {len(listed)} tools; offered: {', '.join(offered) or 'none'}"
        yield Finding("ok", subject, found)
        for name in _missing(agent, server, listed):
            remedy = f"mend the name; it lists {', '.join(sorted(listed)) or 'none'}"
            yield Finding("problem", f"tool {name}", f"{server.name} does not list it", remedy)


def _missing(agent: AgentConfig, server: McpServer, listed: set[str]) -> Iterator[str]:
    """Yield what the file wants of this server, and the server has not."""
    wanted = [tool.name for tool in agent.tools if tool.mcp == server.name]
    wanted += [name for name in server.tools if name != "*"]
    return (name for name in dict.fromkeys(wanted) if name not in listed)
