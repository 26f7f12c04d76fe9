"""``POST /v1/chat/completions``: replies of the language model, whole or streamed.

Owns the route and the wire form of its answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from starlette.routing import Route

from voiceloop.backends import Backends, Generated, TextDelta, TokenLogprob, ToolCall
from voiceloop.http.chat_request import ChatRequest, parse_chat
from voiceloop.http.gate import Door
from voiceloop.http.generation import (
    Answer,
    UsageTotal,
    generation_route,
    replies,
)
from voiceloop.realtime.settings import Json

PREFIX = "chatcmpl"  # of an answer's id


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
    return [generation_route("/v1/chat/completions", door, parse_chat, _whole, _chunks)]


async def _whole(backends: Backends, asked: ChatRequest) -> Json:
    choices = [_Choice(index) for index in range(asked.n)]
    usage = UsageTotal()
    async with aclosing(replies(backends, asked, asked.messages, asked.tools)) as events:
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
    answer = Answer(asked.model, PREFIX)
    return answer.envelope("chat.completion", found) | {"usage": usage.to_wire()}


async def _chunks(backends: Backends, asked: ChatRequest) -> AsyncGenerator[Json, None]:
    answer, usage = Answer(asked.model, PREFIX), UsageTotal()

    def chunk(index: int, delta: Json, **more: object) -> Json:
        choice = {"index": index, "delta": delta, "finish_reason": None, **more}
        return answer.envelope("chat.completion.chunk", [choice])

    begun = -1  # the last choice that has its first chunk
    n_calls = 0
    async with aclosing(replies(backends, asked, asked.messages, asked.tools)) as events:
        async for index, event in events:
            if begun < index:
                yield chunk(index, {"role": "assistant", "content": ""})
                begun, n_calls = index, 0
            match event:
                case TextDelta():
                    told = {"content": [*map(_logprob, event.logprobs)], "refusal": None}
                    more = {} if asked.params.logprobs is None else {"logprobs": told}
                    yield chunk(index, {"content": event.text}, **more)
                case ToolCall():
                    if asked.calls_at_once or not n_calls:
                        call = {"index": n_calls, **_call(event)}
                        yield chunk(index, {"tool_calls": [call]})
                    n_calls += 1
                case Generated():
                    usage.add(event.usage, is_first=index == 0)
                    yield chunk(index, {}, finish_reason=event.finish_reason)
    if asked.includes_usage:
        yield answer.envelope("chat.completion.chunk", []) | {"usage": usage.to_wire()}


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
