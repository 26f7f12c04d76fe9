"""``POST /v1/chat/completions``: replies of the language model, whole or streamed.

Owns the route, the branches that a request opens, one for each choice, and the wire form of its
answers.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from uuid import uuid4

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop.access.keys import client_key, tenant_of
from voiceloop.admission.allowance import Allowance
from voiceloop.backends import (
    OWN_MODEL,
    Backends,
    Branch,
    ChatMessage,
    Generated,
    GenerateParams,
    LanguageModel,
    TextDelta,
    TokenLogprob,
    ToolCall,
    Usage,
)
from voiceloop.errors import BackendError, InvalidRequest, VoiceLoopError
from voiceloop.http.body import read_json
from voiceloop.http.chat_request import ChatRequest, parse_chat
from voiceloop.http.gate import MAX_JSON_BYTES, Door, Stream, error_response, started
from voiceloop.realtime.settings import Json

ReplyEvent = TextDelta | ToolCall | Generated


def chat_routes(door: Door, agents: Sequence[str]) -> list[Route]:
    """agents: names of those that may be asked for as models, or by the address."""

    async def generate(request: Request) -> Response:
        asked = parse_chat(await read_json(request, MAX_JSON_BYTES))
        key = client_key(request.headers)
        tenant = tenant_of(key)
        allowance = door.quotas.allowance("" if door.keys.is_open else tenant)
        asked = with_fields(asked, tenant=tenant, allowance=allowance, observe=door.observe_usage)
        agent = request.query_params.get("agent") or (asked.model if asked.model in agents else "")
        models = door.models(door.keys.check(key).named(agent) if agent else "")
        if asked.streams:
            pieces = await started(_server_sent(_chunks(models, asked)))
            return Stream(pieces, "text/event-stream")
        return JSONResponse(await _whole(models, asked))

    return [Route("/v1/chat/completions", door.guard(generate), methods=["POST"])]


# --- the replies ----------------------------------------------------------------------------------


async def replies(
    backends: Backends, asked: ChatRequest
) -> AsyncGenerator[tuple[int, ReplyEvent], None]:
    """Each choice's events with its number, up to its ``Generated``; then the next choice's.

    So the calls beside them keep their share, and the prompt is computed once and then shared.

    Raises:
        BackendError: a reply did not come to its end, or was cancelled by the model.
        InvalidRequest: log probabilities were asked of a model that tells none.
    """
    for index in range(asked.n):
        params = replace(asked.params, seed=asked.params.seed + index)
        branch_id, n_written = f"http-{uuid4().hex}", 0
        name, model = _model_for(backends, asked.allowance)
        try:
            branch = await model.branch(branch_id, asked.messages[:-1], asked.tools, asked.tenant)
            async with aclosing(_reply(branch, asked.messages[-1:], params)) as events:
                async for event in events:
                    if isinstance(event, Generated):
                        asked.observe(event.usage, name)
                        n_written = event.usage.n_reply_tokens
                    elif isinstance(event, TextDelta):
                        n_written += 1  # a client may leave before it ends
                    yield index, event
        finally:
            backends.end_call(branch_id)
            if backends.cascade is not None and backends.cascade.large == name:
                asked.allowance.take_large_tokens(n_written)


def _model_for(backends: Backends, allowance: Allowance) -> tuple[str, LanguageModel]:
    """Return the server's own model and its name; or a cascade's small one, where the key has spent
    what the large one may write, as in calls.
    """
    pair = backends.cascade
    if pair is not None and pair.large == OWN_MODEL and not allowance.may_use_large():
        small = backends.models[pair.small]
        if small.is_there():
            return pair.small, small.model
    return OWN_MODEL, backends.language_model


async def _reply(
    branch: Branch, turn: tuple[ChatMessage, ...], params: GenerateParams
) -> AsyncGenerator[ReplyEvent, None]:
    wants_logprobs = params.logprobs is not None
    try:
        branch.commit(turn, params)
        async with aclosing(branch.events()) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, TextDelta) and wants_logprobs and not event.logprobs:
                    raise _silent()
                wants_logprobs = wants_logprobs and not isinstance(event, TextDelta)
                if isinstance(event, Generated) and event.finish_reason == "cancelled":
                    raise BackendError("The model cancelled its reply.")
                if isinstance(event, Generated) and event.finish_reason == "malformed_call":
                    raise BackendError("The model broke off a tool call.")
                if isinstance(event, TextDelta | ToolCall | Generated):
                    yield event
                if isinstance(event, Generated):
                    return
    finally:
        await branch.close()
    raise BackendError("The model stopped without ending its reply.")


def _silent() -> InvalidRequest:
    return InvalidRequest(
        "logprobs: expected a language model that tells them, found a remote one that does not",
        param="logprobs",
        code="unsupported_parameter",
    )


class UsageTotal:
    """Tokens over all choices; the prompt of each counts once."""

    def __init__(self) -> None:
        self._prompt = Usage()
        self._n_reply_tokens = 0

    def add(self, usage: Usage, *, is_first: bool = True) -> None:
        if is_first:
            self._prompt = Usage(
                n_prompt_tokens=self._prompt.n_prompt_tokens + usage.n_prompt_tokens,
                n_cached_tokens=self._prompt.n_cached_tokens + usage.n_cached_tokens,
            )
        self._n_reply_tokens += usage.n_reply_tokens

    def to_wire(self) -> Json:
        n_prompt, n_reply = self._prompt.n_prompt_tokens, self._n_reply_tokens
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_reply,
            "total_tokens": n_prompt + n_reply,
            "prompt_tokens_details": {"cached_tokens": self._prompt.n_cached_tokens},
        }


# --- the answer -----------------------------------------------------------------------------------


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


def _envelope(model: str) -> Callable[[str, list[Json]], Json]:
    """One answer's identity on the wire around its choices."""
    answer_id, created = f"chatcmpl-{uuid4().hex}", int(time.time())
    return lambda kind, choices: {
        "id": answer_id, "object": kind, "created": created, "model": model, "choices": choices,
    }  # fmt: skip


async def _whole(backends: Backends, asked: ChatRequest) -> Json:
    choices = [_Choice(index) for index in range(asked.n)]
    usage = UsageTotal()
    async with aclosing(replies(backends, asked)) as events:
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
    return _envelope(asked.model)("chat.completion", found) | {"usage": usage.to_wire()}


async def _chunks(backends: Backends, asked: ChatRequest) -> AsyncGenerator[Json, None]:
    envelope, usage = _envelope(asked.model), UsageTotal()

    def chunk(index: int, delta: Json, **more: object) -> Json:
        choice = {"index": index, "delta": delta, "finish_reason": None, **more}
        return envelope("chat.completion.chunk", [choice])

    begun = -1  # the last choice that has its first chunk
    n_calls = 0
    async with aclosing(replies(backends, asked)) as events:
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
        yield envelope("chat.completion.chunk", []) | {"usage": usage.to_wire()}


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


async def _server_sent(chunks: AsyncGenerator[Json, None]) -> AsyncGenerator[bytes, None]:
    """Server-sent events. An error before the first is raised; a later one is the last event."""
    is_begun = False
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"
                is_begun = True
    except VoiceLoopError as error:
        if not is_begun:
            raise
        yield b"data: " + bytes(error_response(error).body) + b"\n\n"
    yield b"data: [DONE]\n\n"
