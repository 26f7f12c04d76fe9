"""The body of ``/v1/chat/completions``, read strictly. Pure.

Owns the messages, the tools and the response format; sampling stands in ``generation.py``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from voiceloop.backends import ChatMessage, GenerateParams, Tool, ToolCall
from voiceloop.errors import expected
from voiceloop.http.generation import (
    MAX_LOGPROBS,
    MAX_REPLY_TOKENS,
    GenerationRequest,
    flag,
    read_common,
    read_sampling,
    refuse,
    whole,
)
from voiceloop.realtime.session_update import check_schema, read_text, read_tools
from voiceloop.realtime.settings import Json

MAX_MESSAGES = 2048
DEFAULT_REPLY_TOKENS = 256
ROLES = ("system", "developer", "user", "assistant", "tool")

# Field -> the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {"audio": (None,), "functions": (None, [])}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(GenerationRequest):
    """One request. ``messages`` holds at least one; the last is what is answered."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...]
    calls_at_once: bool


def parse_chat(raw: Json) -> ChatRequest:
    """Read a body. Raises: InvalidRequest; ``param`` is the path of what is wrong."""
    refuse(raw, _UNSUPPORTED)
    at_once = raw.get("parallel_tool_calls")
    return ChatRequest(
        **read_common(raw),
        messages=_read_messages(raw.get("messages")),
        tools=_read_tools(raw.get("tools")),
        params=_read_params(raw),
        calls_at_once=at_once is None or flag(at_once, "parallel_tool_calls"),
    )


def _read_response_format(value: Any) -> str | None:
    """The JSON schema that the reply must follow, as JSON text; None for plain text."""
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    match kind:
        case "text":
            return None
        case "json_object":
            return '{"type": "object"}'
        case "json_schema":
            given = value.get("json_schema")
            schema = given.get("schema") if isinstance(given, dict) else None
            if not isinstance(schema, dict):
                raise expected("response_format.json_schema.schema", "a JSON schema", schema)
            check_schema(schema, "response_format.json_schema.schema")
            return json.dumps(schema)
    raise expected("response_format.type", "text, json_object or json_schema", kind)


def _read_params(raw: Json) -> GenerateParams:
    newer, older = "max_completion_tokens", "max_tokens"
    where = older if raw.get(newer) is None else newer
    limit = raw.get(where)
    n_tokens = DEFAULT_REPLY_TOKENS if limit is None else whole(limit, where, 1, MAX_REPLY_TOKENS)
    return GenerateParams(
        **read_sampling(raw, n_tokens),
        tool_choice=_read_tool_choice(raw.get("tool_choice")),
        json_schema=_read_response_format(raw.get("response_format")),
        logprobs=_read_logprobs(raw),
    )


def _read_logprobs(raw: Json) -> int | None:
    """How many of the likeliest tokens are told beside the chosen; None: nothing is told."""
    n_top = raw.get("top_logprobs")
    n_top = 0 if n_top is None else whole(n_top, "top_logprobs", 0, MAX_LOGPROBS)
    if flag(raw.get("logprobs"), "logprobs"):
        return n_top
    if n_top:
        raise expected("top_logprobs", "logprobs true with it", n_top)
    return None


def _read_tools(value: Any) -> tuple[Tool, ...]:
    """Tools as this API nests them: ``{"type": "function", "function": {...}}``."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise expected("tools", "a list", value)
    flat = []
    for index, raw in enumerate(value):
        function = raw.get("function") if isinstance(raw, dict) else None
        if not isinstance(function, dict) or raw.get("type") != "function":
            raise expected(f"tools[{index}]", "a function tool", raw)
        flat.append({"type": "function", **function})
    return read_tools(flat, "tools")


def _read_tool_choice(value: Any) -> str:
    """As the language model takes it: a word, or JSON that names the function."""
    if value is None or value in ("auto", "none", "required"):
        return value or "auto"
    function = value.get("function") if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise expected("tool_choice", "auto, none, required or a function", value)
    return json.dumps({"type": "function", "name": name})


def _read_messages(value: Any) -> tuple[ChatMessage, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_MESSAGES:
        raise expected("messages", f"a list of 1 to {MAX_MESSAGES} messages", value)
    return tuple(_read_message(raw, f"messages[{index}]") for index, raw in enumerate(value))


def _read_message(raw: Any, where: str) -> ChatMessage:
    if not isinstance(raw, dict):
        raise expected(where, "an object", raw)
    role = raw.get("role")
    if role not in ROLES:
        raise expected(f"{where}.role", ", ".join(ROLES), role)
    calls = _read_tool_calls(raw.get("tool_calls"), f"{where}.tool_calls")
    content = raw.get("content")
    if content is None and not calls:
        raise expected(f"{where}.content", "a text", content)
    call_id = raw.get("tool_call_id")
    if role == "tool" and not isinstance(call_id, str):
        raise expected(f"{where}.tool_call_id", "the id of the call it answers", call_id)
    return ChatMessage(
        role="system" if role == "developer" else role,
        content=_read_content(content, f"{where}.content"),
        tool_calls=calls if role == "assistant" else (),
        tool_call_id=call_id if role == "tool" else None,
    )


def _read_content(value: Any, where: str) -> str:
    """A text, or a list of text parts."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise expected(where, "a text or a list of text parts", value)
    texts: list[str] = []
    for index, part in enumerate(value):
        piece = part.get("text") if isinstance(part, dict) else None
        if not isinstance(piece, str) or part.get("type") != "text":
            raise expected(f"{where}[{index}]", "a text part", part)
        texts.append(piece)
    return "".join(texts)


def _read_tool_calls(value: Any, where: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise expected(where, "a list", value)
    calls: list[ToolCall] = []
    for index, raw in enumerate(value):
        function = raw.get("function") if isinstance(raw, dict) else None
        if not isinstance(function, dict):
            raise expected(f"{where}[{index}]", "a function call", raw)
        arguments = read_text(function.get("arguments"), f"{where}[{index}].function.arguments")
        try:
            msgspec.json.decode(arguments, type=dict)  # strict: no NaN, no half characters
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            path = f"{where}[{index}].function.arguments"
            raise expected(path, "a JSON object", arguments) from None
        call_id = read_text(raw.get("id"), f"{where}[{index}].id")
        name = read_text(function.get("name"), f"{where}[{index}].function.name")
        calls.append(ToolCall(call_id, name, arguments))
    return tuple(calls)
