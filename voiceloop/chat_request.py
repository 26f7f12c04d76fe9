"""The body of ``/v1/chat/completions``, read strictly. Pure.

What the engine cannot do over HTTP yet (log probabilities, several choices, penalties) is refused
by name rather than ignored: an answer that only looks as asked for would be worse than none.
Fields that change nothing of the answer (``user``, ``metadata``, ``store``) are accepted.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any

import msgspec

from voiceloop.backends import ChatMessage, GenerateParams, Tool, ToolCall
from voiceloop.errors import InvalidRequest, expected
from voiceloop.session_update import read_tools
from voiceloop.settings import Json

MAX_MESSAGES = 2048
MAX_REPLY_TOKENS = 4096
DEFAULT_REPLY_TOKENS = 256
MAX_STOPS = 4
ROLES = ("system", "developer", "user", "assistant", "tool")

# Field -> the values that ask for nothing.
_NOT_YET: dict[str, tuple[Any, ...]] = {
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "n": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "audio": (None,),
    "functions": (None, []),
}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request. ``messages`` holds at least one; the last is what is answered."""

    model: str
    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...]
    params: GenerateParams
    streams: bool
    includes_usage: bool


def parse_chat(raw: Json) -> ChatRequest:
    """Read a body. Raises: InvalidRequest; ``param`` is the path of what is wrong."""
    for field, nothing in _NOT_YET.items():
        if raw.get(field) not in nothing:
            raise InvalidRequest(
                f"{field}: this server's engine does not support it over HTTP yet",
                param=field,
                code="unsupported_parameter",
            )
    options = raw.get("stream_options") or {}
    if not isinstance(options, dict):
        raise expected("stream_options", "an object", options)
    return ChatRequest(
        model=_text(raw.get("model"), "model"),
        messages=_read_messages(raw.get("messages")),
        tools=_read_tools(raw.get("tools")),
        params=_read_params(raw),
        streams=_flag(raw.get("stream"), "stream"),
        includes_usage=_flag(options.get("include_usage"), "stream_options.include_usage"),
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
            return json.dumps(schema)
    raise expected("response_format.type", "text, json_object or json_schema", kind)


def _read_params(raw: Json) -> GenerateParams:
    limit = raw.get("max_completion_tokens")
    where = "max_completion_tokens"
    if limit is None:
        limit, where = raw.get("max_tokens"), "max_tokens"
    seed = raw.get("seed")
    return GenerateParams(
        max_tokens=DEFAULT_REPLY_TOKENS
        if limit is None
        else _whole(limit, where, 1, MAX_REPLY_TOKENS),
        temperature=_number(raw.get("temperature"), "temperature", 0.0, 2.0, 1.0),
        top_p=_number(raw.get("top_p"), "top_p", 0.0, 1.0, 1.0),
        # Without a seed two answers may differ, as at the API that clients know.
        seed=secrets.randbits(31) if seed is None else _whole(seed, "seed", -(2**63), 2**63 - 1),
        stop=_read_stop(raw.get("stop")),
        tool_choice=_read_tool_choice(raw.get("tool_choice")),
        json_schema=_read_response_format(raw.get("response_format")),
    )


def _read_stop(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise expected("stop", f"a string or at most {MAX_STOPS} of them", value)
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise expected("stop", "strings that are not empty", stop)
    return tuple(stops)


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
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str) or part.get("type") != "text":
            raise expected(f"{where}[{index}]", "a text part", part)
        texts.append(text)
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
        arguments = _text(function.get("arguments"), f"{where}[{index}].function.arguments")
        try:
            msgspec.json.decode(arguments, type=dict)  # strict: no NaN, no half characters
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            path = f"{where}[{index}].function.arguments"
            raise expected(path, "a JSON object", arguments) from None
        call_id = _text(raw.get("id"), f"{where}[{index}].id")
        name = _text(function.get("name"), f"{where}[{index}].function.name")
        calls.append(ToolCall(call_id, name, arguments))
    return tuple(calls)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise expected(where, "a string", value)
    return value


def _flag(value: Any, where: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise expected(where, "true or false", value)
    return bool(value)


def _whole(value: Any, where: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise expected(where, f"a whole number from {low} to {high}", value)
    return value


def _number(value: Any, where: str, low: float, high: float, default: float) -> float:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise expected(where, f"a number from {low:g} to {high:g}", value)
    return float(value)
