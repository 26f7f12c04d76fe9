"""The client's tool calls whose output has not come, and how long it is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from voiceloop.backends import ToolCall
from voiceloop.realtime.items import FunctionCallOutput, Item


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
