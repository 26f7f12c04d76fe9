"""A chat request's fields that bound its sampling, its replies, and the form of their figures.

Owns the branches that such a request opens: one for each choice, one after the other, so that the
calls beside them keep their share, and the prompt is computed once and then shared. What the engine
cannot do is refused by name rather than ignored: an answer that only looks as asked for would be
worse than none. Fields that change nothing of the answer (``user``, ``metadata``, ``store``) are
accepted. ``top_k``, ``ignore_eos`` and ``min_tokens`` are no fields of OpenAI's but of the field's
benchmark clients.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from typing import Any, TypeVar
from uuid import uuid4

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from voiceloop.access.keys import client_key, tenant_of
from voiceloop.backends import (
    Backends,
    Branch,
    ChatMessage,
    Generated,
    GenerateParams,
    TextDelta,
    Tool,
    ToolCall,
    Usage,
)
from voiceloop.errors import BackendError, InvalidRequest, VoiceLoopError, expected
from voiceloop.http.gate import ANSWER_S, Door, Stream, error_response, read_json, started
from voiceloop.realtime.session_update import read_number, read_text
from voiceloop.realtime.settings import Json

MAX_REPLY_TOKENS = 4096
MAX_STOPS = 4
MAX_CHOICES = 8
MAX_LOGPROBS = 20
# Field -> the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "logit_bias": (None, {}),
    "repetition_penalty": (None, 1),
}

ReplyEvent = TextDelta | ToolCall | Generated
RequestT = TypeVar("RequestT", bound="GenerationRequest")

# --- the request ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What both APIs ask for; ``n`` choices of each prompt. ``observe``: told of each answer."""

    model: str
    params: GenerateParams
    n: int
    streams: bool
    includes_usage: bool
    tenant: str = ""
    observe: Callable[[Usage], None] = lambda usage: None


def refuse(raw: Json, unsupported: dict[str, tuple[Any, ...]]) -> None:
    """Raises: InvalidRequest where a field asks for what there is not."""
    for name, nothing in unsupported.items():
        if raw.get(name) not in nothing:
            raise InvalidRequest(
                f"{name}: expected nothing, for this server cannot do it, found a value",
                param=name,
                code="unsupported_parameter",
            )


def read_sampling(raw: Json, limit: int) -> dict[str, Any]:
    """Fields of ``GenerateParams``; ``limit`` is the most tokens. Raises: InvalidRequest."""
    refuse(raw, _UNSUPPORTED)
    seed = raw.get("seed")
    ignores_eos = flag(raw.get("ignore_eos"), "ignore_eos")
    if not ignores_eos and raw.get("min_tokens") not in (None, 0):
        raise expected("min_tokens", "0, or ignore_eos with it", raw["min_tokens"])
    temperature = number(raw.get("temperature"), "temperature", 0.0, 2.0, 1.0)
    top_p = number(raw.get("top_p"), "top_p", 0.0, 1.0, 1.0)
    return {
        "max_tokens": limit,
        # The likeliest token alone is what a top_p of 0 leaves.
        "temperature": temperature if top_p > 0 else 0.0,
        "top_p": top_p or 1.0,
        "top_k": 0 if raw.get("top_k") in (None, -1) else whole(raw["top_k"], "top_k", 0, 2**31),
        # Without a seed two answers may differ, as at the API that clients know.
        "seed": secrets.randbits(31) if seed is None else whole(seed, "seed", -(2**63), 2**63 - 1),
        "stop": _read_stop(raw.get("stop")),
        "presence_penalty": number(raw.get("presence_penalty"), "presence_penalty", -2, 2, 0),
        "frequency_penalty": number(raw.get("frequency_penalty"), "frequency_penalty", -2, 2, 0),
        "ignore_eos": ignores_eos,
        "is_batch": True,
        "within_ms": 1000 * ANSWER_S,
    }


def read_common(raw: Json) -> dict[str, Any]:
    """The fields of ``GenerationRequest`` but its ``params``. Raises: InvalidRequest."""
    options = raw.get("stream_options") or {}
    if not isinstance(options, dict):
        raise expected("stream_options", "an object", options)
    includes_usage = flag(options.get("include_usage"), "stream_options.include_usage")
    return {
        "model": read_text(raw.get("model"), "model"),
        "n": 1 if raw.get("n") is None else whole(raw["n"], "n", 1, MAX_CHOICES),
        "streams": flag(raw.get("stream"), "stream"),
        "includes_usage": includes_usage,
    }


def _read_stop(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise expected("stop", f"a string or at most {MAX_STOPS} of them", value)
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise expected("stop", "strings that are not empty", stop)
    return tuple(stops)


def flag(value: Any, where: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise expected(where, "true or false", value)
    return bool(value)


def whole(value: Any, where: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise expected(where, f"a whole number from {low} to {high}", value)
    return value


def number(value: Any, where: str, low: float, high: float, default: float) -> float:
    return default if value is None else read_number(value, where, low, high)


# --- the replies ----------------------------------------------------------------------------------


async def replies(
    backends: Backends,
    asked: GenerationRequest,
    messages: tuple[ChatMessage, ...],
    tools: tuple[Tool, ...] = (),
) -> AsyncGenerator[tuple[int, ReplyEvent], None]:
    """Each choice's events with its number, up to its ``Generated``; then the next choice's.

    messages: the last is what is answered, the others are its history.

    Raises:
        BackendError: a reply did not come to its end, or was cancelled by the model.
        InvalidRequest: log probabilities were asked of a model that tells none.
    """
    for index in range(asked.n):
        params = replace(asked.params, seed=asked.params.seed + index)
        branch = await backends.language_model.branch(
            f"http-{uuid4().hex}", messages[:-1], tools, asked.tenant
        )
        async with aclosing(_reply(branch, messages[-1:], params)) as events:
            async for event in events:
                if isinstance(event, Generated):
                    asked.observe(event.usage)
                yield index, event


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
                    raise BackendError("expected a whole reply, found it cancelled by the model")
                if isinstance(event, Generated) and event.finish_reason == "malformed_call":
                    raise BackendError("expected a whole tool call, found it broken off")
                if isinstance(event, TextDelta | ToolCall | Generated):
                    yield event
                if isinstance(event, Generated):
                    return
    finally:
        await branch.close()
    raise BackendError("expected the reply to end, found that the model stopped without saying so")


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
class Answer:
    """One answer's identity on the wire; its ``id`` begins with ``prefix``."""

    model: str
    prefix: str
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = f"{self.prefix}-{uuid4().hex}"

    def envelope(self, kind: str, choices: Sequence[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }


def generation_route(
    path: str,
    door: Door,
    parse: Callable[[Json], RequestT],
    whole_answer: Callable[[Backends, RequestT], Awaitable[Json]],
    chunks: Callable[[Backends, RequestT], AsyncGenerator[Json, None]],
) -> Route:
    """A request at ``path``, answered whole or by ``chunks`` as it asks."""

    async def generate(request: Request) -> Response:
        asked = parse(await read_json(request))
        tenant = tenant_of(client_key(request.headers))
        asked = with_fields(asked, tenant=tenant, observe=door.observe_usage)
        if asked.streams:
            pieces = await started(_server_sent(chunks(door.models(), asked)))
            return Stream(pieces, "text/event-stream")
        return JSONResponse(await whole_answer(door.models(), asked))

    return Route(path, door.guard(generate), methods=["POST"])


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
