"""Owns how tools, and the calls made so far, reach a chat template with ideas of its own.

Most templates take `tools` and write `tool_calls`. Some read the tools from the system message,
want ids of nine characters, or leave calls out: then these are written into what was said, as the
model itself would write them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..types import TemplateError
from .tool_calls import Notation, notation_of, write_calls

Message = dict[str, Any]
Render = Callable[[list[Message]], str]

IN_SYSTEM = ("message['tools']", 'message["tools"]')  # Phi-4-mini
SHORT_IDS, ID_CHARACTERS = "[TOOL_CALLS]", 9  # Mistral
PROBE = "zqprobe"  # a name that no template writes by itself


@dataclass(frozen=True, slots=True)
class CallHistory:
    """The form of a call that one template wants. writes_by: how its calls are written where it
    leaves them out.
    """

    takes_tools_in_system: bool = False
    has_short_ids: bool = False
    writes_by: Notation | None = None

    @classmethod
    def of(cls, source: str, render: Render) -> CallHistory:
        """Read it off a template, and try whether that writes calls. render: without tools."""
        has_short_ids, notation = SHORT_IDS in source, notation_of(source)
        call = {
            "id": PROBE.ljust(ID_CHARACTERS, "0"),
            "type": "function",
            "function": {"name": PROBE, "arguments": {}},
        }
        asks = {"role": "user", "content": "a"}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            is_written = PROBE in render([asks, said])
        except TemplateError:
            is_written = True  # it wants them otherwise, or not at all: it says so when asked
        in_system = any(mark in source for mark in IN_SYSTEM)
        return cls(in_system, has_short_ids, None if is_written else notation)

    def fitted(self, messages: Sequence[Message], tools: Sequence[Message]) -> list[Message]:
        """The same conversation as the template takes it."""
        found = list(messages)
        if self.takes_tools_in_system and tools:
            if not found or found[0]["role"] != "system":
                found.insert(0, {"role": "system", "content": ""})
            functions = [tool.get("function", tool) for tool in tools]
            found[0] = {**found[0], "tools": json.dumps(functions, ensure_ascii=False)}
        if self.has_short_ids:
            found = [_with_short_ids(message) for message in found]
        if self.writes_by is not None:
            found = [_with_calls_said(message, self.writes_by) for message in found]
        return found


def _short(call_id: str) -> str:
    """Nine characters, the same for the same id."""
    return hashlib.blake2s(call_id.encode()).hexdigest()[:ID_CHARACTERS]


def _with_short_ids(message: Message) -> Message:
    found = dict(message)
    if "tool_call_id" in found:
        found["tool_call_id"] = _short(str(found["tool_call_id"]))
    if calls := found.get("tool_calls"):
        found["tool_calls"] = [{**call, "id": _short(str(call.get("id", "")))} for call in calls]
    return found


def _with_calls_said(message: Message, notation: Notation) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    functions = [call["function"] for call in calls]
    return {**message, "content": (message.get("content") or "") + write_calls(functions, notation)}
