"""The gateway's messages and tools as chat templates read them, and what templates add to a turn.

Owns the plain dictionaries of the engine's boundary. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.text import Text
from engine.types import TemplateError
from voiceloop.backends import ChatMessage, Tool
from voiceloop.role import StreamError


@dataclass(frozen=True, slots=True)
class TurnFrame:
    """Tokens that the chat template puts before and after the words of a user's turn."""

    n_before: int = 0
    n_after: int = 0

    @classmethod
    def of(cls, text: Text) -> TurnFrame:
        """Measured on a turn of one token; nothing where the template refuses that."""
        before: list[dict[str, Any]] = [{"role": "system", "content": "a"}]
        turn = {"role": "user", "content": "a"}
        try:
            n_history = len(text.encode_chat(before))
            n_open = len(text.encode_chat(before, open_user="a"))
            n_whole = len(text.encode_chat([*before, turn], add_generation_prompt=True))
        except TemplateError:
            return cls()
        return cls(max(0, n_open - 1 - n_history), max(0, n_whole - n_open))


def chat_dict(message: ChatMessage) -> dict[str, Any]:
    """A message as chat templates read it."""
    chat: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        chat["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        chat["tool_call_id"] = message.tool_call_id
    return chat


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter: brackets nested by the thousand
        raise StreamError(f"expected a tool call's arguments as JSON, found {error}") from error


def tool_dict(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def forced_tools(choice: str, tools: Sequence[dict[str, Any]]) -> str | None:
    """The functions one of which must be called, as JSON; None where the model may choose.

    choice: "auto", "none", "required", or a JSON object that names one function.
    Raises: StreamError.
    """
    if choice in ("auto", "none"):
        return None
    functions = [tool["function"] for tool in tools]
    if choice != "required":
        value = json.loads(choice)
        name = value.get("name") or (value.get("function") or {}).get("name")
        functions = [function for function in functions if function["name"] == name]
    if not functions:
        raise StreamError(f"expected tool_choice to name a tool of the session, found {choice}")
    return json.dumps(functions)
