"""The calls of MCP tools in one response: each an item that ends with what came of it.

Owns their events. Pure; the response itself adds and ends the items.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from msgspec.structs import replace

from voiceloop.realtime import events
from voiceloop.realtime.items import Item, McpApprovalRequest, McpCall

BROKEN_OFF = "the response ended before the call did"


class Output(Protocol):
    """One output item of a response."""

    index: int
    item: Item
    done: bool


class McpCalls:
    """add, end: an item of the response. place: where in it an item is. send: an event.

    A call's id is its item's too, so that it has to be one that the session made.
    """

    def __init__(
        self,
        add: Callable[[Item], Any],
        end: Callable[[Any, Item], None],
        place: Callable[[Any], dict[str, Any]],
        send: Callable[[events.ServerEvent], None],
    ) -> None:
        self._add = add
        self._end = end
        self._place = place
        self._send = send
        self._calls: dict[str, Output] = {}

    def begin(self, call_id: str, name: str, arguments: str, label: str) -> None:
        """The model has called a tool, and it is being executed."""
        if call_id in self._calls:
            return
        item = McpCall(id=call_id, server_label=label, name=name, arguments=arguments)
        output = self._calls[call_id] = self._add(item)
        place = self._place(output)
        self._send(events.McpArgumentsDelta(**place, delta=arguments))
        self._send(events.McpArgumentsDone(**place, arguments=arguments))
        self._send(events.McpCallInProgress(item_id=call_id, output_index=output.index))

    def ask(self, request_id: str, name: str, arguments: str, label: str) -> None:
        """The model wants to call a tool that the client has to allow."""
        item = McpApprovalRequest(id=request_id, server_label=label, name=name, arguments=arguments)
        self._end(self._add(item), item)

    def finish(self, call_id: str, text: str, *, is_error: bool) -> None:
        """Finish a call with its result."""
        output = self._calls.get(call_id)
        if output is None or output.done:
            return
        assert isinstance(output.item, McpCall)
        kind = events.McpCallFailed if is_error else events.McpCallCompleted
        self._send(kind(item_id=call_id, output_index=output.index))
        self._end(output, finished(output.item, text, is_error=is_error))

    def break_off(self) -> None:
        """The response ends: so do the calls that are under way in it."""
        for call_id in self._calls:
            self.finish(call_id, BROKEN_OFF, is_error=True)


def finished(call: McpCall, text: str, *, is_error: bool) -> McpCall:
    """The call with its end."""
    if is_error:
        return replace(call, error={"type": "tool_execution_error", "message": text})
    return replace(call, output=text)
