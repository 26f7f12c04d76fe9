"""The tools of one agent as a server runs them: `call`, and every bound on it.

Owns what runs them and the limits, for all calls of a server together. A call
ends in a text for the model: the result, or why there is none. One that changes nothing does so
within its tool's deadline. One with side effects has to begin within it; then it goes on for up to
`MAX_EFFECT_S`, whoever waits. What it began is never begun again by itself, since nobody knows how
far it came; only one that has not reached its service is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.backends import ToolCall
from voiceloop.errors import ConfigError
from voiceloop.python_agent import HandOff
from voiceloop.tools.agent_class import AgentClass
from voiceloop.tools.arguments import read_arguments
from voiceloop.tools.caller import NOBODY, Caller
from voiceloop.tools.executor import Run, ToolFailed
from voiceloop.tools.limit import CallLimit
from voiceloop.tools.python_tool import PythonTool
from voiceloop.tools.result import MAX_RESULT_CHARS, shaped
from voiceloop.tools.schema import checked

if TYPE_CHECKING:  # mcp only agents with such servers need, and httpx takes a start 0.2 s
    import httpx

    from voiceloop.tools.mcp_servers import McpServers

log = logging.getLogger(__name__)

# Before the second try, which is the last: a service behind a balancer has another instance at hand
# by then.
RETRY_PAUSE_S = 0.05
# Of a call with side effects, from its slot on. Chosen: the longest deadline that an agent file may
# set; whoever has no answer after a minute has lost the request.
MAX_EFFECT_S = 60.0
# Of sessions that have ended, connections that stay for what is under way there. Chosen: beyond it
# the calls fail, for whoever hangs up and calls again must not pile them up.
MAX_OUTLIVING = 64
LATE_READ = "no answer in time"
NOT_BEGUN = "too busy at the moment: not done"
LATE_WRITE = "no answer in time: it is not known whether it was done"


class Fate(Enum):
    """How a call ended; the label of the metric."""

    TABLE = "table"  # the agent file itself has the answer
    CALLED = "called"
    FAILED = "failed"
    LATE = "late"
    ASKED = "asked"  # not made: somebody has to allow it first
    REFUSED = "refused"  # not made: the agent's class said what stands in its place


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The outcome of a tool's call. text: for the model. took_s: from asked to answered. hand_off:
    whom the class's method hands the call to.
    """

    text: str
    fate: Fate
    took_s: float = 0.0
    hand_off: HandOff | None = None

    @property
    def is_error(self) -> bool:
        return self.fate in (Fate.FAILED, Fate.LATE)


@dataclass(frozen=True, slots=True)
class ServedTool:
    """A tool that the server executes. is_read: its calls change nothing."""

    tool: AgentTool
    run: Run
    limit: CallLimit

    @property
    def is_read(self) -> bool:
        return self.tool.side_effect_free


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTool(AgentTool):
    """A tool of a server that one session names.

    It knows itself who answers it, since another session's server may have the same names.
    says_read_only: its server claims so, which is not believed where a call would be made early.
    """

    run: Run
    limit: CallLimit
    says_read_only: bool = False

    @property
    def only_reads(self) -> bool:
        # A server that says so of a tool that acts can be harmed by it alone: it acts there.
        return self.side_effect_free or self.says_read_only

    @property
    def served(self) -> ServedTool:
        return ServedTool(self, self.run, self.limit)


class AuthorsProcess(Protocol):
    """Holds an author's code. `close` is idempotent; calls still running fail."""

    async def start(self) -> None:
        """Raises: ConfigError: what the agent file names is not there."""

    async def close(self) -> None: ...


@dataclass(slots=True)
class Toolbox:
    """`start`, then `call` from any session, then `close`. clock: in seconds.

    client: of the tools behind a URL. mcp: of those that servers list. processes: of functions, by
    the tool's name. own_class: of the agent. All are closed with it.
    """

    served: dict[str, ServedTool]
    clock: Callable[[], float]
    client: httpx.AsyncClient | None = None
    mcp: McpServers | None = None
    own_class: AgentClass | None = None
    processes: Mapping[str, AuthorsProcess] = field(default_factory=dict)
    _writes: set[asyncio.Task[ToolResult]] = field(default_factory=set)  # with side effects
    _listed: dict[tuple[str, str], ServedTool] = field(default_factory=dict)  # by server and name
    _outliving: set[asyncio.Task[None]] = field(default_factory=set)  # connections of sessions

    async def connect(self) -> None:
        """Have the MCP servers list their tools. Raises: ConfigError: one's command is not there.

        One that does not answer is asked again from time to time: until then it has no tools.
        """
        if self.mcp is not None:
            await self.mcp.start()

    def completed(self, agent: AgentConfig) -> AgentConfig:
        """The agent with the tools that its MCP servers list now, which `call` then knows."""
        if self.mcp is None:
            return agent
        tools = self.mcp.tools()
        for tool in tools:
            if tool.mcp is None:
                continue
            key = tool.mcp, tool.name
            known = self._listed.get(key)
            if known is None or known.tool != tool:
                limit = CallLimit(tool.name)
                self._listed[key] = ServedTool(tool, self.mcp.runs(tool), limit)
        return replace(agent, tools=tools)

    async def start(self) -> None:
        """Raises: ConfigError, where the agent file names a function that is not there."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for one in self._processes():
                    tasks.create_task(one.start())
        except BaseExceptionGroup as failures:
            await self.close()
            raise failures.exceptions[0] from None

    async def close(self) -> None:
        """Once the side effects under way are over, each of them bounded by `MAX_EFFECT_S`."""
        await asyncio.gather(*self._writes, *self._outliving)
        await asyncio.gather(*(one.close() for one in self._processes()))
        if self.mcp is not None:
            await self.mcp.close()
        if self.client is not None:
            await self.client.aclose()

    def _processes(self) -> list[AuthorsProcess]:
        own = [self.own_class] if self.own_class is not None else []
        return [*self.processes.values(), *own]

    async def call(self, tool: AgentTool, call: ToolCall, caller: Caller = NOBODY) -> ToolResult:
        """Answer a call of one of the agent file's tools; raises nothing of a tool's making.

        Cancelled, a call that changes nothing stops. One with side effects goes on to its end, for
        half an order is worse than one that nobody waits for.
        caller: for whom.
        """
        answer = tool.answer(call.arguments)
        if answer is not None:
            return ToolResult(answer, Fate.TABLE)
        by_server = tool.mcp is not None
        served = self._listed[tool.mcp or "", tool.name] if by_server else self.served[tool.name]
        return await self.answer(served, call, caller)

    async def answer(self, served: ServedTool, call: ToolCall, caller: Caller) -> ToolResult:
        """As `call`, of this very tool."""
        if served.is_read:
            return await self._call(served, call, caller)
        name = f"tool {served.tool.name}"
        write = asyncio.create_task(self._call(served, call, caller), name=name)
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        return await asyncio.shield(write)

    def outlive(self, ended: Toolbox, close: Callable[[], Awaitable[None]]) -> None:
        """Close a connection of a session's toolbox once the side effects under way there are over.

        The session waits for neither. Of at most `MAX_OUTLIVING` connections: the others close now.
        """
        writes = set(ended._writes) if len(self._outliving) < MAX_OUTLIVING else set()

        async def end() -> None:
            await asyncio.gather(*writes)
            await close()

        task = asyncio.create_task(end(), name="mcp connection of a session")
        self._outliving.add(task)
        task.add_done_callback(self._outliving.discard)

    async def _call(self, served: ServedTool, call: ToolCall, caller: Caller) -> ToolResult:
        tool, started_s = served.tool, self.clock()
        fate, has_begun, hand_off = Fate.CALLED, False, None
        try:
            async with asyncio.timeout(tool.deadline_ms / 1000) as limit:
                arguments = checked(read_arguments(call.arguments), tool.parameters)
                async with served.limit.one():
                    has_begun = True
                    if not served.is_read:
                        limit.reschedule(asyncio.get_running_loop().time() + MAX_EFFECT_S)
                    found = await self._run(served, arguments, caller)
            if isinstance(found, HandOff):
                hand_off, text = found, json.dumps({"status": f"the caller goes to {found.to}"})
            else:
                text = found
        except TimeoutError:
            fate = Fate.LATE
            late = LATE_READ if served.is_read else LATE_WRITE if has_begun else NOT_BEGUN
            text = _error(late)
            took_ms = 1000 * (self.clock() - started_s)
            log.warning("a call of %s had no answer in %.0f ms", tool.name, took_ms)
        except ToolFailed as failure:
            fate = Fate.FAILED
            text = _error(failure.told)
            log.warning("a call of %s failed: %s", tool.name, failure.message)
        return ToolResult(text, fate, self.clock() - started_s, hand_off)

    async def _run(
        self, served: ServedTool, arguments: Mapping[str, Any], caller: Caller
    ) -> str | HandOff:
        tool = served.tool
        # Not the model's id of the call: many a model counts from 0 again in every call on the
        # line, and a service that knows the key would answer one caller with another's order.
        key = uuid4().hex
        for pause_s in (RETRY_PAUSE_S, None):
            try:
                found = await served.run(key, arguments, caller)
                if isinstance(found, HandOff):
                    return found
                return shaped(found, tool.keep, MAX_RESULT_CHARS)
            except ToolFailed as failure:
                may_repeat = failure.may_help and (served.is_read or failure.is_unsent)
                if pause_s is None or not may_repeat:
                    raise
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable: the last try returns or raises")


def toolbox_of(
    agent: AgentConfig,
    clock: Callable[[], float],
    *,
    folder: str = "",
    environment: Mapping[str, str] | None = None,
) -> Toolbox:
    """The tools of the agent file that the server calls.

    folder: of the agent file, where its Python modules may stand beside it.
    environment: where secrets are; None: that of the process.

    Raises:
        ConfigError: a URL or header is wrong, a variable that it names is not set, or the package
            that MCP needs is not there.
    """
    variables = os.environ if environment is None else environment
    client: httpx.AsyncClient | None = None
    served: dict[str, ServedTool] = {}
    processes: dict[str, PythonTool] = {}
    own_class = None
    if agent.python is not None:
        own_class = AgentClass(agent.python, folder, has_network=agent.network)
    for tool in agent.tools:
        run: Run
        if tool.url is not None:
            from voiceloop.tools.http import HttpTool, new_client

            client = client or new_client()
            run = HttpTool(tool, variables, client).run
        elif own_class is not None and tool.python == f"{own_class.spec}.{tool.name}":
            run = own_class.runs(tool.name)
        elif tool.python is not None:
            process = PythonTool(tool.name, tool.python, folder, has_network=tool.network)
            processes[tool.name], run = process, process.run
        else:
            continue  # a table, an MCP server's, or the client's
        served[tool.name] = ServedTool(tool, run, CallLimit(tool.name))
    mcp = _mcp_servers(agent, variables, folder) if agent.mcp else None
    return Toolbox(served, clock, client, mcp, own_class, processes)


def _mcp_servers(agent: AgentConfig, environment: Mapping[str, str], folder: str) -> McpServers:
    """Raises: ConfigError."""
    try:
        from voiceloop.tools.mcp_servers import McpServers
    except ImportError as error:
        wanted = "mcp: expected the package mcp (pip install 'voiceloop[mcp]')"
        raise ConfigError(f"{wanted}, found none ({error})") from None
    return McpServers(agent, environment, folder)


def _error(told: str) -> str:
    return json.dumps({"error": told}, ensure_ascii=False)
