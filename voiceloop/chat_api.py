"""``POST /v1/chat/completions``: one reply of the language model, whole or streamed.

Owns the route and the wire form of its answers. Every request is a branch of its own, so that
calls of one prefix share their cached blocks with each other and with the sessions.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop.backends import (
    Backends,
    Generated,
    LanguageEvent,
    Staged,
    TextDelta,
    ToolCall,
    Usage,
)
from voiceloop.chat_request import ChatRequest, parse_chat
from voiceloop.errors import BackendError, VoiceLoopError
from voiceloop.http_api import error_response
from voiceloop.http_door import Door, Stream, read_json, started
from voiceloop.settings import Json


@dataclass(slots=True)
class _Answer:
    """One answer's identity on the wire, and what it has said so far."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    n_calls: int = 0

    def envelope(self, kind: str, choices: Sequence[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }

    def chunk(self, delta: Json, finish_reason: str | None = None) -> Json:
        choice: Json = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return self.envelope("chat.completion.chunk", [choice])


def chat_routes(door: Door) -> list[Route]:
    async def completions(request: Request) -> Response:
        asked = parse_chat(await read_json(request))
        if asked.streams:
            pieces = await started(_stream(door.models(), asked))
            return Stream(pieces, "text/event-stream")
        return JSONResponse(await _whole(door.models(), asked))

    return [Route("/v1/chat/completions", door.guard(completions), methods=["POST"])]


@asynccontextmanager
async def _reply(
    backends: Backends, asked: ChatRequest
) -> AsyncIterator[AsyncIterator[LanguageEvent]]:
    """The events of the reply to the last message, the others being its history."""
    branch = await backends.language_model.branch(
        f"chat-{uuid4().hex}", asked.messages[:-1], asked.tools
    )
    try:
        branch.commit(asked.messages[-1:], asked.params)
        async with aclosing(branch.events()) as events:  # type: ignore[type-var]
            yield events
    finally:
        await branch.close()


async def _whole(backends: Backends, asked: ChatRequest) -> Json:
    answer = _Answer(asked.model)
    texts: list[str] = []
    calls: list[Json] = []
    async with _reply(backends, asked) as events:
        async for event in events:
            match event:
                case TextDelta(text=text):
                    texts.append(text)
                case ToolCall():
                    calls.append(_call(event))
                case Generated():
                    message: Json = {
                        "role": "assistant",
                        "content": "".join(texts) or (None if calls else ""),
                        "refusal": None,
                    }
                    if calls:
                        message["tool_calls"] = calls
                    choice = {
                        "index": 0,
                        "message": message,
                        "logprobs": None,
                        "finish_reason": _reason(event),
                    }
                    body = answer.envelope("chat.completion", [choice])
                    return body | {"usage": _usage(event.usage)}
                case Staged():
                    pass
    raise BackendError("expected the reply to end, found that the model stopped without saying so")


async def _stream(backends: Backends, asked: ChatRequest) -> AsyncGenerator[bytes, None]:
    """Server-sent events. An error before the first is raised; a later one is the last event."""
    answer = _Answer(asked.model)
    is_begun = False
    try:
        async with _reply(backends, asked) as events:
            async for event in events:
                if isinstance(event, Staged):
                    continue
                if not is_begun:
                    yield _sse(answer.chunk({"role": "assistant", "content": ""}))
                    is_begun = True
                for chunk in _chunks(answer, event, asked.includes_usage):
                    yield _sse(chunk)
                if isinstance(event, Generated):
                    break
    except VoiceLoopError as error:
        if not is_begun:
            raise
        yield b"data: " + bytes(error_response(error).body) + b"\n\n"
    yield b"data: [DONE]\n\n"


def _chunks(answer: _Answer, event: LanguageEvent, includes_usage: bool) -> list[Json]:
    match event:
        case TextDelta(text=text):
            return [answer.chunk({"content": text})]
        case ToolCall():
            call = {"index": answer.n_calls, **_call(event)}
            answer.n_calls += 1
            return [answer.chunk({"tool_calls": [call]})]
        case Generated():
            last = [answer.chunk({}, _reason(event))]
            if includes_usage:
                empty = answer.envelope("chat.completion.chunk", [])
                last.append(empty | {"usage": _usage(event.usage)})
            return last
        case Staged():
            return []


def _reason(generated: Generated) -> str:
    return "stop" if generated.finish_reason == "cancelled" else generated.finish_reason


def _call(call: ToolCall) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.n_prompt_tokens,
        "completion_tokens": usage.n_reply_tokens,
        "total_tokens": usage.n_prompt_tokens + usage.n_reply_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.n_cached_tokens},
    }


def _sse(chunk: Json) -> bytes:
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"
