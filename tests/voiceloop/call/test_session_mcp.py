"""MCP servers that a session names: listed, asked, allowed by the client; against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from clients.server_process import free_port
from tests import mcp_server
from tests.callers import Caller
from tests.fakes import FakeLanguageModel, Reply, calls_first, instant_backends
from voiceloop.access.keys import KeyRing
from voiceloop.agent import AgentConfig, McpServer
from voiceloop.backends import Backends, ChatMessage, ToolCall
from voiceloop.call.connection import Hello
from voiceloop.capabilities import Capabilities
from voiceloop.config import Config
from voiceloop.realtime.items import McpCall
from voiceloop.resume.ticket import Tickets

pytest.importorskip("mcp", reason="the package mcp is not installed")

SHARED = KeyRing((), shared=("shared",))


PORT = free_port()
HOSTS = (f"http://127.0.0.1:{PORT}", "http://127.0.0.1:9")
CONFIG = Config(mcp_allowed_hosts=HOSTS)


pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def shop() -> AsyncIterator[str]:
    """A server that takes calls, and its address."""
    try:
        async with mcp_server.serving(PORT):
            yield f"http://127.0.0.1:{PORT}/mcp"
    finally:
        # A session does not wait for its connections to close; a test leaves nothing behind.
        closing = [t for t in asyncio.all_tasks() if t.get_name() == "mcp connection of a session"]
        await asyncio.gather(*closing, return_exceptions=True)


def backends(name: str = "price", arguments: str = '{"item": "latte"}') -> Backends:
    """A model that calls the tool, and says what came of it."""
    replies = calls_first(name, arguments, then="It is {}.", call_id="call_1")
    known = Capabilities(mcp_hosts=HOSTS)
    return replace(instant_backends(language_model=FakeLanguageModel(replies)), known=lambda: known)


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
        secret = {"headers": {"x-api-key": "s3cret"}, "authorization": "t0ken"}
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
    (call,) = [item for item in items.values() if item["type"] == "mcp_call"]
    assert (call["output"], call["error"]) == ("$4.50", None)
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
        assert "expected a host of http://127.0.0.1" in refused.event["error"]["message"]
        assert not [kind for kind in caller.types() if "mcp" in kind]


async def test_a_call_that_is_resumed_has_the_servers_that_its_new_line_names_with_a_token(
    clock: Callable[[], float],
) -> None:
    tickets, agent = Tickets(SHARED, clock), AgentConfig()
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
        assert [item.output for item in snapshot.items if isinstance(item, McpCall)] == ["$4.50"]
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


class SlowConnection:
    """A server that takes its time to answer, and one to be hung up on."""

    opened: list[SlowConnection] = []
    n_at_once = 0
    tools = ()

    def __init__(self, server: McpServer, environment: object) -> None:
        self.server = server
        self.is_open = self.is_closed = False

    async def start(self) -> None:
        self.opened.append(self)
        at_once = sum(not one.is_closed for one in self.opened)
        SlowConnection.n_at_once = max(self.n_at_once, at_once)
        await asyncio.sleep(0.02)
        self.is_open = True

    async def close(self) -> None:
        await asyncio.sleep(0.02)
        self.is_closed = True


async def test_a_server_named_and_dropped_again_and_again_leaves_no_connection(
    clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    from voiceloop.call.mcp import session_mcp

    monkeypatch.setattr(session_mcp, "McpConnection", SlowConnection)
    monkeypatch.setattr(SlowConnection, "opened", [])
    monkeypatch.setattr(SlowConnection, "n_at_once", 0)
    async with Caller(clock, backends(), AgentConfig(), CONFIG) as caller:
        for n in range(30):
            for tools in ([entry(HOSTS[0])], []):
                caller.send("session.update", session={"tools": tools})
            await caller.wait_for("session.updated", count=2 * n + 2)
            await asyncio.sleep(0.001)
        caller.send("session.update", session={"tools": [entry(HOSTS[0])]})
        await caller.wait_for("mcp_list_tools.completed")
        assert 0 < SlowConnection.n_at_once <= session_mcp.MAX_CONNECTIONS
        assert "error" not in caller.types()
    await asyncio.sleep(0.1)
    assert all(one.is_closed for one in SlowConnection.opened)


@pytest.mark.parametrize(("name", "is_asked"), [("price", False), ("order", True)])
async def test_behind_a_servers_words_only_what_it_lists_as_read_only_is_called_unasked(
    clock: Callable[[], float], name: str, is_asked: bool
) -> None:
    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        n_done = sum(message.role == "tool" for message in messages)
        if n_done == 2:
            return Reply("Fine.")
        tool = name if n_done else "price"
        return Reply("", (ToolCall(f"call_{n_done}", tool, '{"item": "latte"}'),))

    known = Capabilities(mcp_hosts=HOSTS)
    models = instant_backends(language_model=FakeLanguageModel(reply))
    models = replace(models, known=lambda: known)
    async with shop() as url, Caller(clock, models, AgentConfig(), CONFIG) as caller:
        await ask(caller, entry(url, require_approval="never"))
        await caller.wait_for("response.done", count=3)
        done = [one.event["item"] for one in caller.of("conversation.item.done")]
    calls = [item["output"] for item in done if item["type"] == "mcp_call"]
    assert calls[0] == "$4.50" and (calls[1] != "$4.50") is ("not done yet" in calls[1]) is is_asked


async def test_a_service_that_gives_every_call_one_id_is_answered_every_time(
    clock: Callable[[], float],
) -> None:
    async with shop() as url, Caller(clock, backends(), AgentConfig(), CONFIG) as caller:
        await ask(caller, entry(url, require_approval="never"))
        await caller.wait_for("response.done", count=2)
        part = {"type": "input_text", "text": "and now"}
        item = {"type": "message", "role": "user", "content": [part]}
        caller.send("conversation.item.create", item=item)
        caller.send("response.create")
        await caller.wait_for("response.done", count=4)
        done = [one.event["item"] for one in caller.of("conversation.item.done")]
    calls = [item for item in done if item["type"] == "mcp_call"]
    assert [call["output"] for call in calls] == ["$4.50"] * 2
    assert calls[0]["id"] != calls[1]["id"]


async def test_an_allowed_call_that_is_late_says_so_and_its_result_is_kept(
    clock: Callable[[], float],
) -> None:
    fakes = backends("slow", '{"seconds": 3.5}')
    async with shop() as url, Caller(clock, fakes, AgentConfig(), CONFIG) as caller:
        await ask(caller, entry(url))
        await caller.wait_for("response.done")
        done = [one.event["item"] for one in caller.of("conversation.item.done")]
        (request,) = [item for item in done if item["type"] == "mcp_approval_request"]
        answer = {"type": "mcp_approval_response", "approval_request_id": request["id"]}
        caller.send("conversation.item.create", item=answer | {"approve": True})
        await caller.wait_for("response.done", count=3)  # of the delay, and of the result
        done = [one.event["item"] for one in caller.of("conversation.item.done")]
        (call,) = [item for item in done if item["type"] == "mcp_call"]
        assert "not known whether it was done" in call["error"]["message"]
        caller.send("conversation.item.retrieve", item_id=call["id"])
        kept = (await caller.wait_for("conversation.item.retrieved")).event["item"]
        assert (kept["output"], kept["error"]) == ("done", None)


async def test_a_call_that_hangs_does_not_hold_the_end_of_the_session(
    clock: Callable[[], float],
) -> None:
    fakes = backends("slow", '{"seconds": 30}')
    async with shop() as url, asyncio.timeout(None) as limit:
        async with Caller(clock, fakes, AgentConfig(), CONFIG) as caller:
            await ask(caller, entry(url, require_approval="never"))
            await caller.wait_for("response.mcp_call.in_progress")
            limit.reschedule(clock() + 10.0)
