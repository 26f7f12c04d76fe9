"""A language model that says given sentences and keeps what it is shown, and a deaf recognizer.

The services behind ``benchmarks.heard_history``: what the conversation believes was heard is read
from the next request to the model; a voice in which the recognizer hears no words cuts a reply
short that is taken up again.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from voiceloop.listening.recipes.synthetic_callers import words_of

# Each word a sentence, so that the waveform's own pauses tell the words apart: in lists the voice
# leaves 50 ms, or none.
SENTENCES = (
    "Monday. Tuesday. Wednesday. Thursday. Friday. Saturday. Sunday.",
    "Apples. Pears. Plums. Grapes. Melons. Lemons. Oranges. Berries.",
    "London. Paris. Berlin. Madrid. Vienna. Dublin. Lisbon. Rome.",
    "Red. Yellow. Green. Blue. Orange. Purple. Brown. Black.",
)
KEY = re.compile(r"caller\d+ \d+ (\d+)")  # who asks, which time, and for which sentence


class Told:
    """The services. A request holds a key in its last user message, else it gets no answer."""

    def __init__(self) -> None:
        self._shown: dict[str, list[dict[str, Any]]] = {}  # last key -> messages

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/audio/transcriptions", self._transcribe, methods=["POST"]),
            ]
        )

    def remembered(self, key: str, asked_with: str) -> tuple[str, ...]:
        """The words of the reply to ``key`` as the request of ``asked_with`` shows them."""
        messages = self._shown[asked_with]
        users = [i for i, m in enumerate(messages) if m["role"] == "user"]
        at = next(i for i in users if key in _keys(messages[i]))
        until = next((i for i in users if i > at), len(messages))
        said = [m["content"] or "" for m in messages[at:until] if m["role"] == "assistant"]
        return words_of(" ".join(said))

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "told"}]})

    async def _transcribe(self, request: Request) -> Response:
        return JSONResponse({"text": ""})

    async def _chat(self, request: Request) -> Response:
        messages = (await request.json())["messages"]
        keys = _keys(messages[-1])
        if not keys:
            return StreamingResponse(_stream(""), media_type="text/event-stream")
        self._shown[keys[-1]] = messages
        sentence = SENTENCES[int(keys[-1].split()[-1])]
        return StreamingResponse(_stream(sentence), media_type="text/event-stream")


def _keys(message: dict[str, Any]) -> list[str]:
    return [found.group() for found in KEY.finditer(str(message["content"]))]


async def _stream(text: str) -> AsyncIterator[str]:
    for word in re.findall(r"\S+\s*", text):
        choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
        yield f"data: {json.dumps({'id': 'told', 'choices': [choice]})}\n\n"
    done = {"index": 0, "delta": {}, "finish_reason": "stop"}
    yield f"data: {json.dumps({'id': 'told', 'choices': [done]})}\n\ndata: [DONE]\n\n"
