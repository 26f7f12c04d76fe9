"""The tool calls of a reply: which may be made, and the results that the agent file itself gives.

Owns when such a tool is called: once, in the committed reply; for a preemptive reply only where the
agent file says that the tool has no side effects. Other tools are the client's. A call that lacks
what its tool requires is nobody's: the model is told what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from voiceloop.agent import AgentConfig
from voiceloop.backends import ChatMessage, PreemptiveCall, Tool, ToolCall
from voiceloop.realtime.items import FunctionCallOutput
from voiceloop.realtime.protocol import Protocol
from voiceloop.reply.steps import IncompleteCall


class ToolAnswers:
    """The calls of one reply. offered: the tools that its prompt names."""

    def __init__(self, agent: AgentConfig, offered: Sequence[Tool]) -> None:
        own = agent.session_settings().tools
        # A client's tool may have the name of one of the agent file's: then it is the client's.
        self._tools = {tool.name: agent.tool(tool.name) for tool in offered if tool in own}
        self._offered = {tool.name: tool for tool in offered}
        self.ahead: dict[tuple[str, str], str] = {}  # results by name and arguments

    def admits(self, call: ToolCall, tool_choice: str) -> bool:
        """Whether the call may be made: of a tool that exists, in a round that need not speak."""
        return call.name in self._offered and tool_choice != "none"

    def missing(self, call: ToolCall | PreemptiveCall) -> tuple[str, ...]:
        """The required arguments of its tool that it lacks: not there, or saying nothing."""
        parameters = self._offered[call.name].parameters
        required, schemas = parameters.get("required"), parameters.get("properties")
        if not isinstance(required, list):
            return ()
        try:
            given = json.loads(call.arguments)
        except ValueError:
            given = None
        values = given if isinstance(given, dict) else {}
        schema_of = schemas if isinstance(schemas, dict) else {}
        return tuple(
            name
            for name in map(str, required)
            if name not in values or _says_nothing(values[name], schema_of.get(name))
        )

    def call_ahead(self, call: PreemptiveCall) -> None:
        """Answer ahead a call that a preemptive reply would make, if that is allowed."""
        tool = self._tools.get(call.name)
        key = (call.name, call.arguments)
        if tool is None or not tool.side_effect_free or key in self.ahead or self.missing(call):
            return
        answer = tool.answer(call.arguments)
        if answer is not None:
            self.ahead[key] = answer

    def of(self, calls: Sequence[ToolCall]) -> list[tuple[ToolCall, str]] | None:
        """The result of every call; None where there is no call, or a client must answer one."""
        found = []
        for call in calls:
            answer = self.ahead.get((call.name, call.arguments))
            tool = self._tools.get(call.name)
            if answer is None and tool is not None:
                answer = tool.answer(call.arguments)
            if answer is None:
                return None
            found.append((call, answer))
        return found or None


def _says_nothing(value: object, schema: object) -> bool:
    """Whether an argument is null or an empty text, and its schema has no place for that."""
    if value is None:
        return not _names(schema, None)
    return value == "" and not (_names(schema, "") or _names(schema, None))


def _names(schema: object, value: str | None) -> bool:
    """Whether a schema names this value: as a constant, or null as a type."""
    if not isinstance(schema, dict):
        return False
    kinds, values = schema.get("type"), schema.get("enum")
    if value is None and (kinds == "null" or (isinstance(kinds, list) and "null" in kinds)):
        return True
    if isinstance(values, list) and value in values:
        return True
    if "const" in schema and schema["const"] == value:
        return True
    ways = [schema.get(key) for key in ("anyOf", "oneOf")]
    return any(_names(each, value) for way in ways if isinstance(way, list) for each in way)


def as_refusals(refused: Sequence[IncompleteCall]) -> tuple[ChatMessage, ...]:
    """Why these calls were not made, as the model is given it; the conversation has none of it."""
    return tuple(
        ChatMessage("tool", json.dumps({"error": _what_lacks(each)}), (), each.call.call_id)
        for each in refused
    )


def _what_lacks(refused: IncompleteCall) -> str:
    names = ", ".join(refused.missing)
    return f"not called: {names} is missing. Ask the caller for it."


def as_results(
    answers: Sequence[tuple[ToolCall, str]], protocol: Protocol | None
) -> tuple[ChatMessage, ...]:
    """The results as the model is given them; with a protocol, its conversation gets them too."""
    for call, answer in answers:
        if protocol is not None:
            item_id = protocol.new_id("item")
            protocol.add_item(FunctionCallOutput(id=item_id, call_id=call.call_id, output=answer))
    return tuple(ChatMessage("tool", answer, (), call.call_id) for call, answer in answers)
