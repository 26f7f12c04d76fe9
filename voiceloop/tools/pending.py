"""The calls that one session has under way: each has one end, and its result one taker.

Owns their tasks, and the promise that nothing is lost or done twice when a reply is cut off. A
reply that is cut off leaves its calls: one that changes nothing is cancelled, one with side effects
goes on, and what came of it is recorded when it is over.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from enum import Enum

from voiceloop.agent import AgentTool
from voiceloop.backends import ToolCall
from voiceloop.errors import error_of
from voiceloop.tools.toolbox import Fate, Toolbox, ToolResult

# Of one session: four rounds of eight calls. Chosen; a reply of 160 tokens has no room for more.
MAX_OPEN = 32
INTERRUPTED = json.dumps({"error": "not answered: the caller spoke meanwhile"})
TOO_MANY = ToolResult(json.dumps({"error": "too busy at the moment"}), Fate.FAILED)
BROKEN = ToolResult(json.dumps({"error": "failed"}), Fate.FAILED)

Record = Callable[[ToolCall, str], None]


class CallState(Enum):
    WANTED = "wanted"  # a reply waits for it, or will
    TAKEN = "taken"  # a reply has its result
    LEFT = "left"  # the reply has gone: what comes of it is recorded
    DROPPED = "dropped"  # nobody is ever told


class PendingCall:
    """A call that has begun. One of `take`, `leave` and `drop` ends it; the first counts.

    is_read: it changes nothing. record: where the result of a call that was left goes; None while
    the call stands in no conversation.
    """

    def __init__(
        self,
        call: ToolCall,
        result: asyncio.Future[ToolResult],
        *,
        is_read: bool,
        record: Record | None,
    ) -> None:
        self.call = call
        self.state = CallState.WANTED
        self._result = result
        self._is_read = is_read
        self._record = record

    @property
    def is_over(self) -> bool:
        return self._result.done()

    def adopt(self, call: ToolCall, record: Record | None) -> None:
        """It was made ahead; now the reply itself makes it, as this call."""
        self.call, self._record = call, record

    async def result(self) -> ToolResult:
        """Wait for it. Who is cancelled meanwhile cancels nothing but the waiting."""
        return await asyncio.shield(self._result)

    def take(self) -> ToolResult:
        """The result of a call that is over, for the reply that made it."""
        self.state = CallState.TAKEN
        return self._result.result()

    def leave(self) -> None:
        """The reply has gone, and its call stands in the conversation."""
        if self.state is not CallState.WANTED:
            return
        self.state = CallState.LEFT
        if self._result.done():
            self._tell(self._result)
        elif self._is_read:
            self._result.cancel()
            self._write(INTERRUPTED)
        else:
            self._result.add_done_callback(self._tell)

    def drop(self) -> None:
        """It was made ahead, or early, and is not to be: only of calls that change nothing."""
        if self.state is CallState.WANTED:
            self.state = CallState.DROPPED
            self._result.cancel()

    def _tell(self, result: asyncio.Future[ToolResult]) -> None:
        if not result.cancelled():  # with its session
            self._write(result.result().text)

    def _write(self, text: str) -> None:
        if self._record is not None:
            self._record(self.call, text)


class SessionTools:
    """toolbox: of the server. tasks: of the session. record: puts a result into its conversation.

    tenant: whose key opened the session.
    """

    def __init__(
        self, toolbox: Toolbox, tasks: asyncio.TaskGroup, record: Record, tenant: str = ""
    ) -> None:
        self._toolbox = toolbox
        self._tasks = tasks
        self.record = record
        self._tenant = tenant
        self._n_open = 0

    def begin(self, tool: AgentTool, call: ToolCall, *, is_recorded: bool) -> PendingCall:
        """Make a call of a tool that the server answers.

        is_recorded: the call stands in the conversation, and so shall its result.
        """
        record = self.record if is_recorded else None
        return PendingCall(
            call, self._begin(tool, call), is_read=tool.side_effect_free, record=record
        )

    def adopt(self, pending: PendingCall, call: ToolCall, *, is_recorded: bool) -> PendingCall:
        """A call made ahead, as this call of the reply."""
        pending.adopt(call, self.record if is_recorded else None)
        return pending

    def _begin(self, tool: AgentTool, call: ToolCall) -> asyncio.Future[ToolResult]:
        answer = tool.answer(call.arguments)
        if answer is None and self._n_open < MAX_OPEN:
            self._n_open += 1
            task = self._tasks.create_task(self._answer(tool, call), name=f"tool {tool.name}")
            task.add_done_callback(self._one_is_over)
            return task
        # What the agent file knows by itself is there at once, without a turn of the loop.
        result: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        result.set_result(TOO_MANY if answer is None else ToolResult(answer, Fate.TABLE))
        return result

    async def _answer(self, tool: AgentTool, call: ToolCall) -> ToolResult:
        try:
            return await self._toolbox.call(tool, call, self._tenant)
        except Exception as error:  # a bug costs a result, not the call on the line
            error_of(error)
            return BROKEN

    def _one_is_over(self, task: asyncio.Task[ToolResult]) -> None:
        self._n_open -= 1
