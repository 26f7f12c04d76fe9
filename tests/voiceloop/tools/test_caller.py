"""What a tool is told of the caller: signed, from the door alone, and in no log."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeLanguageModel, Reply, instant_backends
from tests.tool_service import ANY
from tests.voiceloop.server.test_app import running, until
from tests.voiceloop.server.test_locked_secrets import minted
from voiceloop.agent import AgentConfig, AgentTool, McpServer
from voiceloop.agent_file import check_agent
from voiceloop.backends import ChatMessage, ToolCall
from voiceloop.config import Config
from voiceloop.errors import ConfigError
from voiceloop.server.app import Gateway
from voiceloop.tools.caller import Caller, CallerSigner
from voiceloop.tools.python_tool import PythonTool

HERE = Path(__file__).resolve()
PAGE = HERE.parents[3] / "voiceloop" / "docs" / "YOUR_AGENT.md"
KEY = "a key of the shop's alone"
CANARY = "c-17-canary"
CALLER = Caller("k1", "s1", "+4930123456", {"customer": CANARY}, "sess_1")


class Shop:
    """A service on a real socket that keeps what was asked."""

    def __init__(self) -> None:
        self.heads: list[str] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        body = b'{"done":true}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        writer.write(b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"

    def header(self) -> str:
        lines = self.heads[-1].split("\r\n")
        [value] = [one[18:] for one in lines if one.lower().startswith("voiceloop-caller: ")]
        return value


def snippet(language: str) -> str:
    """The three lines of the page."""
    blocks = PAGE.read_text(encoding="utf-8").split(f"```{language}\n")
    [found] = [block.split("```")[0] for block in blocks[1:] if "mac" in block.split("```")[0]]
    assert len(found.strip().splitlines()) == 3
    return found


def verified(header: str, key: str = KEY) -> dict[str, Any]:
    """As the page has a service do it."""
    names: dict[str, Any] = {"header": header, "KEY": key.encode(), "hmac": hmac, "json": json}
    exec(snippet("python"), names | {"base64": base64}, names)
    found: dict[str, Any] = names["caller"]
    return found


async def test_a_service_is_told_what_the_back_end_asserted_and_nothing_of_the_models(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SHOP_CALLER_KEY", KEY)

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        if messages[-1].role == "tool":
            return Reply("Done.")
        forged = json.dumps({"caller": {"claims": {"customer": "admin"}}})
        return Reply("", (ToolCall("c1", "order", forged),))

    shop = Shop()
    backends = instant_backends(language_model=FakeLanguageModel(reply))
    async with shop.open() as url:
        tool = AgentTool("order", "", ANY, url=url, caller_key="${SHOP_CALLER_KEY}")

        def gateway(config: Config, agent: AgentConfig, **state: Any) -> Gateway:
            return Gateway(config, AgentConfig(tools=(tool,)), **state)

        keyed = Config(keys=("secret-key-1",))
        async with running(keyed, backends, kind=gateway) as server:
            asked = {"claims": {"customer": CANARY}}
            secret = (await minted(server, asked)).json()["value"]
            opened = {"Authorization": f"Bearer {secret}"}
            async with server.connect(additional_headers=opened) as client:
                session = (await until(client, "session.created"))["session"]
                asked = {"response": {"output_modalities": ["text"]}}
                await client.send(json.dumps({"type": "response.create", **asked}))
                await until(client, "response.done")
                await until(client, "response.done")
            told = verified(shop.header())
            async with server.connect(
                additional_headers={"Authorization": "Bearer secret-key-1"}
            ) as client:
                await client.send(json.dumps({"type": "response.create", **asked}))
                await until(client, "response.done")
                await until(client, "response.done")
            lasting = verified(shop.header())
    assert told["claims"] == {"customer": CANARY} and told["tool"] == "order"
    assert told["call"] == session["id"] and told["secret"] and len(told["key"]) == 16
    assert (lasting["claims"], lasting["secret"], lasting["key"]) == ({}, "", told["key"])
    ours = "".join(str(one.getMessage()) for one in caplog.records if one.name[:3] != "web")
    assert "call sess_" in ours and CANARY not in ours and shop.header() not in ours


def test_the_pages_python_refuses_another_key_and_a_changed_word() -> None:
    header = CallerSigner(KEY, {}, "tool").signed(CALLER, "order", 5.9)
    assert verified(header) == {**CALLER.told(), "tool": "order", "at": 5}
    body, mac = header.split(".")
    other = base64.urlsafe_b64encode(b'{"key": "k2"}').decode()
    for wrong, key in ((header, "another key of some service"), (f"{other}.{mac}", KEY)):
        with pytest.raises(AssertionError):
            verified(wrong, key)


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not here")
async def test_the_pages_node_takes_it_and_refuses_a_changed_word() -> None:
    header = CallerSigner(KEY, {}, "tool").signed(CALLER, "order", 5.0)
    code = 'const crypto = require("crypto"); const [header, KEY] = process.argv.slice(1);\n'
    code += snippet("js") + "console.log(JSON.stringify(caller));"
    for one, is_right in ((header, True), (f"e{header}", False)):
        process = await asyncio.create_subprocess_exec(
            "node", "-e", code, one, KEY,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        assert (process.returncode == 0) is is_right
        if is_right:
            assert json.loads(out)["claims"] == {"customer": CANARY}


async def test_a_function_is_given_the_caller_whatever_the_model_wrote() -> None:
    tool = PythonTool("tool", "author_tools:whose", str(HERE.parent))
    await tool.start()
    try:
        arguments = {"item": "tea", "caller": {"claims": {"customer": "admin"}}}
        found = json.loads(await tool.run("c", arguments, CALLER))
        assert found == {"item": "tea", "caller": CALLER.told()}
    finally:
        await tool.close()


async def test_a_function_that_takes_anything_is_given_no_caller_by_a_model() -> None:
    tool = PythonTool("tool", "author_tools:anything", str(HERE.parent))
    await tool.start()
    try:
        found = json.loads(await tool.run("c", {"a": 1, "caller": "admin"}, CALLER))
        assert found == {"a": 1}
    finally:
        await tool.close()


async def test_an_mcp_server_finds_the_caller_in_meta_where_it_has_a_key() -> None:
    pytest.importorskip("mcp", reason="the package mcp is not installed")
    from tests.voiceloop.tools.test_mcp import STDIO, opened

    for key in (KEY, ""):
        server = McpServer(
            STDIO.name, command=STDIO.command, environment=STDIO.environment, tools=("*",),
            caller_key=key,
        )  # fmt: skip
        async with opened(server) as (tools, agent):
            tool = agent.tool("meta")
            assert tool is not None
            found = json.loads((await tools.call(tool, ToolCall("c", "meta", "{}"), CALLER)).text)
        assert ("voiceloop.caller" in found) is bool(key)
        if key:
            assert verified(found["voiceloop.caller"])["claims"] == {"customer": CANARY}


def test_a_caller_shows_neither_number_nor_claims() -> None:
    assert CANARY not in repr(CALLER) and "+49" not in repr(CALLER)


def test_a_short_key_or_a_parameter_named_caller_ends_the_start() -> None:
    with pytest.raises(ConfigError, match="at least 16 characters"):
        CallerSigner("short", {}, "tool 'x'")
    taken = AgentTool(
        "x", "", {"type": "object", "properties": {"caller": {"type": "string"}}}, python="m:f"
    )
    with pytest.raises(ConfigError, match="no parameter `caller`"):
        check_agent(AgentConfig(tools=(taken,)), "agent.toml")
    with pytest.raises(ConfigError, match="url beside it"):
        check_agent(AgentConfig(tools=(AgentTool("x", "", caller_key=KEY),)), "agent.toml")
