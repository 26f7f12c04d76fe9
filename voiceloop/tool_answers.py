"""Answers that the agent file itself gives to the model's calls.

Owns when such a tool is called: at the turn that was committed, once; before that only where the
agent file says that it has no side effects. Other tools are the client's.
"""

from __future__ import annotations

from collections.abc import Sequence

from voiceloop.agent import AgentConfig
from voiceloop.backends import DraftCall, Tool, ToolCall


class ToolAnswers:
    """Of one turn."""

    def __init__(self, agent: AgentConfig, offered: Sequence[Tool]) -> None:
        own = agent.session_settings().tools
        # A client's tool may have the name of one of the agent file's: then it is the client's.
        self._tools = {tool.name: agent.tool(tool.name) for tool in offered if tool in own}
        self._ahead: dict[tuple[str, str], str] = {}

    def call_ahead(self, call: DraftCall) -> None:
        """A drafted reply would make this call."""
        tool = self._tools.get(call.name)
        key = (call.name, call.arguments)
        if tool is None or not tool.side_effect_free or key in self._ahead:
            return
        answer = tool.answer(call.arguments)
        if answer is not None:
            self._ahead[key] = answer

    @property
    def called_ahead(self) -> int:
        """How many calls were answered before the turn was committed."""
        return len(self._ahead)

    def of(self, calls: Sequence[ToolCall]) -> list[tuple[ToolCall, str]] | None:
        """An answer to every call, or None where there is none or a client must answer."""
        found = []
        for call in calls:
            answer = self._ahead.get((call.name, call.arguments))
            tool = self._tools.get(call.name)
            if answer is None and tool is not None:
                answer = tool.answer(call.arguments)
            if answer is None:
                return None
            found.append((call, answer))
        return found or None
