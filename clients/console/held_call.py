"""A call that waits for its next turn: what is said is asked for, one turn at a time.

Owns the turns under way, the events so far, and what is told of each turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from clients.call.open_call import CallOptions, OpenCall
from clients.call.record import Reply
from clients.call.result import CallResult, TurnResult
from clients.call.script import Utterance
from clients.connection import RealtimeConnection, Received, typed
from clients.errors import ClientError, ConnectionFailed
from clients.evaluate.tool_watch import ToolWatch
from clients.report.call_summary import turn_json

IDLE_S = 900.0  # a person's coffee; a call that a program forgot is not held for ever
MAX_EVENTS = 20_000  # of an hour's call some 5,000 without sound
TOOL_TIMEOUT_S = 60.0  # as long as a server goes on with a tool
TYPED_TIMEOUT_S = 60.0
# A server hands a call on right behind the response that a tool ended: time for the network.
HAND_OFF_S = 0.25
UNTOLD = frozenset({"response.output_audio.delta"})


@dataclass(frozen=True, slots=True)
class Say:
    """One turn. utterance: as sound, or None where text is typed.

    after_s: since the agent's last answer began; None: after it. waits: for the answer.
    """

    text: str
    utterance: Utterance | None
    after_s: float | None = None
    waits: bool = True


class HeldCall:
    """One call over an open connection. results: what the client answers to tools, by name."""

    def __init__(
        self,
        connection: RealtimeConnection,
        results: Mapping[str, Any],
        options: CallOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.call = OpenCall(connection, options=options, observer=self, clock=clock)
        self._connection = connection
        self._clock = clock
        self._events: deque[tuple[int, dict[str, Any]]] = deque(maxlen=MAX_EVENTS)
        self._n_events = 0
        self._tools = ToolWatch(results)
        self._outputs: dict[str, str] = {}
        self._calls: list[dict[str, Any]] = []  # of the turn under way
        self._first_text_at: float | None = None
        self._turns: list[TurnResult] = []
        self._asked: asyncio.Queue[tuple[Say, asyncio.Future[dict[str, Any]]] | None]
        self._asked = asyncio.Queue(2)  # a turn, and the end behind it
        self._is_in_turn = False
        self._handed_at: float | None = None  # in the turn under way, to another agent
        self._sending: set[asyncio.Task[None]] = set()
        self.typed: list[dict[str, Any]] = []  # what was told of each typed turn
        self.greeted = asyncio.Event()

    async def run(self) -> CallResult:
        """Hold it until `stop`, or until nobody asks for a turn any more. Raises: ClientError."""
        try:
            return await self.call.hold(self._drive)
        finally:
            while not self._asked.empty():
                if (left := self._asked.get_nowait()) is not None:
                    left[1].set_exception(ConnectionFailed("the call has ended"))

    # --- what is asked for ---

    async def say(self, turn: Say) -> dict[str, Any]:
        """Return what became of the turn. Raises: ClientError: another is under way, or the call
        ended.
        """
        if self._is_in_turn:
            raise ClientError("Another turn is under way. Wait for its end.")
        done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._is_in_turn = True
        try:
            self._asked.put_nowait((turn, done))
            return await done
        except asyncio.QueueFull:
            raise ClientError("The call is ending.") from None
        finally:
            self._is_in_turn = False

    def stop(self) -> None:
        """Hang up once the turn under way is over; idempotent."""
        with suppress(asyncio.QueueFull):  # it is there already
            self._asked.put_nowait(None)

    def events(self, since: int) -> list[dict[str, Any]]:
        """Return the events from that number on, as far as they are kept."""
        return [{"n": n, **event} for n, event in self._events if n >= since]

    @property
    def greeting(self) -> str:
        return _text_of(self.call.record.replies)

    # --- as an observer of the call ---

    def received(self, received: Received) -> None:
        event = received.event
        if received.type not in UNTOLD:
            self._events.append((self._n_events, event))
            self._n_events += 1
        item = event.get("item") or {}
        match received.type:
            case "response.output_item.done" if item.get("type") == "function_call":
                call = {name: item.get(name, "") for name in ("call_id", "name", "arguments")}
                self._calls.append(call)
            case "conversation.item.added" if item.get("type") == "function_call_output":
                self._outputs[item["call_id"]] = item.get("output", "")
            case "session.updated":  # asked for once, before the first turn: it is another agent's
                self._handed_at = received.at
            case "response.output_text.delta" if self._first_text_at is None:
                self._first_text_at = received.at
        for answer in self._tools.observe(received):
            task = asyncio.get_running_loop().create_task(self._connection.send(answer))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    def speaks(self, utterance: Utterance) -> None: ...

    def finished(self, turn: TurnResult) -> None:
        self._turns.append(turn)

    # --- its own task ---

    async def _drive(self) -> None:
        await self.call.greeted()
        self.greeted.set()
        while True:
            try:
                async with asyncio.timeout(IDLE_S):
                    asked = await self._asked.get()
            except TimeoutError:
                return
            if asked is None:
                return
            turn, done = asked
            try:
                told = await self._one_turn(turn)
            except BaseException as error:
                done.set_exception(ConnectionFailed(f"the call ended: {error!r}"))
                raise
            done.set_result(told)

    async def _one_turn(self, turn: Say) -> dict[str, Any]:
        if turn.after_s is None:
            await self.call.agent_finished()
        begins_at, n_errors = self._clock(), len(self.call.record.errors)
        self._calls, self._first_text_at, self._handed_at = [], None, None
        if turn.utterance is None:
            told = await self._type(turn.text)
        else:
            told = await self._speak(turn, turn.utterance)
        replies = [one for one in self.call.record.replies if one.created_at >= begins_at]
        whole = {
            "said": turn.text,
            **told,
            "tools": [
                {"name": call["name"], "arguments": call["arguments"]}
                | ({"output": output} if (output := self._outputs.get(call["call_id"])) else {})
                for call in self._calls
            ],
            "failed": [reply.status for reply in replies if reply.status == "failed"],
            "errors": self.call.record.errors[n_errors:],
        }
        if turn.utterance is None:
            self.typed.append(whole)
        return whole

    async def _speak(self, turn: Say, utterance: Utterance) -> dict[str, Any]:
        if turn.after_s is not None and self.call.record.spoken:
            await self.call.answer_begun(turn.after_s)
        n_before = len(self.call.record.spoken)
        await self.call.say(utterance)
        if not turn.waits:
            return {"answer": None}
        await self.call.answered()
        await self._settled()
        self.call.report_finished()
        result = self._turns[n_before]
        whole, timeline = turn_json(result), self._timeline(result)
        kept = ("heard", "answer", "gap_ms", "cut_in", "cut_is_soft", "barge_in", "waterfall")
        return {name: whole[name] for name in kept} | {
            "why_it_waited": whole["endpoint"],
            **{
                name: timeline[name]
                for name in ("answered_by", "waiting_line", "opener", "speakers")
                if name in timeline
            },
        }

    async def _type(self, text: str) -> dict[str, Any]:
        began_at, n_before = self._clock(), len(self.call.record.replies)
        await self._connection.send({"type": "conversation.item.create", "item": typed(text)})
        asked = {"output_modalities": ["text"]}
        await self._connection.send({"type": "response.create", "response": asked})
        n_errors = len(self.call.record.errors)

        def is_over() -> bool:
            has_failed = len(self.call.record.errors) > n_errors
            replies: list[Reply] = self.call.record.replies[n_before:]
            return has_failed or (bool(replies) and not self.call.record.answering)

        await self.call.until(is_over, began_at + TYPED_TIMEOUT_S)
        await self._settled()
        first_at = self._first_text_at
        return {
            "answer": _text_of(self.call.record.replies[n_before:]),
            "first_token_ms": None if first_at is None else round(1000 * (first_at - began_at), 1),
        }

    async def _settled(self) -> None:
        """Return once nothing follows: no tool or other agent is waited for, and all was heard."""
        if not self._tools.is_settled:
            await self.call.until(lambda: self._tools.is_settled, self._clock() + TOOL_TIMEOUT_S)
            await self.call.agent_finished()
        if self._calls:
            await self.call.until(lambda: self._handed_at is not None, self._clock() + HAND_OFF_S)
        if (handed_at := self._handed_at) is not None:

            def speaks() -> bool:
                return any(one.created_at >= handed_at for one in self.call.record.replies)

            await self.call.until(speaks, self._clock() + self.call.options.answer_timeout_s)
            await self.call.agent_finished()

    def _timeline(self, turn: TurnResult) -> Mapping[str, Any]:
        """Return what the server told of the reply to this turn."""
        started = self.call.record.starts_at
        for reply in self.call.record.replies:
            if reply.created_at - started >= turn.onset_at and reply.timeline is not None:
                return reply.timeline
        return {}


def _text_of(replies: Sequence[Reply]) -> str:
    """Return what they say; one that only called a tool says nothing."""
    return " ".join(text for reply in replies if (text := reply.text.strip()))
