"""``POST /v1/completions``: text that goes on from a prompt as it is, without a chat's turns.

Owns the reading of its body and the wire form of its answers. Older than the chat API, but what
the field's benchmark clients drive by default.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.routing import Route

from voiceloop.backends import (
    Backends,
    ChatMessage,
    Generated,
    GenerateParams,
    TextDelta,
    TokenLogprob,
)
from voiceloop.errors import expected
from voiceloop.http.gate import Door
from voiceloop.http.generation import (
    MAX_REPLY_TOKENS,
    Answer,
    GenerationRequest,
    ReplyEvent,
    UsageTotal,
    generation_route,
    read_common,
    read_sampling,
    refuse,
    replies,
    whole,
)
from voiceloop.realtime.settings import Json

KIND = "text_completion"
DEFAULT_REPLY_TOKENS = 16  # OpenAI's own
MAX_PROMPTS = 16
MAX_LOGPROBS = 5  # OpenAI's own for this API
# Field -> the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "echo": (None, False),
    "suffix": (None, ""),
    "best_of": (None, 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(GenerationRequest):
    """One request; every prompt gets ``n`` choices, numbered prompt by prompt."""

    prompts: tuple[str, ...]


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
        **read_common(raw), prompts=_read_prompts(raw.get("prompt")), params=params
    )


def _read_prompts(value: Any) -> tuple[str, ...]:
    prompts = [value] if isinstance(value, str) else value
    if not isinstance(prompts, list) or not 0 < len(prompts) <= MAX_PROMPTS:
        raise expected("prompt", f"a text or a list of at most {MAX_PROMPTS}", value)
    for prompt in prompts:
        if not isinstance(prompt, str) or not prompt:
            raise expected("prompt", "texts that are not empty (no token ids)", prompt)
    return tuple(prompts)


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
    return [generation_route("/v1/completions", door, parse_completion, _whole, _chunks)]


async def _replies(
    backends: Backends, asked: CompletionRequest
) -> AsyncGenerator[tuple[int, ReplyEvent], None]:
    """As ``replies``, over all prompts."""
    for number, prompt in enumerate(asked.prompts):
        async with aclosing(replies(backends, asked, (ChatMessage("user", prompt),))) as events:
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
    return Answer(asked.model, "cmpl").envelope(KIND, choices) | {"usage": usage.to_wire()}


async def _chunks(backends: Backends, asked: CompletionRequest) -> AsyncGenerator[Json, None]:
    answer, usage = Answer(asked.model, "cmpl"), UsageTotal()
    offsets = [_Logprobs() for _ in range(len(asked.prompts) * asked.n)]
    async with aclosing(_replies(backends, asked)) as events:
        async for index, event in events:
            match event:
                case TextDelta():
                    logprobs = offsets[index].to_wire(event.logprobs)
                    told = None if asked.params.logprobs is None else logprobs
                    yield answer.envelope(KIND, [_choice(index, event.text, told)])
                case Generated():
                    usage.add(event.usage, is_first=index % asked.n == 0)
                    yield answer.envelope(KIND, [_choice(index, "", None, event)])
    if asked.includes_usage:
        yield answer.envelope(KIND, []) | {"usage": usage.to_wire()}


def _choice(
    index: int, words: str, logprobs: Json | None, generated: Generated | None = None
) -> Json:
    reason = None
    if generated is not None:
        reason = "length" if generated.finish_reason == "length" else "stop"
    return {"index": index, "text": words, "logprobs": logprobs, "finish_reason": reason}
