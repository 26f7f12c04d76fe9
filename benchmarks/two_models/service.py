"""A large model behind a service on the loopback: late, unsteady, and cut where it is told to be.

It answers each request with the next of its replies, a word at a time. `cut_after` words of a reply
the connection is dropped, as a link that fails drops it.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from audio.frames import RECOGNIZER_HZ
from benchmarks.harness import serving

WAV_HEADER = 44  # bytes
# As large models begin: some repeat what an opener has said, most do not.
REPLIES = (
    "We close at six on Saturday, and the kitchen closes half an hour before that.",
    "Let me check. A large cappuccino is four dollars and a quarter, with oat milk or without.",
    "The muffins are fresh this morning, and there are plenty of them left today.",
    "One moment. You find us near the library, on the corner across from the station.",
    "Let me have a look. Dogs are welcome, and there is a bowl of water at the door.",
)
GOES_ON = ("And there is more to say about that, which I am glad to do, if you like.",)


@dataclass(slots=True)
class LargeModel:
    """ttft_ms, jitter_ms: of the first word, the second a standard deviation. cut_after: words."""

    ttft_ms: float
    jitter_ms: float = 0.0
    token_ms: float = 15.0
    replies: Sequence[str] = REPLIES
    cut_after: int | None = None
    seed: int = 0
    n_asked: int = 0
    n_behind: int = 0  # requests that go on behind words
    sounds: list[list[float]] = field(default_factory=list)  # seconds of each part, of each reply
    cut_at: list[float] = field(default_factory=list)  # monotonic seconds

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        if body.get("max_tokens") == 1:  # it is only made to read
            return StreamingResponse(_lines(["."]), media_type="text/event-stream")
        asked = "".join(str(message["content"]) for message in body["messages"])
        self.n_behind += "You have begun to answer" in asked or "continue_final_message" in body
        self.sounds.append(_seconds(body["messages"]))
        reply = self.replies[self.n_asked % len(self.replies)]
        self.n_asked += 1
        return StreamingResponse(self._words(reply), media_type="text/event-stream")

    async def _words(self, reply: str) -> AsyncIterator[bytes]:
        drawn = random.Random(f"{self.seed} {self.n_asked}").gauss(0.0, self.jitter_ms)
        await asyncio.sleep(max(0.0, self.ttft_ms + drawn) / 1000.0)
        for index, word in enumerate(reply.split()):
            if index == self.cut_after:
                self.cut_at.append(time.monotonic())
                raise ConnectionResetError("the link is cut")
            yield _event(word if index == 0 else f" {word}")
            await asyncio.sleep(self.token_ms / 1000.0)
        yield _event("", "stop")
        yield b"data: [DONE]\n\n"


def _seconds(messages: Sequence[dict[str, Any]]) -> list[float]:
    """Of each `input_audio` in the last message; one elsewhere counts as none at all."""
    parts = [each["content"] for each in messages if isinstance(each["content"], list)]
    if len(parts) != 1 or parts[0] is not messages[-1]["content"]:
        return []
    sound = [part["input_audio"]["data"] for part in parts[0] if part["type"] == "input_audio"]
    return [(len(b64decode(data)) - WAV_HEADER) / 2 / RECOGNIZER_HZ for data in sound]


async def _lines(words: Sequence[str]) -> AsyncIterator[bytes]:
    for word in words:
        yield _event(word)
    yield _event("", "stop")
    yield b"data: [DONE]\n\n"


def _event(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


@asynccontextmanager
async def served(model: LargeModel) -> AsyncIterator[str]:
    """Its address."""

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "large", "object": "model"}]})

    routes = [
        Route("/v1/models", models),
        Route("/v1/chat/completions", model.answer, methods=["POST"]),
    ]
    async with serving.served(Starlette(routes=routes)) as url:
        yield f"{url}/v1"
