"""Tool calls whose output has not come: how long it is waited for, and what comes late of it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from voiceloop.backends import ToolCall
from voiceloop.realtime.items import FunctionCallOutput, Item, McpCall
from voiceloop.realtime.protocol import Protocol

log = logging.getLogger(__name__)

UNANSWERED = json.dumps({"error": "no answer in time: tell the caller that it did not work"})


class OpenToolCalls:
    """`on_overdue(calls)`, once, with those that have no output `timeout_ms` after the last call.

    timeout_ms: 0 waits for ever.
    """

    def __init__(self, timeout_ms: int, on_overdue: Callable[[tuple[ToolCall, ...]], None]) -> None:
        self._timeout_s = timeout_ms / 1000
        self._on_overdue = on_overdue
        self._calls: dict[str, ToolCall] = {}
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, calls: Iterable[ToolCall]) -> None:
        """A reply has ended in these calls."""
        known = len(self._calls)
        self._calls |= {call.call_id: call for call in calls}
        if self._timeout_s and len(self._calls) > known:
            self._stop_timer()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._timeout_s, self._give_up)

    def observe(self, item: Item) -> None:
        """The client added this item: it may be an output."""
        if isinstance(item, FunctionCallOutput):
            self._calls.pop(item.call_id, None)

    def close(self) -> None:
        self._stop_timer()
        self._calls.clear()

    def _give_up(self) -> None:
        overdue = tuple(self._calls.values())
        self.close()
        if overdue:
            self._on_overdue(overdue)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def fail_tool_calls(protocol: Protocol, calls: Iterable[ToolCall]) -> None:
    """Behind the call, where the next prompt finds it and the client sees it."""
    for call in calls:
        behind = protocol.conversation.place_of_output(call.call_id)
        if behind is None:
            continue  # the client has deleted the call
        log.warning("nobody answered a call of the client's tool %s", call.name)
        item_id = protocol.new_id("item")
        output = FunctionCallOutput(id=item_id, call_id=call.call_id, output=UNANSWERED)
        protocol.add_item(output, behind)


def record_result(protocol: Protocol, call: ToolCall, text: str) -> bool:
    """What came of a call whose reply is over: behind the call, wherever that stands by now.

    Returns False where the client has deleted the call, or has said itself what came of it.
    """
    known = protocol.conversation.get(call.call_id)
    if isinstance(known, McpCall):  # it was told to be late; the next prompt has the rest
        protocol.conversation.replace(replace(known, output=text, error=None))
        return True
    if not protocol.conversation.is_open(call.call_id):
        return False
    behind = protocol.conversation.place_of_output(call.call_id)
    output = FunctionCallOutput(id=protocol.new_id("item"), call_id=call.call_id, output=text)
    protocol.add_item(output, behind)
    return True
