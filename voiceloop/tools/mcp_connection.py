"""One server of the Model Context Protocol: the connection to it, and what it lists.

Owns the task that opens the official client, holds it, and opens it again where a process has died
or a line was lost: that client wants to be entered and left by one task. Calls come from any task,
and a call that is cancelled costs the others nothing. A server may write what it likes: how many
tools count, how long their texts are, and how much of a result is kept, is bounded here; of an
answer over HTTP also how much is read. A program that the agent file names is the operator's own,
and each line that it writes is read whole.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, CallToolResult, EmbeddedResource, TextContent, Tool

from voiceloop.agent import McpServer
from voiceloop.backends import MAX_TOOLS, TOOL_NAME
from voiceloop.config_reader import from_environment
from voiceloop.errors import ConfigError
from voiceloop.log_form import named
from voiceloop.tools.caller import NOBODY, Caller, CallerSigner
from voiceloop.tools.executor import Run, ToolFailed
from voiceloop.tools.result import bounded

log = logging.getLogger(__name__)

# To connect, agree on a version and list: a Python server's own start takes about a second.
START_S = 10.0
CONNECT_S = 2.0  # as of tools by `url`
# Before another try to open a connection that failed or was lost; the last again and again.
RETRY_PAUSES_S = (0.1, 0.5, 2.0, 5.0, 15.0, 30.0)
STEADY_S = 30.0  # a connection that stood so long was no failure: the next try is at once again
CLOSE_S = 8.0  # a process has six to end in, then it is killed; a service may never answer
CALLER_META = "voiceloop.caller"
MAX_PAGES = 32  # of one list; a server that never ends it must not hold the start
MAX_DESCRIPTION_CHARS = 4096  # it stands in every prompt
MAX_SCHEMA_BYTES = 64 * 1024  # as of a session's own tools
MAX_REASON_CHARS = 200  # as of tools by `url`
# Of one result before `MAX_RESULT_CHARS`, as of tools by `url`.
MAX_TEXT_CHARS = 2**20
# Of one answer over HTTP before it is read: a result's text, and as much again for its JSON.
MAX_ANSWER_BYTES = 4 * 2**20
# What a server is told nothing by: the request did not reach it.
UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
# The line itself; whatever else goes wrong is one call's.
LOST = (httpx2.TransportError, OSError, anyio.ClosedResourceError, anyio.BrokenResourceError)

Transport = AbstractAsyncContextManager[tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as its server describes it. is_read_only: the server's own claim, not believed."""

    name: str
    description: str
    parameters: dict[str, Any]
    is_read_only: bool = False


class McpConnection:
    """`start`, then `tools` and `call` at any time, then `close`.

    folder: where a command runs, if it is to run elsewhere than here.

    Raises:
        ConfigError: a variable that the address or a header names is not set, or the `caller_key`
            is no key.
    """

    def __init__(self, server: McpServer, environment: Mapping[str, str], folder: str = "") -> None:
        self.server = server
        self.tools: tuple[ListedTool, ...] = ()  # as they were listed last
        self.problem = "it has not been asked yet"  # why there is no connection
        self._signer: CallerSigner | None = None
        if server.caller_key:
            where = f"mcp {server.name!r}"
            self._signer = CallerSigner(server.caller_key, environment, where)
        self._transport = _transport_of(server, environment, folder)
        self._client: Client | None = None
        self._changed = asyncio.Event()  # it was opened, it failed, or it was lost
        self._holding: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        return self._client is not None

    async def start(self) -> None:
        """Open it, or find that this fails; it is tried again then, until `close`.

        Raises:
            ConfigError: there is no such command.
        """
        failed_to_spawn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tried = asyncio.Event()
        self._holding = asyncio.create_task(
            self._hold(tried, failed_to_spawn), name=f"mcp {self.server.name}"
        )
        await tried.wait()
        if failed_to_spawn.done():
            await self.close()
            await failed_to_spawn

    async def close(self) -> None:
        """Idempotent; calls still running fail."""
        self._is_closed = True
        self._changed.set()
        if self._holding is None:
            return
        _, late = await asyncio.wait({self._holding}, timeout=CLOSE_S)
        for task in late:
            task.cancel()
        await asyncio.gather(self._holding, return_exceptions=True)

    async def call(self, name: str, arguments: Mapping[str, Any], caller: Caller = NOBODY) -> str:
        """A call's result as text.

        Raises:
            ToolFailed: there is none.
        """
        client = self._client
        if client is None:
            raise self._failed(self.problem, "not in reach", may_help=True, is_unsent=True)
        meta: Any = None
        if self._signer is not None:
            meta = {CALLER_META: self._signer.signed(caller, name, time.time())}
        try:
            result = await client.call_tool(name, dict(arguments), meta=meta)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self._changed.set()
                raise self._failed("the connection closed", "failed", may_help=True) from None
            told = f"refused: {_short(error.message)}"
            raise self._failed(f"error {error.code}", told) from None
        except UNSENT as error:
            self._changed.set()
            found = type(error).__name__
            raise self._failed(found, "not in reach", may_help=True, is_unsent=True) from None
        except LOST as error:
            self._changed.set()
            raise self._failed(type(error).__name__, "failed", may_help=True) from error
        except Exception as error:  # of one bad result: the line stands, and others use it
            raise self._failed(type(error).__name__, "failed") from error
        text = _text_of(result)
        if result.is_error:
            raise self._failed("an error of the tool", f"failed: {_short(text)}")
        return text

    def runs(self, name: str) -> Run:
        """A tool that it lists."""
        return lambda key, arguments, caller: self.call(name, arguments, caller)

    def _failed(
        self, found: str, told: str, *, may_help: bool = False, is_unsent: bool = False
    ) -> ToolFailed:
        message = f"mcp {self.server.name}: expected a result, found {found}"
        return ToolFailed(message, told=told, may_help=may_help, is_unsent=is_unsent)

    # --- the connection's own task ---

    async def _hold(self, tried: asyncio.Event, failed_to_spawn: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        n_failures = 0
        while not self._is_closed:
            began_s = loop.time()
            try:
                await self._be_connected(tried)
                self.problem = "the connection was lost"
            except (FileNotFoundError, PermissionError) as error:
                wanted = f"mcp {self.server.name}: expected a command that can be run"
                failure = ConfigError(f"{wanted}, found {self.server.command[0]!r}: {error}")
                if not tried.is_set():
                    failed_to_spawn.set_exception(failure)
                self.problem = "its command cannot be run"
            except Exception as error:  # also groups: of tasks within the client
                self.problem = _reason(error)
            tried.set()
            if self._is_closed:
                return
            n_failures = 0 if loop.time() - began_s > STEADY_S else n_failures
            pause_s = RETRY_PAUSES_S[min(n_failures, len(RETRY_PAUSES_S) - 1)]
            log.warning("mcp %s: %s; trying again", self.server.name, self.problem)
            n_failures += 1
            self._changed.clear()
            if not self._is_closed:
                with anyio.move_on_after(pause_s):
                    await self._changed.wait()

    async def _be_connected(self, tried: asyncio.Event) -> None:
        """Open the client, list its tools, and stay until the line is lost or `close`."""
        self._changed.clear()
        # Around all of it: what the client opens must be left in the order in which it was entered.
        with anyio.CancelScope(deadline=anyio.current_time() + START_S) as limit:
            async with Client(_watched(self._transport(), self._changed.set)) as client:
                self.tools = await _listed(client)
                limit.deadline = math.inf
                log.info("mcp %s: %d tools", self.server.name, len(self.tools))
                self._client = client
                tried.set()
                try:
                    if not self._is_closed:
                        await self._changed.wait()
                finally:
                    self._client = None
        if limit.cancelled_caught:
            raise TimeoutError(f"no list of its tools in {START_S:g} s")


def _transport_of(
    server: McpServer, environment: Mapping[str, str], folder: str
) -> Callable[[], Transport]:
    """Return what opens the line to it. Raises: ConfigError."""
    where = f"mcp {server.name!r}"
    if server.url is not None:
        url = from_environment(server.url, environment, where)
        headers = {
            name: from_environment(str(value), environment, where)
            for name, value in server.headers.items()
        }
        return lambda: _http_transport(url, headers)
    own = {
        name: from_environment(str(value), environment, where)
        for name, value in server.environment.items()
    }
    cwd = Path(folder) if folder else None
    program, *arguments = server.command
    started = StdioServerParameters(command=program, args=arguments, env=own, cwd=cwd)
    return lambda: stdio_client(started)


@asynccontextmanager
async def _http_transport(url: str, headers: dict[str, str]) -> AsyncIterator[tuple[Any, Any]]:
    """Streamable HTTP. The deadline is the caller's, so that reading has none here."""
    timeout = httpx2.Timeout(None, connect=CONNECT_S)
    hooks = {"response": [_bound]}
    headers = {**headers, "accept-encoding": "identity"}  # what is bounded is what is read
    async with httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks=hooks) as client:
        async with streamable_http_client(url, http_client=client) as streams:
            yield streams


async def _bound(response: httpx2.Response) -> None:
    """Answers of at most `MAX_ANSWER_BYTES`; of a stream of events the client bounds each."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("expected an answer that is not packed, found another")
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        response.stream = _BoundedStream(response.stream)


class _BoundedStream(httpx2.AsyncByteStream):  # type: ignore[misc]
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        n_bytes = 0
        async for piece in self._inner:
            n_bytes += len(piece)
            if n_bytes > MAX_ANSWER_BYTES:
                most = f"an answer of at most {MAX_ANSWER_BYTES} bytes"
                raise httpx2.StreamError(f"expected {most}, found more")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def _watched(transport: Transport, on_end: Callable[[], None]) -> AsyncIterator[Any]:
    """The same line, and a word when its far end closes: the client itself tells only callers."""
    async with transport as (received, sending):
        send, receive = anyio.create_memory_object_stream[Any](0)

        async def pass_on() -> None:
            async with send:
                try:
                    async for message in received:
                        await send.send(message)
                except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                    pass  # the client has closed its end
            on_end()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pass_on)
            yield receive, sending
            tasks.cancel_scope.cancel()
        receive.close()


async def _listed(client: Client) -> tuple[ListedTool, ...]:
    """Return its tools, without those whose names or schemas no model here could be given."""
    found: list[ListedTool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            if len(found) == MAX_TOOLS:
                log.warning("expected at most %d tools of an MCP server, found more", MAX_TOOLS)
                return tuple(found)
            if (problem := _unusable(tool)) is None:
                found.append(_listed_tool(tool))
            else:
                log.warning("a tool of an MCP server is left out: %s", problem)
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(found)


def _unusable(tool: Tool) -> str | None:
    if not TOOL_NAME.fullmatch(tool.name):
        return f"expected a name of 1 to 64 letters, digits, _ or -, found {tool.name[:80]!r}"
    n_bytes = len(json.dumps(tool.input_schema).encode())
    if n_bytes > MAX_SCHEMA_BYTES:
        most = f"a schema of at most {MAX_SCHEMA_BYTES} bytes"
        return f"{tool.name}: expected {most}, found {n_bytes}"
    if tool.input_schema.get("type") != "object":
        return f"{tool.name}: expected the schema of an object"
    return None


def _listed_tool(tool: Tool) -> ListedTool:
    description = bounded(tool.description or "", MAX_DESCRIPTION_CHARS)
    claims = tool.annotations.read_only_hint if tool.annotations is not None else None
    return ListedTool(tool.name, description, dict(tool.input_schema), bool(claims))


def _text_of(result: CallToolResult) -> str:
    """Return what of a result is text; else its structure; what a model cannot read is named."""
    texts: list[str] = []
    for block in result.content:
        match block:
            case TextContent():
                texts.append(block.text)
            case EmbeddedResource() if text := getattr(block.resource, "text", None):
                texts.append(text)
            case _:
                texts.append(f"[{block.type}, which is left out]")
    if not texts and result.structured_content is not None:
        texts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return bounded("\n".join(texts), MAX_TEXT_CHARS) or json.dumps({"status": "done"})


def _short(text: str) -> str:
    return bounded(" ".join(text.split()), MAX_REASON_CHARS)


def _reason(error: BaseException) -> str:
    """Return what went wrong, in a line; of a group its first. What the server wrote is not in
    it.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return _short(named(error))
