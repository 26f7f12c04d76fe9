"""The calls of a turn: which may be made, and the answers that the agent file itself gives.

Owns when such a tool is called: at the turn that was committed, once; before that only where the
agent file says that it has no side effects. Other tools are the client's.
"""

from __future__ import annotations

from collections.abc import Sequence

from voiceloop.agent import AgentConfig
from voiceloop.backends import ChatMessage, PreemptiveCall, Tool, ToolCall
from voiceloop.realtime.items import FunctionCallOutput
from voiceloop.realtime.protocol import Protocol


class ToolAnswers:
    """Of one turn."""

    def __init__(self, agent: AgentConfig, offered: Sequence[Tool]) -> None:
        own = agent.session_settings().tools
        # A client's tool may have the name of one of the agent file's: then it is the client's.
        self._tools = {tool.name: agent.tool(tool.name) for tool in offered if tool in own}
        self._names = {tool.name for tool in offered}
        self._ahead: dict[tuple[str, str], str] = {}

    def admits(self, call: ToolCall, tool_choice: str) -> bool:
        """A call of nothing that exists nobody could answer; and a reply may have to speak."""
        return call.name in self._names and tool_choice != "none"

    def call_ahead(self, call: PreemptiveCall) -> None:
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


def as_results(
    answers: Sequence[tuple[ToolCall, str]], protocol: Protocol | None
) -> tuple[ChatMessage, ...]:
    """The answers as the model is given them; with a protocol, as items of its conversation too."""
    for call, answer in answers:
        if protocol is not None:
            item_id = protocol.new_id("item")
            protocol.add_item(FunctionCallOutput(id=item_id, call_id=call.call_id, output=answer))
    return tuple(ChatMessage("tool", answer, (), call.call_id) for call, answer in answers)
