"""Requests to one chat endpoint: so many, so many of them at a time, and what they amount to.

A closed loop: each of ``at_once`` askers sends its next request when its last reply has ended. One
request before them opens the connection and is not counted.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from clients.bench.chat_endpoint import ChatEndpoint, ChatSample
from clients.bench.prompt import prompt_of
from clients.errors import EndpointError
from clients.report.percentiles import Distribution


@dataclass(frozen=True, slots=True)
class ChatLoad:
    """One setting. ``is_same_prompt``: all prompts alike, so that a prefix cache serves them."""

    n_requests: int = 20
    at_once: int = 1
    prompt_tokens: int = 200
    max_tokens: int = 64
    is_same_prompt: bool = False


@dataclass(slots=True)
class ChatResult:
    """The figures of one setting. ``failed``: why, one each. ``elapsed_s``: without the uncounted
    request.
    """

    load: ChatLoad
    samples: list[ChatSample] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0

    @property
    def label(self) -> str:
        return f"{self.load.prompt_tokens} tokens, {self.load.at_once} at once"


async def run_chat_load(
    endpoint: ChatEndpoint,
    result: ChatResult,
    *,
    first_seed: int = 0,
    told: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Fill ``result``, which is what there is of it after ctrl-C. ``told``: of each reply's end.

    Raises:
        EndpointError: the request before the counted ones failed; so would they.
    """
    load = result.load

    def prompt(number: int) -> str:
        return prompt_of(load.prompt_tokens, first_seed + (0 if load.is_same_prompt else number))

    await endpoint.ask(prompt(0), max_tokens=1)
    numbers = iter(range(1, load.n_requests + 1))  # shared: each asker takes the next
    started_s = clock()

    async def asker() -> None:
        for number in numbers:
            try:
                result.samples.append(await endpoint.ask(prompt(number), load.max_tokens))
            except EndpointError as error:
                result.failed.append(str(error))
            result.elapsed_s = clock() - started_s
            told()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(load.at_once, load.n_requests)):
            group.create_task(asker())


def chat_figures(result: ChatResult) -> dict[str, Any]:
    """JSON values of one setting; times in ms."""
    samples = result.samples
    per_token = [one.ms_per_token for one in samples if one.ms_per_token]
    cached = [one.n_cached_tokens for one in samples if one.n_cached_tokens is not None]
    n_tokens = sum(one.n_tokens for one in samples)
    seconds = max(1e-9, result.elapsed_s)
    return {
        **asdict(result.load),
        "answered": len(samples),
        "failed": len(result.failed),
        "failures": dict(Counter(result.failed)),
        "prompt_tokens_counted": asdict(_whole([one.n_prompt_tokens for one in samples])),
        "cached_tokens": asdict(_whole(cached)),
        "reply_tokens": asdict(_whole([one.n_tokens for one in samples])),
        "ttft_ms": asdict(Distribution.of([one.ttft_ms for one in samples], 2)),
        "total_ms": asdict(Distribution.of([one.total_ms for one in samples], 2)),
        "ms_per_token": asdict(Distribution.of(per_token, 3)),
        "tokens_per_s": asdict(Distribution.of([1000.0 / ms for ms in per_token], 1)),
        "all_tokens_per_s": round(n_tokens / seconds, 1),
        "requests_per_s": round(len(samples) / seconds, 3),
        "elapsed_s": round(result.elapsed_s, 3),
    }


def _whole(values: list[int]) -> Distribution:
    return Distribution.of([float(value) for value in values])
