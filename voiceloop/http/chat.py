"""``POST /v1/chat/completions``: replies of the language model, whole or streamed.

Owns the route and the wire form of its answers.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop.backends import Backends, Generated, TextDelta, TokenLogprob, ToolCall
from voiceloop.errors import VoiceLoopError
from voiceloop.http.auth import client_key, tenant_of
from voiceloop.http.chat_request import ChatRequest, parse_chat
from voiceloop.http.gate import Door, Stream, error_response, read_json, started
from voiceloop.http.generation import LAST_SSE, Prompt, ReplyEvent, UsageTotal, replies, sse
from voiceloop.realtime.settings import Json


@dataclass(slots=True)
class _Answer:
    """One answer's identity on the wire."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def envelope(self, kind: str, choices: Sequence[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }

    def chunk(self, index: int, delta: Json, **more: object) -> Json:
        choice = {"index": index, "delta": delta, "finish_reason": None, **more}
        return self.envelope("chat.completion.chunk", [choice])


@dataclass(slots=True)
class _Choice:
    """One reply as it grows."""

    index: int
    texts: list[str] = field(default_factory=list)
    calls: list[Json] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)
    finish_reason: str = "stop"

    def to_wire(self, *, tells_logprobs: bool) -> Json:
        content = "".join(self.texts) or (None if self.calls else "")
        message: Json = {"role": "assistant", "content": content, "refusal": None}
        if self.calls:
            message["tool_calls"] = self.calls
        return {
            "index": self.index,
            "message": message,
            "logprobs": {"content": self.logprobs, "refusal": None} if tells_logprobs else None,
            "finish_reason": self.finish_reason,
        }


def chat_routes(door: Door) -> list[Route]:
    async def completions(request: Request) -> Response:
        asked = parse_chat(await read_json(request))
        asked = replace(asked, tenant=tenant_of(client_key(request.headers)))
        if asked.streams:
            pieces = await started(_stream(door.models(), asked))
            return Stream(pieces, "text/event-stream")
        return JSONResponse(await _whole(door.models(), asked))

    return [Route("/v1/chat/completions", door.guard(completions), methods=["POST"])]


def _replies(
    backends: Backends, asked: ChatRequest
) -> AsyncGenerator[tuple[int, ReplyEvent], None]:
    return replies(
        backends, Prompt(asked.messages, asked.tools, asked.tenant), asked.params, asked.n
    )


async def _whole(backends: Backends, asked: ChatRequest) -> Json:
    choices = [_Choice(index) for index in range(asked.n)]
    usage = UsageTotal()
    async with aclosing(_replies(backends, asked)) as events:
        async for index, event in events:
            choice = choices[index]
            match event:
                case TextDelta():
                    choice.texts.append(event.text)
                    choice.logprobs += map(_logprob, event.logprobs)
                case ToolCall():
                    if asked.calls_at_once or not choice.calls:
                        choice.calls.append(_call(event))
                case Generated():
                    choice.finish_reason = event.finish_reason
                    usage.add(event.usage, is_first=index == 0)
    tells = asked.params.logprobs is not None
    found = [choice.to_wire(tells_logprobs=tells) for choice in choices]
    return _Answer(asked.model).envelope("chat.completion", found) | {"usage": usage.to_wire()}


async def _stream(backends: Backends, asked: ChatRequest) -> AsyncGenerator[bytes, None]:
    """Server-sent events. An error before the first is raised; a later one is the last event."""
    answer, usage = _Answer(asked.model), UsageTotal()
    begun = -1  # the last choice that has its first chunk
    n_calls = 0
    try:
        async with aclosing(_replies(backends, asked)) as events:
            async for index, event in events:
                if begun < index:
                    yield sse(answer.chunk(index, {"role": "assistant", "content": ""}))
                    begun, n_calls = index, 0
                match event:
                    case TextDelta():
                        told = {"content": [*map(_logprob, event.logprobs)], "refusal": None}
                        more = {} if asked.params.logprobs is None else {"logprobs": told}
                        yield sse(answer.chunk(index, {"content": event.text}, **more))
                    case ToolCall():
                        if asked.calls_at_once or not n_calls:
                            call = {"index": n_calls, **_call(event)}
                            yield sse(answer.chunk(index, {"tool_calls": [call]}))
                        n_calls += 1
                    case Generated():
                        usage.add(event.usage, is_first=index == 0)
                        yield sse(answer.chunk(index, {}, finish_reason=event.finish_reason))
        if asked.includes_usage:
            last = answer.envelope("chat.completion.chunk", [])
            yield sse(last | {"usage": usage.to_wire()})
    except VoiceLoopError as error:
        if begun < 0:
            raise
        yield b"data: " + bytes(error_response(error).body) + b"\n\n"
    yield LAST_SSE


def _call(call: ToolCall) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _logprob(one: TokenLogprob) -> Json:
    top = [_token(token, logprob) for token, logprob in one.top]
    return _token(one.token, one.logprob) | {"top_logprobs": top}


def _token(token: str, logprob: float) -> Json:
    """A piece of a character has no text of its own, so its bytes are not known here."""
    told = None if "\ufffd" in token else list(token.encode())
    return {"token": token, "logprob": logprob, "bytes": told}
