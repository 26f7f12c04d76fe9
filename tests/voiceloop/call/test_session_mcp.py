"""MCP servers that a session names: listed, asked, allowed by the client; against a real server."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, Reply, instant_backends
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends, ChatMessage, ToolCall
from voiceloop.call.connection import Hello
from voiceloop.capabilities import Capabilities
from voiceloop.config import Config
from voiceloop.resume.ticket import Tickets

pytest.importorskip("mcp", reason="the package mcp is not installed")

ROOT = str(Path(__file__).resolve().parents[3])
HOSTS = ("127.0.0.1",)
CONFIG = Config(mcp_allowed_hosts=HOSTS)


@pytest.fixture
def clock() -> Callable[[], float]:
    """Real time: a server in another process knows no other."""
    return asyncio.get_event_loop().time


@asynccontextmanager
async def shop() -> AsyncIterator[str]:
    """A server, and its address."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.mcp_server", str(port), cwd=ROOT
    )
    try:
        for _ in range(500):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.wait()


def backends(name: str = "price", arguments: str = '{"item": "latte"}') -> Backends:
    """A model that calls the tool, and says what came of it."""

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        if messages[-1].role == "tool":
            return Reply(f"It is {messages[-1].content}.")
        return Reply("", (ToolCall("call_1", name, arguments),))

    known = Capabilities(mcp_hosts=HOSTS)
    return replace(instant_backends(language_model=FakeLanguageModel(reply)), capabilities=known)


def entry(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "shop", "server_url": url, **more}


async def ask(caller: Caller, *tools: dict[str, Any]) -> None:
    """Name the servers, wait for their lists, and type a turn."""
    session = {"type": "realtime", "output_modalities": ["text"], "tools": list(tools)}
    caller.send("session.update", session=session)
    await caller.wait_for("mcp_list_tools.completed")
    part = {"type": "input_text", "text": "how much is a latte"}
    item = {"type": "message", "role": "user", "content": [part]}
    caller.send("conversation.item.create", item=item)
    caller.send("response.create")


async def test_a_server_is_listed_and_its_tool_called_in_the_protocols_own_events(
    clock: Callable[[], float],
) -> None:
    async with shop() as url, Caller(clock, backends(), AgentConfig(), CONFIG) as caller:
        secret = {"headers": {"key": "s3cret"}, "authorization": "t0ken"}
        await ask(caller, entry(url, require_approval="never", allowed_tools=["price"], **secret))
        await caller.wait_for("response.done", count=2)
        told = [one.event for one in caller.transport.received]
    items = {one["item"]["id"]: one["item"] for one in told if "item" in one}
    (listed,) = [item for item in items.values() if item["type"] == "mcp_list_tools"]
    assert [tool["name"] for tool in listed["tools"]] == ["price"]
    assert listed["tools"][0]["input_schema"]["required"] == ["item"]
    order = [kind for kind in caller.types() if "mcp" in kind]
    assert order == [
        "mcp_list_tools.in_progress", "mcp_list_tools.completed",
        "response.mcp_call_arguments.delta", "response.mcp_call_arguments.done",
        "response.mcp_call.in_progress", "response.mcp_call.completed",
    ]  # fmt: skip
    call = items["call_1"]
    assert (call["type"], call["output"], call["error"]) == ("mcp_call", "$4.50", None)
    assert told[-1]["response"]["output"][0]["content"][0]["text"] == "It is $4.50."
    (updated,) = [one for one in told if one["type"] == "session.updated"]
    assert updated["session"]["tools"][0]["server_label"] == "shop"
    assert "s3cret" not in str(told) and "t0ken" not in str(told)


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_a_call_waits_for_the_clients_yes(
    clock: Callable[[], float], is_allowed: bool
) -> None:
    async with shop() as url, Caller(clock, backends(), AgentConfig(), CONFIG) as caller:
        await ask(caller, entry(url))
        await caller.wait_for("response.done")
        items = [one.event["item"] for one in caller.of("conversation.item.done")]
        (request,) = [item for item in items if item["type"] == "mcp_approval_request"]
        assert request["arguments"] == '{"item": "latte"}'
        answer = {"type": "mcp_approval_response", "approval_request_id": request["id"]}
        caller.send("conversation.item.create", item=answer | {"approve": is_allowed})
        await caller.wait_for("response.done", count=2)
        items = [one.event["item"] for one in caller.of("conversation.item.done")]
        (call,) = [item for item in items if item["type"] == "mcp_call"]
        assert call["approval_request_id"] == request["id"]
        said = caller.of("response.done")[-1].event["response"]["output"][0]
        caller.send("conversation.item.create", item=answer | {"approve": True})  # once more
        await caller.wait_for("error")
    if is_allowed:
        assert call["output"] == "$4.50" and said["content"][0]["text"] == "It is $4.50."
    else:
        assert call["output"] is None and "not allowed" in call["error"]["message"]


async def test_a_tool_that_fails_is_told_as_failed_and_the_reply_goes_on(
    clock: Callable[[], float],
) -> None:
    fakes = backends(arguments='{"item": "sandwich"}')
    async with shop() as url, Caller(clock, fakes, AgentConfig(), CONFIG) as caller:
        await ask(caller, entry(url, require_approval="never"))
        await caller.wait_for("response.done", count=2)
        calls = [one.event["item"] for one in caller.of("response.output_item.done")][:1]
        assert "response.mcp_call.failed" in caller.types()
    assert "sandwich" in calls[0]["error"]["message"] and caller.statuses() == ["completed"] * 2


async def test_a_server_that_does_not_answer_fails_its_list_and_nothing_else(
    clock: Callable[[], float],
) -> None:
    async with Caller(clock, backends(), AgentConfig(), CONFIG) as caller:
        caller.send("session.update", session={"tools": [entry("http://127.0.0.1:9/mcp")]})
        await caller.wait_for("mcp_list_tools.failed")
        assert "error" not in caller.types()


async def test_a_session_may_name_no_other_host(clock: Callable[[], float]) -> None:
    async with Caller(clock, backends(), AgentConfig(), CONFIG) as caller:
        caller.send("session.update", session={"tools": [entry("http://10.0.0.1/mcp")]})
        await caller.wait_for("error")
        (refused,) = caller.of("error")
        assert "expected a host of 127.0.0.1" in refused.event["error"]["message"]
        assert not [kind for kind in caller.types() if "mcp" in kind]


async def test_a_call_that_is_resumed_has_the_servers_that_its_new_line_names_with_a_token(
    clock: Callable[[], float],
) -> None:
    tickets, agent = Tickets(b"shared", clock), AgentConfig()
    async with shop() as url:
        named = entry(url, require_approval="never", authorization="t0ken")
        hello = Hello(resume=True)
        async with Caller(clock, backends(), agent, CONFIG, hello=hello, tickets=tickets) as caller:
            await ask(caller, named)
            await caller.wait_for("response.done", count=2)
            await asyncio.sleep(1)
            held = caller.of("voiceloop.resume_ticket")[-1].event["ticket"]
        _, snapshot = tickets.read(held, "")
        assert "t0ken" not in str(snapshot)
        async with Caller(clock, backends(), agent, CONFIG, tickets=tickets) as again:
            session = {"type": "realtime", "tools": [named]}
            again.send("session.update", session=session)
            again.send("voiceloop.resume", ticket=held)
            await again.wait_for("mcp_list_tools.completed")
            part = {"type": "input_text", "text": "and two"}
            item = {"type": "message", "role": "user", "content": [part]}
            again.send("conversation.item.create", item=item)
            again.send("response.create")
            await again.wait_for("response.mcp_call.completed")
            assert again.of("session.updated")[-1].event["session"]["tools"][0]["server_url"] == url
            assert again.of("session.updated")[-1].event["session"]["output_modalities"] == ["text"]
