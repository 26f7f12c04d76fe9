"""Tools of real MCP servers, over their standard output and over HTTP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from clients.server_process import free_port
from tests import mcp_server
from tests.waiting import until
from voiceloop.agent import AgentConfig, AgentTool, McpServer
from voiceloop.backends import ToolCall
from voiceloop.config import Config
from voiceloop.errors import ConfigError
from voiceloop.server.app import Gateway
from voiceloop.tools import mcp_connection
from voiceloop.tools.executor import ToolFailed
from voiceloop.tools.toolbox import Fate, Toolbox, toolbox_of

pytest.importorskip("mcp", reason="the package mcp is not installed")
httpx2 = pytest.importorskip("httpx2")

ROOT = str(Path(__file__).resolve().parents[3])
COMMAND = (sys.executable, "-m", "tests.mcp_server")
VARIABLES = {"TOKEN": "s3cret"}
STDIO = McpServer(
    "shop", command=COMMAND, environment={"PYTHONPATH": ROOT, "SHOP_TOKEN": "${TOKEN}"},
    tools=("*",),
)  # fmt: skip


READ = AgentTool("price", mcp="shop", side_effect_free=True)


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_connection, "RETRY_PAUSES_S", (0.1,))


@asynccontextmanager
async def http_server(port: int) -> AsyncIterator[McpServer]:
    async with mcp_server.serving(port):
        yield McpServer("shop", url=f"http://127.0.0.1:{port}/mcp", tools=("*",))


@pytest.fixture
async def served() -> AsyncIterator[McpServer]:
    async with http_server(free_port()) as server:
        yield server


@asynccontextmanager
async def opened(
    server: McpServer, *tools: AgentTool
) -> AsyncIterator[tuple[Toolbox, AgentConfig]]:
    """A toolbox whose server has listed its tools, and the agent with them."""
    agent = AgentConfig(mcp=(server,), tools=tools)
    loop = asyncio.get_running_loop()
    box = toolbox_of(agent, loop.time, folder=ROOT, environment=VARIABLES)
    try:
        await box.connect()
        assert box.mcp is not None
        connection = box.mcp.connections[server.name]
        await until(lambda: connection.tools)
        yield box, box.completed(agent)
    finally:
        await box.close()


async def call(
    box: Toolbox, agent: AgentConfig, name: str, arguments: str = "{}"
) -> tuple[Fate, str]:
    tool = agent.tool(name)
    assert tool is not None
    result = await box.call(tool, ToolCall("c", name, arguments))
    return result.fate, result.text


async def test_a_process_lists_its_tools_and_answers_their_calls() -> None:
    async with opened(STDIO, READ) as (box, agent):
        names = {tool.name: tool for tool in agent.tools}
        assert set(names) == {
            "price",
            "order",
            "slow",
            "talk",
            "die",
            "meta",
        }  # not the one with a dot
        assert names["price"].description == "Price of one item."
        assert names["price"].parameters["required"] == ["item"]
        assert names["price"].side_effect_free and not names["order"].side_effect_free
        assert await call(box, agent, "price", '{"item": "latte"}') == (Fate.CALLED, "$4.50")
        fate, text = await call(box, agent, "order", '{"item": "latte"}')
        assert fate is Fate.CALLED and '"s3cret"' in text  # of our environment, where it was named


async def test_a_service_that_was_restarted_is_used_again() -> None:
    port = free_port()
    async with AsyncExitStack() as running:
        async with http_server(port) as server:
            box, agent = await running.enter_async_context(opened(server))
            # What the server claims is not believed: the file does not say so.
            assert not any(tool.side_effect_free for tool in agent.tools)
        fate, text = await call(box, agent, "price", '{"item": "muffin"}')
        assert fate is Fate.FAILED and "127.0.0.1" not in text
        async with http_server(port):
            assert box.mcp is not None
            connection = box.mcp.connections["shop"]
            await until(lambda: connection.is_open)
            found = await call(box, agent, "price", '{"item": "muffin"}')
            assert found == (Fate.CALLED, "$3.25")


async def test_a_tool_that_fails_tells_the_model_why_and_ends_nothing(
    served: McpServer,
) -> None:
    async with opened(served) as (box, agent):
        fate, text = await call(box, agent, "price", '{"item": "sandwich"}')
        assert fate is Fate.FAILED and "sandwich" in text
        fate, text = await call(box, agent, "price", '{"thing": 1}')
        assert fate is Fate.FAILED and len(text) < 400
        assert (await call(box, agent, "price", '{"item": "latte"}'))[0] is Fate.CALLED


async def test_a_slow_call_ends_at_its_deadline_and_costs_the_others_nothing(
    served: McpServer,
) -> None:
    slow = AgentTool("slow", mcp="shop", side_effect_free=True, deadline_ms=200)
    async with opened(served, slow) as (box, agent):
        assert agent.tool("slow").parameters["required"] == ["seconds"]  # type: ignore[union-attr]
        late = asyncio.create_task(call(box, agent, "slow", '{"seconds": 30}'))
        await asyncio.sleep(0.05)
        assert await call(box, agent, "price", '{"item": "latte"}') == (Fate.CALLED, "$4.50")
        assert (await late)[0] is Fate.LATE
        assert await call(box, agent, "slow", '{"seconds": 0}') == (Fate.CALLED, "done")


async def test_a_process_that_dies_is_started_again() -> None:
    async with opened(STDIO) as (box, agent):
        assert (await call(box, agent, "die"))[0] is Fate.FAILED
        connection = box.mcp.connections["shop"]  # type: ignore[union-attr]
        await until(lambda: connection.is_open)
        assert await call(box, agent, "price", '{"item": "latte"}') == (Fate.CALLED, "$4.50")


async def test_a_server_that_comes_later_is_found() -> None:
    port = free_port()
    server = McpServer("shop", url=f"http://127.0.0.1:{port}/mcp", tools=("price",))
    agent = AgentConfig(mcp=(server,))
    box = toolbox_of(agent, asyncio.get_running_loop().time)
    try:
        await box.connect()
        assert box.completed(agent).tools == ()  # nobody would answer them
        async with http_server(port):
            await until(lambda: box.completed(agent).tools)
            (tool,) = box.completed(agent).tools
            assert tool.name == "price"  # the only one that is let through
            found = await call(box, box.completed(agent), "price", '{"item": "latte"}')
            assert found == (Fate.CALLED, "$4.50")
    finally:
        await box.close()


async def test_a_long_result_is_cut(
    served: McpServer,
) -> None:
    async with opened(served) as (box, agent):
        fate, text = await call(box, agent, "talk", '{"n_chars": 100000}')
        assert fate is Fate.CALLED and len(text) < 4100 and "more characters" in text


async def test_a_command_that_is_not_there_is_told_at_the_start() -> None:
    agent = AgentConfig(mcp=(McpServer("shop", command=("no-such-program",), tools=("*",)),))
    box = toolbox_of(agent, asyncio.get_running_loop().time)
    with pytest.raises(ConfigError, match="no-such-program"):
        await box.connect()
    await box.close()


async def test_the_files_own_tool_goes_before_a_servers(
    served: McpServer,
) -> None:
    own = AgentTool("price", result="free")
    async with opened(replace(served, tools=("price", "order")), own) as (box, agent):
        assert [tool.name for tool in agent.tools] == ["price", "order"]
        assert await call(box, agent, "price") == (Fate.TABLE, "free")


async def test_a_call_without_a_connection_says_that_nothing_was_done() -> None:
    agent = AgentConfig(mcp=(McpServer("shop", url="http://127.0.0.1:9/mcp", tools=("*",)),))
    box = toolbox_of(agent, asyncio.get_running_loop().time)
    assert box.mcp is not None
    with pytest.raises(ToolFailed) as failed:
        await box.mcp.connections["shop"].call("price", {})
    assert failed.value.is_unsent and failed.value.told == "not in reach"


async def test_a_session_has_the_tools_that_are_listed_when_it_begins(
    served: McpServer,
) -> None:
    gateway = Gateway(Config(), AgentConfig(mcp=(served,), tools=(READ,)))
    try:
        await gateway.calls.toolbox.connect()
        connection = gateway.calls.toolbox.mcp.connections["shop"]  # type: ignore[union-attr]
        await until(lambda: connection.is_open)
        offered = gateway.session_agent().session_settings().tools
        assert {tool.name for tool in offered} == {"price", "order", "slow", "talk", "die", "meta"}
        assert [tool.name for tool in offered if tool.side_effect_free] == ["price"]
    finally:
        await gateway.calls.toolbox.close()


async def test_one_bad_result_costs_its_call_and_not_the_connection() -> None:
    class Client:
        async def call_tool(self, name: str, arguments: object, meta: object) -> object:
            raise RuntimeError("Tool price has an output schema but did not return it")

    from voiceloop.tools.mcp_connection import McpConnection

    connection = McpConnection(McpServer("shop", url="http://127.0.0.1:9/mcp"), {})
    connection._client = Client()  # type: ignore[assignment]
    with pytest.raises(ToolFailed, match="RuntimeError"):
        await connection.call("price", {})
    assert connection.is_open and not connection._changed.is_set()


async def test_two_servers_with_one_name_are_told_apart_in_running_sessions() -> None:
    ports = free_port(), free_port()
    async with http_server(ports[0]) as first, http_server(ports[1]) as second:
        servers = replace(first, name="a"), replace(second, name="b")
        box = toolbox_of(AgentConfig(mcp=servers), asyncio.get_running_loop().time)
        try:
            await box.connect()
            assert box.mcp is not None
            await until(lambda: all(one.tools for one in box.mcp.connections.values()))  # type: ignore[union-attr]
            tools = [AgentTool("order", mcp=name) for name in "ab"]
            for tool in tools:
                # What a session of then was given, while the other was not listed.
                box.completed(AgentConfig(mcp=servers, tools=(tool,)))
                box.mcp._agent = AgentConfig(mcp=servers, tools=(tool,))
                box.completed(box.mcp._agent)
            told = [await box.call(tool, ToolCall("c", "order", '{"item": "x"}')) for tool in tools]
            assert ['"number": 1' in one.text.replace("\\n", " ") for one in told] == [True, True]
        finally:
            await box.close()


async def test_an_answer_over_http_is_read_up_to_a_bound() -> None:
    from voiceloop.tools import mcp_connection

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield bytes(2**20)

    response = httpx2.Response(200, headers={"content-type": "application/json"}, content=pieces())
    await mcp_connection._bound(response)
    with pytest.raises(httpx2.StreamError, match="expected an answer of at most"):
        await response.aread()
    packed = httpx2.Response(200, headers={"content-encoding": "gzip"}, content=pieces())
    with pytest.raises(httpx2.DecodingError):
        await mcp_connection._bound(packed)
