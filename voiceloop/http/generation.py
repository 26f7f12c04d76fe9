"""Replies of the language model to an HTTP request, and what both APIs tell of them.

Owns the branches that such a request opens: one for each choice, one after the other, so that the
calls beside them keep their share, and the prompt is computed once and then shared.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from uuid import uuid4

from msgspec.structs import replace

from voiceloop.backends import (
    Backends,
    ChatMessage,
    Generated,
    GenerateParams,
    TextDelta,
    Tool,
    ToolCall,
    Usage,
)
from voiceloop.errors import BackendError, InvalidRequest
from voiceloop.realtime.settings import Json

ReplyEvent = TextDelta | ToolCall | Generated


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is answered: the last message, the others being its history.

    ``tenant``: whose it is; what different ones have in the cache is not shared.
    """

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()
    tenant: str = ""


async def replies(
    backends: Backends, prompt: Prompt, params: GenerateParams, n: int
) -> AsyncGenerator[tuple[int, ReplyEvent], None]:
    """Each choice's events with its number, up to its ``Generated``; then the next choice's.

    Raises:
        BackendError: a reply did not come to its end, or was cancelled by the model.
        InvalidRequest: log probabilities were asked of a model that tells none.
    """
    for index in range(n):
        own = replace(params, seed=params.seed + index)
        async with aclosing(_reply(backends, prompt, own)) as events:
            async for event in events:
                yield index, event


async def _reply(
    backends: Backends, prompt: Prompt, params: GenerateParams
) -> AsyncGenerator[ReplyEvent, None]:
    history, last = prompt.messages[:-1], prompt.messages[-1:]
    branch = await backends.language_model.branch(
        f"http-{uuid4().hex}", history, prompt.tools, prompt.tenant
    )
    wants_logprobs = params.logprobs is not None
    try:
        branch.commit(last, params)
        async with aclosing(branch.events()) as events:  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, TextDelta) and wants_logprobs and not event.logprobs:
                    raise _silent()
                wants_logprobs = wants_logprobs and not isinstance(event, TextDelta)
                if isinstance(event, Generated) and event.finish_reason == "cancelled":
                    raise BackendError("expected a whole reply, found it cancelled by the model")
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


def sse(chunk: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


LAST_SSE = b"data: [DONE]\n\n"
