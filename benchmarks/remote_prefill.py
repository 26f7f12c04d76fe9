"""What reading ahead spares a caller of a remote model: ``python -m benchmarks.remote_prefill``.

A caller begins to speak, and some seconds later the reply is asked for: after nothing was staged,
after the history and the words were, and, as the floor, of a prompt that the service has just read.
Of the time to the first token that the first has above the floor, the share that the second spares
is what was hidden. All three take turns. The service is a stub that sleeps 150 ms over its prompt,
or any (``--url``). Each conversation begins like no other, so that only this one's own requests are
in the service's prefix cache.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from itertools import count
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import Bar, interleaved
from benchmarks.harness.serving import served
from clients.bench.prompt import prompt_of
from clients.report.percentiles import Distribution
from voiceloop.backends import ChatMessage, Generated, GenerateParams
from voiceloop.remote.language import RemoteBranch, RemoteLanguageModel
from voiceloop.remote.service import RemoteService

VARIANTS = ("as it comes", "read ahead", "read before")
STUB_PREFILL_MS, STUB_BASE_MS = 150.0, 5.0
LEAST_HIDDEN = 80.0
CHARACTERS_A_TOKEN = 4.0  # of English, by the tokenizers in use
WORDS = "I would like a table for two at seven tonight please".split()
REPLY = GenerateParams(max_tokens=8)


class Stub:
    """A chat service with a prefix cache: how long it reads all of a prompt, and writes a word."""

    def __init__(
        self, prefill_ms: float = STUB_PREFILL_MS, token_ms: float = 0.0, reply: str = "Yes."
    ) -> None:
        self._prefill_ms, self._token_ms, self._reply = prefill_ms, token_ms, reply
        self._read: list[str] = []

    async def answer(self, request: Request) -> StreamingResponse:
        body = await request.json()
        prompt = "".join(f"<{m['role']}>{m['content']}" for m in body["messages"])
        n_cached = max((len(os.path.commonprefix([prompt, one])) for one in self._read), default=0)
        return StreamingResponse(self._lines(prompt, n_cached), media_type="text/event-stream")

    async def _lines(self, prompt: str, n_cached: int) -> AsyncIterator[bytes]:
        share = 1 - n_cached / len(prompt)
        await asyncio.sleep((STUB_BASE_MS + share * self._prefill_ms) / 1000)
        self._read.append(prompt)
        *words, last = re.findall(r"\S+\s*", self._reply)
        for word in words:
            yield _event({"delta": {"content": word}, "finish_reason": None})
            await asyncio.sleep(self._token_ms / 1000)
        read = round(len(prompt) / CHARACTERS_A_TOKEN), round(n_cached / CHARACTERS_A_TOKEN)
        usage = {
            "prompt_tokens": read[0],
            "prompt_tokens_details": {"cached_tokens": read[1]},
            "completion_tokens": len(words) + 1,
        }
        yield _event({"delta": {"content": last}, "finish_reason": "stop"}, usage=usage)
        yield b"data: [DONE]\n\n"


def _event(choice: dict[str, Any], **told: Any) -> bytes:
    return f"data: {json.dumps({'choices': [choice], **told})}\n\n".encode()


@asynccontextmanager
async def served_stub() -> AsyncIterator[str]:
    routes = [Route("/v1/chat/completions", Stub().answer, methods=["POST"])]
    async with served(Starlette(routes=routes)) as url:
        yield f"{url}/v1"


async def ttft_ms(branch: RemoteBranch, text: str) -> float:
    branch.commit((ChatMessage("user", text),), REPLY)
    async for event in branch.events():
        if isinstance(event, Generated):
            return event.usage.ttft_ms
    raise AssertionError("unreachable: a branch ends with its reply or an error")


async def measure(
    url: str | None, model_name: str, n_repeats: int, n_tokens: int, speech_s: float, seed: int,
    found: dict[str, list[float]],
) -> None:  # fmt: skip
    """Fill ``found``, by variant. Raises: BackendError."""
    async with served_stub() if url is None else _as_it_is(url) as address:
        service = RemoteService(address, model=model_name, silence_s=60.0)
        try:
            await service.start()
            # One model each, as a server has: what one learns of the service is not the other's.
            models = {
                name: RemoteLanguageModel(service, reads_ahead=name == "read ahead")
                for name in VARIANTS
            }
            seeds = count(1_000_003 * seed)
            for round_ in interleaved(VARIANTS, n_repeats, warm_up=1):
                text = prompt_of(n_tokens, next(seeds))
                history = (ChatMessage("system", text),)
                taken_ms = await _turn(models[round_.variant], round_.variant, history, speech_s)
                if not round_.is_warm_up:
                    found[round_.variant].append(taken_ms)
        finally:
            await service.close()


async def _turn(
    model: RemoteLanguageModel, variant: str, history: tuple[ChatMessage, ...], speech_s: float
) -> float:
    """One caller's turn: words as they come, then the reply."""
    if variant == "read before":
        before = await model.branch("before", history)
        await ttft_ms(before, " ".join(WORDS))
        await before.close()
    branch = await model.branch("branch", history)
    for n_words in range(len(WORDS) + 1):
        branch.stage(n_words + 1, " ".join(WORDS[:n_words]))
        await asyncio.sleep(speech_s / len(WORDS))
    taken_ms = await ttft_ms(branch, " ".join(WORDS))
    await branch.close()
    return taken_ms


@asynccontextmanager
async def _as_it_is(url: str) -> AsyncIterator[str]:
    yield url


def hidden_percent(found: dict[str, list[float]]) -> float | None:
    """Of the median wait above the floor, what was spared; None where there was no such wait."""
    medians = [Distribution.of(found[name], 3).p50 for name in VARIANTS]
    if None in medians:
        return None
    cold, ahead, floor = (value or 0.0 for value in medians)
    return 100.0 * (cold - ahead) / (cold - floor) if cold > floor else None


def main() -> int:
    command = Benchmark("remote_prefill", __doc__ or "", seed="the prompts")
    add = command.parser.add_argument
    add("--url", help="a chat service, as http://host:8000/v1 (default: the stub)")
    add("--model", default="", help="its model (default: the only one it lists)")
    command.count("--repeats", 20, "of each variant")
    command.count("--prompt-tokens", 1000, "of each conversation", at_least=20)
    command.amount("--speech", 1.5, "seconds", "for which the caller speaks", above=0.0)
    chosen = command.parse()
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    work = measure(
        chosen.url, chosen.model, chosen.repeats, chosen.prompt_tokens, chosen.speech, chosen.seed,
        found,
    )  # fmt: skip
    command.measure(work)
    if not all(found.values()):
        return command.without_results("the service gave no reply")
    hidden = hidden_percent(found)
    bars = [Bar("reading hidden at commit", hidden, LEAST_HIDDEN, "%", at_least=True)]
    figures: dict[str, Any] = {
        name: asdict(Distribution.of(values, 2)) for name, values in found.items()
    }
    settings = {
        "url": chosen.url or "stub",
        "prompt_tokens": chosen.prompt_tokens,
        "speech_s": chosen.speech,
    }
    for name, row in figures.items():
        print(f"{name:<12} ttft p50 {row['p50']:8.1f}  p95 {row['p95']:8.1f} ms  (n {row['n']})")
    return command.finish(settings, bars, ttft_ms=figures)


if __name__ == "__main__":
    sys.exit(run(main))
