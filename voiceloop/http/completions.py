"""``POST /v1/completions``: text that goes on from a prompt as it is, without a chat's turns.

Owns the reading of its body and the wire form of its answers. Older than the chat API, but what
the field's benchmark clients drive by default.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop.backends import (
    Backends,
    ChatMessage,
    Generated,
    GenerateParams,
    TextDelta,
    TokenLogprob,
)
from voiceloop.errors import VoiceLoopError, expected
from voiceloop.http.auth import client_key, tenant_of
from voiceloop.http.gate import Door, Stream, error_response, read_json, started
from voiceloop.http.generation import LAST_SSE, Prompt, ReplyEvent, UsageTotal, replies, sse
from voiceloop.http.sampling_request import (
    MAX_REPLY_TOKENS,
    flag,
    read_n,
    read_sampling,
    read_usage_option,
    refuse,
    text,
    whole,
)
from voiceloop.realtime.settings import Json

DEFAULT_REPLY_TOKENS = 16  # OpenAI's own
MAX_PROMPTS = 16
MAX_LOGPROBS = 5  # OpenAI's own for this API
# Field -> the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "echo": (None, False),
    "suffix": (None, ""),
    "best_of": (None, 1),
}


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One request; every prompt gets ``n`` choices, numbered prompt by prompt."""

    model: str
    prompts: tuple[str, ...]
    params: GenerateParams
    n: int
    streams: bool
    includes_usage: bool
    tenant: str = ""


def parse_completion(raw: Json) -> CompletionRequest:
    """Read a body. Raises: InvalidRequest; ``param`` is the path of what is wrong."""
    refuse(raw, _UNSUPPORTED)
    limit, logprobs = raw.get("max_tokens"), raw.get("logprobs")
    n_tokens = (
        DEFAULT_REPLY_TOKENS if limit is None else whole(limit, "max_tokens", 1, MAX_REPLY_TOKENS)
    )
    params = GenerateParams(
        **read_sampling(raw, n_tokens),
        tool_choice="none",
        logprobs=None if logprobs is None else whole(logprobs, "logprobs", 0, MAX_LOGPROBS),
        is_raw=True,
    )
    return CompletionRequest(
        model=text(raw.get("model"), "model"),
        prompts=_read_prompts(raw.get("prompt")),
        params=params,
        n=read_n(raw),
        streams=flag(raw.get("stream"), "stream"),
        includes_usage=read_usage_option(raw),
    )


def _read_prompts(value: Any) -> tuple[str, ...]:
    prompts = [value] if isinstance(value, str) else value
    if not isinstance(prompts, list) or not 0 < len(prompts) <= MAX_PROMPTS:
        raise expected("prompt", f"a text or a list of at most {MAX_PROMPTS}", value)
    for prompt in prompts:
        if not isinstance(prompt, str) or not prompt:
            raise expected("prompt", "texts that are not empty (no token ids)", prompt)
    return tuple(prompts)


@dataclass(slots=True)
class _Answer:
    """One answer's identity on the wire."""

    model: str
    id: str = field(default_factory=lambda: f"cmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def envelope(self, choices: Sequence[Json]) -> Json:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }


class _Logprobs:
    """The old form of log probabilities: four lists side by side, offsets in characters."""

    def __init__(self) -> None:
        self._offset = 0

    def to_wire(self, told: Sequence[TokenLogprob]) -> Json:
        offsets = []
        for one in told:
            offsets.append(self._offset)
            self._offset += len(one.token)
        return {
            "tokens": [one.token for one in told],
            "token_logprobs": [one.logprob for one in told],
            "top_logprobs": [dict(one.top) for one in told],
            "text_offset": offsets,
        }


def completion_routes(door: Door) -> list[Route]:
    async def completions(request: Request) -> Response:
        asked = parse_completion(await read_json(request))
        asked = replace(asked, tenant=tenant_of(client_key(request.headers)))
        if asked.streams:
            pieces = await started(_stream(door.models(), asked))
            return Stream(pieces, "text/event-stream")
        return JSONResponse(await _whole(door.models(), asked))

    return [Route("/v1/completions", door.guard(completions), methods=["POST"])]


async def _replies(
    backends: Backends, asked: CompletionRequest
) -> AsyncGenerator[tuple[int, ReplyEvent], None]:
    """As ``replies``, over all prompts."""
    for number, prompt in enumerate(asked.prompts):
        given = Prompt((ChatMessage("user", prompt),), tenant=asked.tenant)
        async with aclosing(replies(backends, given, asked.params, asked.n)) as events:
            async for index, event in events:
                yield number * asked.n + index, event


async def _whole(backends: Backends, asked: CompletionRequest) -> Json:
    n_choices = len(asked.prompts) * asked.n
    texts: list[list[str]] = [[] for _ in range(n_choices)]
    told: list[list[TokenLogprob]] = [[] for _ in range(n_choices)]
    choices: list[Json] = []
    usage = UsageTotal()
    async with aclosing(_replies(backends, asked)) as events:
        async for index, event in events:
            match event:
                case TextDelta():
                    texts[index].append(event.text)
                    told[index] += event.logprobs
                case Generated():
                    usage.add(event.usage, is_first=index % asked.n == 0)
                    more = None if asked.params.logprobs is None else _Logprobs()
                    logprobs = None if more is None else more.to_wire(told[index])
                    choices.append(_choice(index, "".join(texts[index]), logprobs, event))
    return _Answer(asked.model).envelope(choices) | {"usage": usage.to_wire()}


async def _stream(backends: Backends, asked: CompletionRequest) -> AsyncGenerator[bytes, None]:
    """Server-sent events. An error before the first is raised; a later one is the last event."""
    answer, usage = _Answer(asked.model), UsageTotal()
    offsets = [_Logprobs() for _ in range(len(asked.prompts) * asked.n)]
    is_begun = False
    try:
        async with aclosing(_replies(backends, asked)) as events:
            async for index, event in events:
                match event:
                    case TextDelta():
                        logprobs = offsets[index].to_wire(event.logprobs)
                        told = None if asked.params.logprobs is None else logprobs
                        yield sse(answer.envelope([_choice(index, event.text, told)]))
                        is_begun = True
                    case Generated():
                        usage.add(event.usage, is_first=index % asked.n == 0)
                        yield sse(answer.envelope([_choice(index, "", None, event)]))
                        is_begun = True
        if asked.includes_usage:
            yield sse(answer.envelope([]) | {"usage": usage.to_wire()})
    except VoiceLoopError as error:
        if not is_begun:
            raise
        yield b"data: " + bytes(error_response(error).body) + b"\n\n"
    yield LAST_SSE


def _choice(
    index: int, words: str, logprobs: Json | None, generated: Generated | None = None
) -> Json:
    reason = None
    if generated is not None:
        reason = "length" if generated.finish_reason == "length" else "stop"
    return {"index": index, "text": words, "logprobs": logprobs, "finish_reason": reason}
