"""A scripted service behind the tools of an agent, on the test's own clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from voiceloop.agent import AgentTool
from voiceloop.tools.caller import NOBODY, Caller
from voiceloop.tools.executor import ToolFailed
from voiceloop.tools.limit import CallLimit
from voiceloop.tools.toolbox import ServedTool, Toolbox

ANY: dict[str, Any] = {"type": "object", "additionalProperties": True}


class Service:
    """A tool's process that takes `takes_s` a call, and fails as often as it is told."""

    def __init__(self, takes_s: float = 0.4, failures: tuple[ToolFailed, ...] = ()) -> None:
        self.callers: list[Caller] = []
        self.takes_s = takes_s
        self.failures = list(failures)
        self.n_begun = self.n_done = self.n_at_once = self.most_at_once = 0
        self.is_open = False
        self.answer = "3"
        self.begun_s: list[float] = []
        self.keys: list[str] = []  # of every try
        self.done: list[Mapping[str, Any]] = []  # arguments, in the order in which they took effect

    async def start(self) -> None:
        self.is_open = True

    async def run(self, key: str, arguments: Mapping[str, Any], caller: Caller = NOBODY) -> str:
        self.n_begun += 1
        self.callers.append(caller)
        self.keys.append(key)
        self.begun_s.append(asyncio.get_running_loop().time())
        self.n_at_once += 1
        self.most_at_once = max(self.most_at_once, self.n_at_once)
        try:
            answer = self.answer  # as it stands when the call arrives
            await asyncio.sleep(self.takes_s)
            if self.failures:
                raise self.failures.pop(0)
            self.n_done += 1
            self.done.append(arguments)
            return answer
        finally:
            self.n_at_once -= 1

    async def close(self) -> None:
        self.is_open = False


def box(clock: Callable[[], float], **tools: tuple[AgentTool, Service]) -> Toolbox:
    """A server's tools, each with its service."""
    served = {
        name: ServedTool(tool, service.run, CallLimit(name))
        for name, (tool, service) in tools.items()
    }
    return Toolbox(served, clock, processes={name: service for name, (_, service) in tools.items()})
