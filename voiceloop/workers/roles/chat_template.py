"""The gateway's messages and tools as chat templates read them, and what templates add to a turn.

Owns the plain dictionaries of the engine's boundary, and the history that is made of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from engine.sequence import common_prefix
from engine.text.open_turn import OpenTurn
from engine.text.text import Text
from engine.types import TemplateError
from voiceloop.backends import ChatMessage, Tool
from voiceloop.workers.roles.role import StreamError

CALL_BEGINS = "Hello?"  # before an agent who speaks first, where a template wants the user to


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


@dataclass(frozen=True, slots=True)
class RoleOrder:
    """The demands of a chat template: some refuse a system message, an agent who speaks first, or
    two turns of one speaker in a row. Found by trying; what is refused is then never written.
    """

    takes_system: bool = True
    takes_any_order: bool = True

    @classmethod
    def of(cls, text: Text) -> RoleOrder:
        if not _takes(text, "user", "assistant"):
            return cls()  # no template, or one that is not understood: it says so itself
        is_free = _takes(text, "assistant", "user", "user")
        return cls(_takes(text, "system", "user"), is_free)

    def ordered(
        self, messages: Sequence[dict[str, Any]], open_user: str | None = None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """The same words in an order the template takes; ``open_user`` follows the messages."""
        turns = list(messages)
        if open_user is not None:
            turns.append({"role": "user", "content": open_user})
        if not self.takes_system:
            turns = _without_system(turns)
        if not self.takes_any_order:
            turns = _in_turns(turns)
        if open_user is None:
            return turns, None
        return turns[:-1], turns[-1]["content"]


def _takes(text: Text, *roles: str) -> bool:
    try:
        text.encode_chat([{"role": role, "content": "a"} for role in roles])
    except TemplateError:
        return False
    return True


def _without_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the system said stands before the first words of the user."""
    said = [message["content"] for message in messages if message["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    if not said:
        return rest
    first = next((i for i, message in enumerate(rest) if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": "\n\n".join(said)}, *rest]
    words = "\n\n".join([*said, rest[first]["content"]])
    rest[first] = {**rest[first], "content": words}
    return rest


def _in_turns(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """User and assistant in turn, the user first; tool calls and their results stay as they are."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        last = turns[-1] if turns else {"role": "system"}
        role, is_plain = message["role"], "tool_calls" not in message
        if role == last["role"] != "tool" and is_plain and "tool_calls" not in last:
            turns[-1] = {**last, "content": f"{last['content']}\n{message['content']}"}
            continue
        if role == "assistant" and last["role"] == "system":
            turns.append({"role": "user", "content": CALL_BEGINS})
        turns.append(message)
    return turns


def chat_dict(message: ChatMessage) -> dict[str, Any]:
    """A message as chat templates read it."""
    return message.to_chat(_arguments)


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter: brackets nested by the thousand
        told = f"expected a tool call's arguments as JSON, found {error}"
        raise StreamError(told, is_request=True) from error


def tool_dict(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def offered_tools(tools: Sequence[dict[str, Any]]) -> str | None:
    """The functions that may be called, as JSON; None where there are none."""
    return json.dumps([tool["function"] for tool in tools]) if tools else None


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
        told = f"expected tool_choice to name a tool of the session, found {choice}"
        raise StreamError(told, is_request=True)
    return json.dumps(functions)


class History:
    """The messages so far, and the tokens of them that the engine's branch continues."""

    def __init__(
        self, messages: Sequence[ChatMessage], tools: Sequence[Tool], text: Text, order: RoleOrder
    ) -> None:
        self.messages = [chat_dict(message) for message in messages]
        self.tools = [tool_dict(tool) for tool in tools]
        self.tokens: list[int] = []
        self._text, self._order = text, order
        self._opened: _Opened | None = None  # None until words are heard behind these messages

    def append(self, messages: Sequence[dict[str, Any]]) -> None:
        """Append what was said since; ``settle`` takes it into the tokens."""
        self.messages += messages
        self._opened = None

    def settle(self) -> None:
        """Take the messages as they stand; no tokens where the template refuses them alone."""
        self.tokens = []
        if self.messages:
            with suppress(TemplateError):  # what is wrong with them shows when the turn is staged
                self.tokens = self.encode()

    def encode(
        self,
        tail: Sequence[dict[str, Any]] = (),
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Tokens of the messages with ``tail`` behind. Raises: TemplateError."""
        seen = self.tools if tools is None else tools
        messages, _ = self._order.ordered([*self.messages, *tail])
        return self._text.encode_chat(messages, seen, add_generation_prompt=add_generation_prompt)

    def turn_tokens(self, words: str) -> tuple[list[int], bool]:
        """Return what follows the history's tokens with the caller's open turn, and whether all of
        the history stands: else it was cut to what the template writes of it before a turn.

        From the second words on this costs what the words are long. Raises: TemplateError.
        """
        is_whole = True
        if self._opened is None:
            messages, ordered = self._order.ordered(self.messages, words)
            if ordered != words:  # the turn is joined to what stood before it
                whole = self._text.encode_chat(messages, self.tools, open_user=ordered)
                is_whole = self.keep_common(whole)
                return whole[len(self.tokens) :], is_whole
            opened = OpenTurn(self._text, messages, self.tools, words)
            whole = opened.before + opened.behind(words)
            is_whole = self.keep_common(whole)
            n_history = len(self.tokens)
            if not opened.follows or n_history > len(opened.before):
                return whole[n_history:], is_whole
            self._opened = _Opened(opened, opened.before[n_history:])
        return self._opened.lead + self._opened.turn.behind(words), is_whole

    def keep_common(self, tokens: list[int]) -> bool:
        """Keep only what ``tokens`` begin with as well; returns whether that is all of it."""
        n_common = common_prefix(self.tokens, tokens)
        is_whole = n_common == len(self.tokens)
        if not is_whole:
            self.tokens, self._opened = tokens[:n_common], None
        return is_whole


@dataclass(frozen=True, slots=True)
class _Opened:
    """The turn behind the history; lead: its tokens between the history's and the words."""

    turn: OpenTurn
    lead: list[int]
