"""The calls that one session has under way: each has one end, and its result one taker.

Owns their tasks, and the promise that nothing is lost or done twice when a reply is cut off. A
reply that is cut off leaves its calls: one that changes nothing is cancelled, one with side effects
goes on, and what came of it is recorded when it is over. Of calls that are the client's to answer
it owns how long their outputs are waited for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from enum import Enum
from typing import Any

from msgspec.structs import replace

from voiceloop.agent import AgentTool
from voiceloop.backends import LANGUAGE, Tool, ToolCall
from voiceloop.errors import error_of
from voiceloop.python_agent import HandOff
from voiceloop.slots.secrets import Secrets
from voiceloop.telemetry.record import ToolUse
from voiceloop.tools.arguments import read_arguments
from voiceloop.tools.caller import NOBODY, Caller
from voiceloop.tools.consent import (
    ANSWER_S,
    NO,
    NO_TURNS,
    UNASKABLE,
    UNCLEAR,
    WAITS,
    Consent,
    Turns,
    as_text,
)
from voiceloop.tools.executor import ToolFailed
from voiceloop.tools.python_messages import Returned
from voiceloop.tools.toolbox import LATE_READ, LATE_WRITE, Fate, SessionTool, Toolbox, ToolResult

# Of one session: four rounds of eight calls. Chosen; a reply of 160 tokens has no room for more.
MAX_OPEN = 32
POSTPONED = json.dumps({"status": "not finished yet: say that you will come back to it"})
TOO_LATE = json.dumps({"error": "no answer in time"})
INTERRUPTED = json.dumps({"error": "not answered: the caller spoke meanwhile"})
TOO_MANY = ToolResult(json.dumps({"error": "too busy at the moment"}), Fate.FAILED)
BROKEN = ToolResult(json.dumps({"error": "failed"}), Fate.FAILED)

# A call that is over so soon has no line said for it: the answer would have to wait for its end, a
# second or so. Chosen: less than the 120 ms that a tool may add to the gap. One that was called in
# the caller's pause has had this time before the turn is over.
QUICK_S = 0.1
# Beyond its deadline, for a call with side effects that has not even begun by then: it is given up,
# and says so at once.
GIVING_UP_S = 0.05
# What was read ahead of a reply is asked for again when it is older. Chosen: a pause in which the
# caller thinks.
MAX_EARLY_AGE_S = 5.0
UNDER_WAY = "under way"  # in a record: the reply went on without it

# Called with a call, what came of it, and whether the caller is to be told of that.
Record = Callable[[ToolCall, str, bool], None]


# What becomes of a call with these arguments: as of `AgentHooks.on_tool`. Raises BackendError.
Check = Callable[[str, Mapping[str, Any]], Awaitable[Returned | None]]


class CallState(Enum):
    WANTED = "wanted"  # a reply waits for it, or will
    TAKEN = "taken"  # a reply has its result
    LEFT = "left"  # the reply goes on without it, or has gone: what comes of it is recorded
    DROPPED = "dropped"  # nobody is ever told


class PendingCall:
    """A call that has begun. One of `take`, `postpone`, `leave`, `drop` ends it; the first counts.

    record: where the result of a call that was left goes; None while the call stands in no
    conversation. clock: of the session. question: to be said to the caller, for the call was not
    made; "": none. on_told: called as the model is given what the tool has answered.
    """

    def __init__(
        self,
        tool: AgentTool,
        call: ToolCall,
        result: asyncio.Future[ToolResult],
        record: Record | None,
        clock: Callable[[], float],
        question: str = "",
        on_told: Callable[[AgentTool], None] = lambda tool: None,
    ) -> None:
        self.call = call
        self.question = question
        self.state = CallState.WANTED
        self._tool = tool
        self._result = result
        self._record = record
        self._clock = clock
        self._on_told = on_told
        self._begun_s = clock()
        self._overdue_s = self._begun_s + tool.deadline_ms / 1000 + GIVING_UP_S

    @property
    def tool(self) -> AgentTool:
        return self._tool

    @property
    def is_over(self) -> bool:
        return self._result.done()

    @property
    def say(self) -> str:
        """The line that asks the caller to wait for it; "" where there is none, or no need."""
        return "" if self.is_over else self._tool.say

    @property
    def line_due_s(self) -> float:
        """Return in how long it is no quick call any more, one that needs no such line."""
        age_s = self._clock() - self._begun_s
        return max(0.0, QUICK_S - age_s)

    @property
    def is_awaited(self) -> bool:
        """Whether a reply is still to wait for it: side effects go on behind their deadline."""
        return not self.is_over and self._clock() < self._overdue_s

    @property
    def may_be_adopted(self) -> bool:
        """Whether the reply may still take it for a call of its own; one under way it may."""
        if not self.is_over:
            return True
        result = self._result.result()
        age_s = self._clock() - self._begun_s - result.took_s
        is_recent = result.fate is Fate.TABLE or age_s <= MAX_EARLY_AGE_S
        return is_recent and not result.is_error

    def adopt(self, call: ToolCall, record: Record | None) -> None:
        """Adopt a call that was made ahead: now the reply itself makes it, as this call."""
        self.call, self._record = call, record

    @property
    def text(self) -> str:
        """Return what came of it, whoever takes it; only once it is over."""
        return self._result.result().text

    @property
    def is_made(self) -> bool:
        """Whether it was made, and is over."""
        if not self._result.done():
            return False
        result = self._result.result()
        return not result.is_error and result.fate not in (Fate.ASKED, Fate.REFUSED)

    @property
    def hand_off(self) -> HandOff | None:
        """Return whom its method has handed the call to, as far as is known."""
        return self._result.result().hand_off if self._result.done() else None

    @property
    def told(self) -> tuple[str, bool]:
        """Return what came of it so far in plain words, and whether that is an error."""
        if not self.is_over:
            return LATE_READ if self._tool.side_effect_free else LATE_WRITE, True
        result = self._result.result()
        if not result.is_error:
            return result.text, False
        return str(json.loads(result.text).get("error", result.text)), True

    def use(self, released_s: float | None) -> ToolUse:
        """Return the use for the record of a turn, which was over at released_s."""
        now_s = self._clock()
        ended_s = now_s
        fate, ms = UNDER_WAY, None
        if self._result.done():
            result = self._result.result()
            ended_s = self._begun_s + result.took_s
            fate, ms = result.fate.value, round(1000 * result.took_s, 1)
        hidden_s = min(ended_s, now_s if released_s is None else released_s) - self._begun_s
        return ToolUse(self._tool.name, fate, ms, round(1000 * max(0.0, hidden_s), 1))

    def when_over(self, then: Callable[[], None]) -> None:
        """Call this when it is over, but not where it was cancelled."""
        self._result.add_done_callback(lambda result: None if result.cancelled() else then())

    async def result(self) -> ToolResult:
        """Wait for it. Who is cancelled meanwhile cancels nothing but the waiting."""
        return await asyncio.shield(self._result)

    async def settled(self) -> None:
        """Wait for it until its deadline at the most; cancelled, as `result`."""
        left_s = self._overdue_s - self._clock()
        await asyncio.wait({self._result}, timeout=max(0.0, left_s))

    def take(self) -> ToolResult:
        """The result of a call that is over, for the reply that made it."""
        self.state = CallState.TAKEN
        self._note_told()
        return self._result.result()

    def postpone(self) -> str:
        """The reply goes on without it; returns what the model is told meanwhile."""
        self.state = CallState.LEFT
        if self._tool.side_effect_free and self._record is None:
            self._result.cancel()
            return TOO_LATE
        self._result.add_done_callback(self._tell_late)
        return POSTPONED

    def leave(self) -> None:
        """The reply has gone, and its call stands in the conversation."""
        if self.state is not CallState.WANTED:
            return
        self.state = CallState.LEFT
        if self._result.done():
            self._write(self._result.result().text)
        elif self._tool.side_effect_free:
            self._result.cancel()
            self._write(INTERRUPTED)
        else:
            self._result.add_done_callback(self._tell_late)

    def drop(self) -> None:
        """Drop a call that was made ahead, or early, and is not to be: only of calls that change
        nothing.
        """
        if self.state is CallState.WANTED:
            self.state = CallState.DROPPED
            self._result.cancel()

    def _tell_late(self, result: asyncio.Future[ToolResult]) -> None:
        if not result.cancelled():  # with its session
            self._write(result.result().text, is_news=True)

    def _write(self, text: str, *, is_news: bool = False) -> None:
        self._note_told()
        if self._record is not None:
            self._record(self.call, text, is_news)

    def _note_told(self) -> None:
        if not self._result.done() or self._result.cancelled():
            return
        result = self._result.result()
        if result not in (TOO_MANY, BROKEN) and result.fate is not Fate.ASKED:
            self._on_told(self._tool)


def _not_made(told: str) -> asyncio.Future[ToolResult]:
    result: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
    result.set_result(ToolResult(as_text(told), Fate.ASKED))
    return result


async def _checked(check: Check | None, tool: AgentTool, call: ToolCall) -> Returned | None:
    """Return what the agent's class makes of it. Raises: BackendError: nobody knows if it may be
    made.
    """
    if check is None:
        return None
    try:
        arguments = read_arguments(call.arguments)
    except ToolFailed:
        return None  # the call itself will say so
    return await check(tool.name, arguments)


def own_line_of(calls: Iterable[PendingCall]) -> tuple[str, float | None]:
    """The first line of their own that these calls have, and in how long it is due."""
    own = next((call for call in calls if call.say), None)
    return ("", None) if own is None else (own.say, own.line_due_s)


async def are_settled(calls: Iterable[PendingCall], within_s: float) -> bool:
    """Wait for all of these calls, at most so long; whether none is to be waited for any more."""
    calls = tuple(calls)
    try:
        async with asyncio.timeout(within_s):
            for each in calls:  # they run at the same time: it takes as long as the longest
                await each.settled()
    except TimeoutError:
        pass
    return not any(each.is_awaited for each in calls)


class SessionTools:
    """The tools of one session, and the calls of them that are not over.

    toolbox: of the server. tasks: of the session. record: puts a result into its conversation.
    caller: for whom it is. calls_ahead: what changes nothing is called, and what follows its result
    is drafted, before the caller's turn has ended. client_timeout_ms: after the client was left its
    last call, `on_overdue(calls)` is told, once, which calls have no output; 0 waits for ever.
    turns: the caller's, whose yes a call may need, in this language. ask(call, question): asks the
    client for that yes, where it wants to be asked.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        tasks: asyncio.TaskGroup,
        record: Record,
        caller: Caller = NOBODY,
        *,
        calls_ahead: bool = True,
        client_timeout_ms: int = 0,
        on_overdue: Callable[[tuple[ToolCall, ...]], None] = lambda calls: None,
        turns: Turns = NO_TURNS,
        language: str = LANGUAGE,
        ask: Callable[[ToolCall, str], bool] = lambda call, question: False,
    ) -> None:
        self._toolbox = toolbox
        self._turns = turns
        self._consent = Consent(toolbox.clock, turns, language)
        self._ask = ask
        self._asked: dict[str, asyncio.Future[bool]] = {}  # of the client, by the call's id
        self._tasks = tasks
        self.record = record
        self.calls_ahead = calls_ahead
        self.check: Check | None = None  # what the agent's class makes of a call
        self.caller = caller
        self._n_open = 0
        # Of the MCP servers that the session itself names, by the server's label and their name.
        self.of_servers: dict[tuple[str, str], SessionTool] = {}
        self._own = Toolbox({}, toolbox.clock)
        self.secrets = Secrets()
        self._client_timeout_s = client_timeout_ms / 1000
        self._on_overdue = on_overdue
        self._clients: dict[str, ToolCall] = {}  # calls that the client is to answer
        self._timer: asyncio.TimerHandle | None = None

    def take(self, toolbox: Toolbox, client_timeout_ms: int, language: str) -> None:
        """Another agent goes on with the call, by its own tools."""
        self._toolbox, self._client_timeout_s = toolbox, client_timeout_ms / 1000
        self._consent = Consent(toolbox.clock, self._turns, language)

    def of_server(self, tool: Tool) -> AgentTool | None:
        """How a tool of the session's MCP servers is called; None where the client has to allow
        each call.
        """
        own = self.of_servers.get((tool.server_label, tool.name))
        return None if tool.needs_approval else own

    def let_go(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close a connection of the session's once the side effects under way are over.

        That is the server's to wait for: neither the session nor its end does.
        """
        self._toolbox.outlive(self._own, close)

    def begin(
        self,
        tool: AgentTool,
        call: ToolCall,
        *,
        is_recorded: bool,
        is_allowed: bool = False,
        may_ask: bool = True,
    ) -> PendingCall:
        """Make a call of a tool that the server answers.

        One that the caller has to allow first is not made: they are to be asked its `question`.

        is_recorded: the call stands in the conversation, and so shall its result. is_allowed: by
        the client. may_ask: no other question is due.
        """
        record, question = self.record if is_recorded else None, ""
        if is_allowed or not self._consent.needs(tool):
            result = self._begin(tool, call)
        else:
            result, question = self._begin_allowed(
                tool, call, is_heard=is_recorded, may_ask=may_ask
            )
        return PendingCall(
            tool, call, result, record, self._toolbox.clock, question, self._consent.observe_result
        )

    def _begin_allowed(
        self, tool: AgentTool, call: ToolCall, *, is_heard: bool, may_ask: bool
    ) -> tuple[asyncio.Future[ToolResult], str]:
        """Make the call if the caller has said yes to it; else the question that it needs."""
        try:
            verdict = self._consent.verdict(tool, call.arguments)
        except ToolFailed as failure:
            return _not_made(failure.told), ""
        if not verdict.told:
            return self._begin(tool, call), ""
        if not verdict.question:
            return _not_made(verdict.told), ""
        if not is_heard:
            return _not_made(UNASKABLE), ""
        if not may_ask or call.call_id in self._asked:
            return _not_made(WAITS), ""
        if self._ask(call, verdict.question):
            self._asked[call.call_id] = asyncio.get_running_loop().create_future()
            answering = self._when_allowed(tool, call, self._toolbox, self.check)
            return self._begin(tool, call, answering), ""
        return _not_made(verdict.told), verdict.question

    async def _when_allowed(
        self, tool: AgentTool, call: ToolCall, toolbox: Toolbox, check: Check | None
    ) -> ToolResult:
        """Make the call once the client has said yes: by the agent that asked, whoever answers."""
        try:
            async with asyncio.timeout(ANSWER_S):
                is_allowed = await self._asked[call.call_id]
        except TimeoutError:
            return ToolResult(as_text(UNCLEAR), Fate.ASKED)
        finally:
            self._asked.pop(call.call_id, None)
        arguments = self.secrets.reveal_in(call.arguments, tool.from_slots)
        call = replace(call, arguments=arguments)
        if not is_allowed:
            return ToolResult(as_text(NO), Fate.ASKED)
        return await self._answer(tool, call, toolbox, check)

    def allow(self, call_id: str, *, is_allowed: bool) -> bool:
        """The client's yes or no to a call that it was asked of; whether it was asked of it."""
        answer = self._asked.get(call_id)
        if answer is None or answer.done():
            return False
        answer.set_result(is_allowed)
        return True

    def note_asked(self, pending: PendingCall) -> None:
        """The question of this call has been said to the caller."""
        self._consent.note_asked(pending.tool, pending.call.arguments)

    def adopt(self, pending: PendingCall, call: ToolCall, *, is_recorded: bool) -> PendingCall:
        """A call made ahead, as this call of the reply."""
        pending.adopt(call, self.record if is_recorded else None)
        return pending

    def _begin(
        self,
        tool: AgentTool,
        call: ToolCall,
        answering: Coroutine[None, None, ToolResult] | None = None,
    ) -> asyncio.Future[ToolResult]:
        """answering: the call itself, where something comes before it."""
        arguments = self.secrets.reveal_in(call.arguments, tool.from_slots)
        call = replace(call, arguments=arguments)
        is_known = answering is None and self.check is None
        answer = tool.answer(arguments) if is_known else None
        if answer is None and self._n_open < MAX_OPEN:
            self._n_open += 1
            answering = answering or self._answer(tool, call, self._toolbox, self.check)
            task = self._tasks.create_task(answering, name=f"tool {tool.name}")
            task.add_done_callback(self._one_is_over)
            return task
        # What the agent file knows by itself is there at once, without a turn of the loop.
        result: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        if answering is not None:
            answering.close()
            self._asked.pop(call.call_id, None)
        result.set_result(TOO_MANY if answer is None else ToolResult(answer, Fate.TABLE))
        return result

    async def _answer(
        self, tool: AgentTool, call: ToolCall, toolbox: Toolbox, check: Check | None
    ) -> ToolResult:
        """toolbox, check: of the agent whose tool it is; it may have handed the call on by now."""
        try:
            told = await _checked(check, tool, call)
            if told is not None and told.is_answer:
                return ToolResult(told.text, Fate.REFUSED)
            call = replace(call, arguments=told.text) if told is not None else call
            if isinstance(tool, SessionTool):
                return await self._own.answer(tool.served, call, NOBODY)
            return await toolbox.call(tool, call, self.caller)
        except Exception as error:  # a bug costs a result, not the call on the line
            error_of(error)
            return BROKEN

    def _one_is_over(self, task: asyncio.Task[ToolResult]) -> None:
        self._n_open -= 1

    # --- calls that the client answers ---

    def expect(self, calls: Iterable[ToolCall]) -> None:
        """Wait for the client's outputs of these calls, in which a reply has ended."""
        n_known = len(self._clients)
        self._clients |= {call.call_id: call for call in calls}
        if self._client_timeout_s and len(self._clients) > n_known:
            self._stop_timer()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._client_timeout_s, self._give_up)

    def observe_output(self, call_id: str) -> None:
        """Wait no more for this call: the client has answered it."""
        self._clients.pop(call_id, None)

    def close(self) -> None:
        """Wait for no client any more."""
        self._stop_timer()
        self._clients.clear()

    def _give_up(self) -> None:
        overdue = tuple(self._clients.values())
        self.close()
        if overdue:
            self._on_overdue(overdue)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
