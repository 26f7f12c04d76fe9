"""The items of a conversation as they stand on the wire, and the strict reading of a client's item.

Owns the frozen item messages: words, a tool call, a tool's result. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from voiceloop.errors import InvalidRequest, expected
from voiceloop.realtime.client_events import parse_frame

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Role = Literal["system", "user", "assistant"]

MAX_ID_CHARS = 128

_TEXT_TYPES = ("input_text", "output_text", "text")
_AUDIO_TYPES = ("input_audio", "output_audio", "audio")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a message. ``transcript`` belongs to audio, ``text`` to text.

    ``transcript`` None is sent as null (a user's audio whose words are not known yet); unset
    fields are left out.
    """

    type: Literal["input_text", "input_audio", "input_image", "output_text", "output_audio"]
    text: str | UnsetType = UNSET
    transcript: str | UnsetType | None = UNSET

    @property
    def words(self) -> str:
        """The text or the transcript, empty where neither is known."""
        return self.text or self.transcript or ""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """Words of the system, the user or the assistant."""

    id: str
    role: Role
    object: Literal["realtime.item"] = "realtime.item"
    status: ItemStatus = "completed"
    content: tuple[Part, ...] = ()

    @property
    def text(self) -> str:
        """All words known of it."""
        return " ".join(part.words for part in self.content if part.words)


def spoken_item(item_id: str) -> Message:
    """Return what a caller has said, its words not known yet."""
    content = (Part(type="input_audio", transcript=None),)
    return Message(id=item_id, role="user", content=content)


class FunctionCall(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"
):
    """The model calls a tool; ``arguments`` is JSON text."""

    id: str
    call_id: str
    name: str
    object: Literal["realtime.item"] = "realtime.item"
    status: ItemStatus = "completed"
    arguments: str = ""


class FunctionCallOutput(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"
):
    """The result of a tool."""

    id: str
    call_id: str
    output: str
    object: Literal["realtime.item"] = "realtime.item"
    status: ItemStatus = "completed"


class ListedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its MCP server describes it."""

    name: str
    description: str
    input_schema: dict[str, Any]


class McpListTools(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_list_tools"
):
    """The tools of an MCP server of the session, as far as the session lets them through."""

    id: str
    server_label: str
    tools: tuple[ListedTool, ...]


class McpCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_call"):
    """The model calls a tool of an MCP server; ``output`` or ``error`` is what came of it."""

    id: str
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: dict[str, Any] | None = None
    approval_request_id: str | None = None

    @property
    def result(self) -> str | None:
        """As the model reads it; None while the call is under way."""
        if self.error is not None:
            return json.dumps({"error": self.error["message"]}, ensure_ascii=False)
        return self.output


class McpApprovalRequest(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_approval_request"
):
    """The model wants to call a tool that the client has to allow."""

    id: str
    server_label: str
    name: str
    arguments: str


class McpApprovalResponse(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_approval_response"
):
    """The client's yes or no to a request."""

    id: str
    approval_request_id: str
    approve: bool
    reason: str | None = None


McpItem = McpListTools | McpCall | McpApprovalRequest | McpApprovalResponse
Item = Message | FunctionCall | FunctionCallOutput | McpItem


def model_text(item: Item) -> str:
    """Return what of an item the language model reads."""
    match item:
        case Message():
            return item.text
        case FunctionCall():
            return item.name + item.arguments
        case FunctionCallOutput():
            return item.output
        case McpCall():
            return item.name + item.arguments + (item.result or "")
        case _:
            return ""


def n_characters_of(item: Item) -> int:
    """Characters that an item adds to a prompt."""
    return len(model_text(item))


def parse_item(raw: Any, new_id: Callable[[str], str]) -> Item:
    """Read an item a client sent; explicit nulls count as absent, ids are made where missing.

    Raises:
        InvalidRequest: with the path of the field that is wrong as ``param``.
    """
    if not isinstance(raw, dict):
        raise expected("item", "an object", raw)
    present = {key: value for key, value in raw.items() if value is not None}
    item_id = _text(present, "id", default="") or new_id("item")
    if len(item_id) > MAX_ID_CHARS:
        raise expected("item.id", f"at most {MAX_ID_CHARS} characters", len(item_id))
    match present.get("type"):
        case "message":
            return _parse_message(present, item_id)
        case "function_call":
            return FunctionCall(
                id=item_id,
                call_id=_text(present, "call_id", default="") or new_id("call"),
                name=_text(present, "name"),
                arguments=_arguments(present),
            )
        case "function_call_output":
            return FunctionCallOutput(
                id=item_id, call_id=_text(present, "call_id"), output=_text(present, "output")
            )
        case "mcp_approval_response":
            approve = present.get("approve")
            if not isinstance(approve, bool):
                raise expected("item.approve", "true or false", approve)
            return McpApprovalResponse(
                id=item_id,
                approval_request_id=_text(present, "approval_request_id"),
                approve=approve,
                reason=_text(present, "reason", default="") or None,
            )
        case other:
            kinds = "message, function_call, function_call_output or mcp_approval_response"
            raise expected("item.type", kinds, other)


def audio_of(raw: dict[str, Any]) -> list[tuple[str, str]]:
    """(path, base64) of the audio in a user's message that came without its words, in order.

    Raises:
        InvalidRequest: it is no text.
    """
    content = raw.get("content")
    if raw.get("type") != "message" or raw.get("role") != "user" or not isinstance(content, list):
        return []
    found = []
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") not in _AUDIO_TYPES:
            continue
        path = f"item.content[{index}]"
        if part.get("audio") is not None and not part.get("transcript"):
            found.append((f"{path}.audio", _text(part, "audio", path=path)))
    return found


def _parse_message(raw: dict[str, Any], item_id: str) -> Message:
    role = raw.get("role")
    if role not in ("system", "user", "assistant"):
        raise expected("item.role", "system, user or assistant", role)
    content = raw.get("content", [])
    if not isinstance(content, list):
        raise expected("item.content", "a list", content)
    parts = tuple(_parse_part(part, role, index) for index, part in enumerate(content))
    return Message(id=item_id, role=role, content=parts)


def _parse_part(raw: Any, role: Role, index: int) -> Part:
    """Read a content part; the type follows the role (clients send assistants' input_text)."""
    path = f"item.content[{index}]"
    if not isinstance(raw, dict):
        raise expected(path, "an object", raw)
    present = {key: value for key, value in raw.items() if value is not None}
    kind = present.get("type")
    if kind in _TEXT_TYPES:
        text = _text(present, "text", path=path)
        return Part(type="output_text" if role == "assistant" else "input_text", text=text)
    if kind in _AUDIO_TYPES and role != "system":
        transcript = _text(present, "transcript", path=path, default="")
        return Part(
            type="output_audio" if role == "assistant" else "input_audio",
            transcript=transcript or None,
        )
    if kind == "input_image" and role == "user":  # accepted; no model here sees it
        return Part(type="input_image")
    raise expected(f"{path}.type", f"a content type of a {role} message", kind)


def _arguments(raw: dict[str, Any]) -> str:
    """A call's arguments: a JSON object as text. Nothing means none.

    Checked here because the model's template reads them at every later turn: a call with broken
    arguments in its history would answer none of them.
    """
    text = _text(raw, "arguments")
    try:
        parse_frame(text or "{}")
    except InvalidRequest as error:
        message = f"item.arguments: {error.message}"
        raise InvalidRequest(message, param="item.arguments") from None
    return text or "{}"


def _text(raw: dict[str, Any], key: str, *, path: str = "item", default: str | None = None) -> str:
    value = raw.get(key, default)
    if not isinstance(value, str):
        raise expected(f"{path}.{key}", "a string", value)
    return value
