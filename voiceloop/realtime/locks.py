"""The settings locked by the client secret that opened the session: the client may not change them.

Owns which fields a lock covers, and the refusal that names one. A field with the value that it has
already passes: stock clients send whole sessions. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from voiceloop.backends import Tool
from voiceloop.errors import InvalidRequest
from voiceloop.realtime.conversation import Conversation
from voiceloop.realtime.items import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    McpApprovalResponse,
    Message,
)
from voiceloop.realtime.response_request import ResponseRequest
from voiceloop.realtime.settings import SessionSettings

Lockable = Literal["instructions", "tools", "roles", "voice"]
LOCKABLE: tuple[Lockable, ...] = get_args(Lockable)


class Locks(msgspec.Struct, frozen=True):
    """fields: of `LOCKABLE`. served: tools whose calls the server answers, and no client."""

    fields: tuple[str, ...] = ()
    served: frozenset[str] = frozenset()

    def checked(self, before: SessionSettings, after: SessionSettings) -> SessionSettings:
        """The settings after an update. Raises: InvalidRequest: it changes what is locked."""
        wanted: dict[str, dict[str, bool]] = {
            "instructions": {"instructions": after.instructions == before.instructions},
            "tools": {
                "tools": _functions(after.tools) == _functions(before.tools)
                and _servers(after) == _servers(before, after),
                "tool_choice": after.tool_choice == before.tool_choice,
            },
            "voice": {"audio.output.voice": after.voice == before.voice},
        }
        self._refuse_changes(wanted, "session")
        if "tools" in self.fields:  # with what MCP servers list, and what no client is echoed
            return replace(after, tools=before.tools, mcp=before.mcp)
        return after

    def check_response(
        self, asked: ResponseRequest, now: SessionSettings, conversation: Conversation
    ) -> None:
        """Raises: InvalidRequest: the response would be made with another value than is locked."""
        wanted = {
            "instructions": {"instructions": asked.instructions in (None, now.instructions)},
            "tools": {
                "tools": asked.tools is None or asked.tools == _functions(now.tools),
                "tool_choice": asked.tool_choice in (None, now.tool_choice),
            },
            "voice": {"audio.output.voice": asked.voice in (None, now.voice)},
        }
        self._refuse_changes(wanted, "response")
        for index, item in enumerate(asked.input or ()):
            if conversation.get(item.id) is not item:  # else a reference
                self.check_item(item, f"response.input[{index}]", conversation)

    def check_item(self, item: Item, where: str, conversation: Conversation) -> None:
        """Raises: InvalidRequest: the item would speak for somebody else than the caller."""
        if "roles" not in self.fields:
            return
        match item:
            case Message(role="user") | McpApprovalResponse():
                return
            case Message(role=role):
                raise _locked(f"{where}.role", "user", role)
            case FunctionCallOutput(call_id=call_id):
                calls = (one for one in conversation.items() if isinstance(one, FunctionCall))
                names = [call.name for call in calls if call.call_id == call_id]
                if names and names[-1] not in self.served and conversation.is_open(call_id):
                    return
                raise _locked(f"{where}.call_id", "a call that the client is to answer", "another")
        raise _locked(f"{where}.type", "a user's message or the output of a call", "another item")

    def _refuse_changes(self, wanted: Mapping[str, Mapping[str, bool]], where: str) -> None:
        for field, same in wanted.items():
            for name, is_same in same.items():
                if field in self.fields and not is_same:
                    raise _locked(f"{where}.{name}", "the value that it has", "another")


NO_LOCKS = Locks()


def _functions(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    return tuple(tool for tool in tools if not tool.server_label)


def _servers(of: SessionSettings, sent: SessionSettings | None = None) -> list[tuple[Any, ...]]:
    """The session's MCP servers; without headers where the client has sent none of them back."""
    is_shown = [bool(entry.headers) for entry in (sent or of).mcp]
    shown = is_shown if len(is_shown) == len(of.mcp) else [True] * len(of.mcp)
    return [
        (entry.wire, entry.headers if is_so else ())
        for entry, is_so in zip(of.mcp, shown, strict=True)
    ]


def _locked(where: str, wanted: str, found: str) -> InvalidRequest:
    return InvalidRequest(
        f"{where}: expected {wanted}, found {found}: the client secret locks it",
        param=where,
        code="locked",
    )
