"""The body of ``/v1/chat/completions``, read strictly. Pure.

What the engine cannot do is refused by name rather than ignored: an answer that only looks as asked
for would be worse than none. Fields that change nothing of the answer (``user``, ``metadata``,
``store``) are accepted. ``top_k``, ``ignore_eos`` and ``min_tokens`` are no fields of OpenAI's but
of the field's benchmark clients.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from voiceloop.admission.allowance import UNBOUNDED, Allowance
from voiceloop.backends import ChatMessage, GenerateParams, Tool, ToolCall, Usage
from voiceloop.errors import InvalidRequest, expected
from voiceloop.http.body import checked
from voiceloop.http.gate import ANSWER_S
from voiceloop.realtime.session_update import check_schema, read_tools
from voiceloop.realtime.settings import Json

MAX_REPLY_TOKENS = 4096
DEFAULT_REPLY_TOKENS = 256
# Field -> the values that ask for nothing.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "logit_bias": (None, {}),
    "repetition_penalty": (None, 1),
    "audio": (None,),
    "functions": (None, []),
}

StopText = Annotated[str, Meta(min_length=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
ReplyTokens = Annotated[int, Meta(ge=1, le=MAX_REPLY_TOKENS)]


class TextPart(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class CalledFunction(Struct, frozen=True):
    name: str
    arguments: str


class Called(Struct, frozen=True):
    id: str
    function: CalledFunction


class Message(Struct, frozen=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[Called] | None = None
    tool_call_id: str | None = None


class FunctionTool(Struct, frozen=True, tag_field="type", tag="function"):
    function: Json


class FunctionName(Struct, frozen=True):
    name: str


class FunctionChoice(Struct, frozen=True, tag_field="type", tag="function"):
    function: FunctionName


class TextFormat(Struct, frozen=True, tag_field="type", tag="text"):
    pass


class JsonFormat(Struct, frozen=True, tag_field="type", tag="json_object"):
    pass


class NamedSchema(Struct, frozen=True):
    schema: Json


class SchemaFormat(Struct, frozen=True, tag_field="type", tag="json_schema"):
    json_schema: NamedSchema


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None


class ChatBody(Struct, frozen=True, kw_only=True):
    """The fields that this server acts on."""

    model: str
    messages: Annotated[list[Message], Meta(min_length=1, max_length=2048)]
    tools: list[FunctionTool] = []
    tool_choice: Literal["auto", "none", "required"] | FunctionChoice = "auto"
    parallel_tool_calls: bool = True
    response_format: TextFormat | JsonFormat | SchemaFormat = TextFormat()
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] = 0
    max_completion_tokens: ReplyTokens | None = None
    max_tokens: ReplyTokens = DEFAULT_REPLY_TOKENS
    n: Annotated[int, Meta(ge=1, le=8)] = 1
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    stop: StopText | Annotated[list[StopText], Meta(max_length=4)] = ()  # type: ignore[assignment]
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Meta(ge=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=2**31)] = -1
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    ignore_eos: bool = False
    min_tokens: Annotated[int, Meta(ge=0)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One request; the last message is what is answered, by ``n`` replies. observe: told of each.

    calls_at_once: a reply may call several tools. allowance: of its key.
    """

    model: str
    params: GenerateParams
    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...]
    n: int
    streams: bool
    includes_usage: bool
    calls_at_once: bool
    tenant: str = ""
    allowance: Allowance = UNBOUNDED
    observe: Callable[[Usage, str], None] = lambda usage, model: None


def parse_chat(raw: Json) -> ChatRequest:
    """Read a body. Raises: InvalidRequest; ``param`` is the path of what is wrong."""
    for name, nothing in UNSUPPORTED.items():
        if raw.get(name) not in nothing:
            raise InvalidRequest(
                f"{name}: expected nothing, for this server cannot do it, found a value",
                param=name,
                code="unsupported_parameter",
            )
    body = checked(raw, ChatBody)
    return ChatRequest(
        model=body.model,
        params=_params(body),
        messages=tuple(
            _message(one, f"messages[{index}]") for index, one in enumerate(body.messages)
        ),
        tools=read_tools([{"type": "function", **one.function} for one in body.tools], "tools"),
        n=body.n,
        streams=body.stream,
        includes_usage=bool(body.stream_options.include_usage),
        calls_at_once=body.parallel_tool_calls,
    )


def _params(body: ChatBody) -> GenerateParams:
    if body.top_logprobs and not body.logprobs:
        raise expected("top_logprobs", "logprobs true with it", body.top_logprobs)
    if body.min_tokens and not body.ignore_eos:
        raise expected("min_tokens", "0, or ignore_eos with it", body.min_tokens)
    choice = body.tool_choice
    if isinstance(choice, FunctionChoice):
        choice = json.dumps({"type": "function", "name": choice.function.name})  # type: ignore[assignment]
    return GenerateParams(
        max_tokens=body.max_completion_tokens or body.max_tokens,
        # The likeliest token alone is what a top_p of 0 leaves.
        temperature=body.temperature if body.top_p > 0 else 0.0,
        top_p=body.top_p or 1.0,
        top_k=max(0, body.top_k),
        # Without a seed two answers may differ, as at the API that clients know.
        seed=secrets.randbits(31) if body.seed is None else body.seed,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop),
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        ignore_eos=body.ignore_eos,
        tool_choice=str(choice),
        json_schema=_schema(body.response_format),
        logprobs=body.top_logprobs if body.logprobs else None,
        is_batch=True,
        within_ms=1000 * ANSWER_S,
    )


def _schema(form: TextFormat | JsonFormat | SchemaFormat) -> str | None:
    """The JSON schema that the reply must follow, as JSON text; None for plain text."""
    match form:
        case JsonFormat():
            return '{"type": "object"}'
        case SchemaFormat(json_schema=named):
            check_schema(named.schema, "response_format.json_schema.schema")
            return json.dumps(named.schema)
    return None


def _message(one: Message, where: str) -> ChatMessage:
    calls = tuple(
        _call(call, f"{where}.tool_calls[{index}]")
        for index, call in enumerate(one.tool_calls or ())
    )
    if one.content is None and not calls:
        raise expected(f"{where}.content", "a text", None)
    if one.role == "tool" and one.tool_call_id is None:
        raise expected(f"{where}.tool_call_id", "the id of the call it answers", None)
    content = one.content or ""
    return ChatMessage(
        role="system" if one.role == "developer" else one.role,
        content=content if isinstance(content, str) else "".join(part.text for part in content),
        tool_calls=calls if one.role == "assistant" else (),
        tool_call_id=one.tool_call_id if one.role == "tool" else None,
    )


def _call(one: Called, where: str) -> ToolCall:
    arguments = one.function.arguments
    try:
        msgspec.json.decode(arguments, type=dict)  # strict: no NaN, no half characters
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise expected(f"{where}.function.arguments", "a JSON object", arguments) from None
    return ToolCall(one.id, one.function.name, arguments)
