"""A speech-to-speech server that speaks the Realtime protocol and has no manners, scripted.

It ignores that it is interrupted, sends its sound faster than it plays, and turns each word into a
tone whose length is known, so that what was heard of a reply can be told from its sound. A client
that leaves turn detection on is answered after half a second of silence, as OpenAI's servers do.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from tests.fakes import tone

RATE_HZ = 24_000
MS_PER_LETTER = 70.0
LOUD = 300.0  # of a sample, for a voice
Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A reply that is a call of a tool."""

    name: str
    arguments: str = "{}"


Scripted = str | Call


def word_ms(word: str) -> float:
    return MS_PER_LETTER * sum(map(str.isalnum, word))


def heard_words(text: str, ms: float) -> int:
    """How many words of a reply sound in so much of it, at least by half."""
    ends = list(itertools.accumulate(map(word_ms, text.split())))
    return sum(end - word_ms(word) / 2 <= ms for end, word in zip(ends, text.split(), strict=True))


@dataclass(slots=True)
class OmniServer:
    """replies: in turn. speed: times real time. leads: all text before the sound; else each word
    comes with its own. drop_after: of a reply so many words, then the connection; fail_after: then
    an error and nothing more. names_event: errors tell which event they are of. says_session: what
    of the session it changes by itself. cancels: whether it stops where it is told to.
    """

    replies: Sequence[Scripted] = ("I am a speaker who will not be stopped by anybody at all.",)
    first_ms: float = 0.0
    speed: float = 20.0
    leads: bool = True
    cancels: bool = False
    has_transcript: bool = True
    drop_after: int | None = None
    fail_after: int | None = None
    names_event: bool = True
    takes_sound: bool = True
    refuses: str = ""  # a code, of every response
    silence_ms: float = 500.0  # that ends a turn, where the server detects it
    detects_always: bool = False  # turns, whatever the session says
    says_session: Event = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    url: str = ""
    asked: list[Event] = field(default_factory=list)  # each `response.create`
    said: list[str] = field(default_factory=list)  # the types of all events
    errors: list[str] = field(default_factory=list)
    truncated: list[Event] = field(default_factory=list)
    first_at: list[float] = field(default_factory=list)  # of each reply, when its sound left
    asked_at: list[float] = field(default_factory=list)
    sessions: list[Event] = field(default_factory=list)
    queries: list[dict[str, list[str]]] = field(default_factory=list)
    conversation: list[Event] = field(default_factory=list)  # of the newest connection
    line: _Line = field(init=False)  # the newest connection
    n_connections: int = 0
    n_replies: int = 0

    async def handle(self, socket: ServerConnection) -> None:
        self.n_connections += 1
        assert socket.request is not None
        self.queries.append(parse_qs(urlsplit(socket.request.path).query))
        line = self.line = _Line(self, socket)
        self.conversation = line.items
        try:
            await line.run()
        except ConnectionClosed:
            pass
        finally:
            line.end()

    async def complain(self) -> None:
        """An error of no event on the newest connection."""
        await self.line._error({}, "busy")

    def texts(self) -> list[tuple[str, str]]:
        """Role and text of the newest conversation; of spoken turns of the caller "sound"."""
        return [(item["role"], item["text"]) for item in self.conversation]


class _Line:
    """One connection."""

    def __init__(self, server: OmniServer, socket: ServerConnection) -> None:
        self.server, self.socket = server, socket
        self.items: list[Event] = []
        self._buffer = b""
        self._ids = itertools.count(1)
        self._session: Event = {"model": "omni", "audio": {"input": {}, "output": {}}}
        self._speaking: asyncio.Task[None] | None = None
        self._detects = True
        self._quiet_ms = 0.0
        self._was_loud = False

    async def run(self) -> None:
        await self.tell("session.created", session=self._session)
        async for frame in self.socket:
            event = json.loads(frame)
            self.server.said.append(event["type"])
            await self.take(event)

    def end(self) -> None:
        if self._speaking is not None:
            self._speaking.cancel()

    async def tell(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, "event_id": "e", **fields}))

    async def take(self, event: Event) -> None:
        match event["type"]:
            case "session.update":
                self.server.sessions.append(event["session"])
                told = event["session"]
                is_on = told["audio"]["input"].get("turn_detection", 1) is not None
                self._detects = is_on or self.server.detects_always
                self._session = {"model": "omni", **told, **self.server.says_session}
                await self.tell("session.updated", session=self._session)
            case "input_audio_buffer.append":
                await self._hear(base64.b64decode(event["audio"]))
            case "input_audio_buffer.clear":
                self._buffer = b""
            case "input_audio_buffer.commit" if self.server.takes_sound:
                await self._commit()
            case "input_audio_buffer.commit":
                await self._error(event, "unsupported_content_type")
            case "conversation.item.create":
                item = event["item"]
                text = "".join(part["text"] for part in item.get("content", ()))
                text = text or item.get("output") or item.get("name", "")
                role = item.get("role") or item["type"]
                self.items.append({"id": item["id"], "role": role, "text": text})
            case "conversation.item.delete":
                await self._of(event, lambda item: self.items.remove(item))
            case "conversation.item.truncate":
                self.server.truncated.append(event)
                await self._of(event, lambda item: item.update(cut_ms=event["audio_end_ms"]))
            case "response.create":
                await self._ask(event)
            case "response.cancel" if self.server.cancels and self._speaking is not None:
                self._speaking.cancel()
                self._speaking = None
                await self.tell("response.done", response={"id": self._response_id,
                                                           "status": "cancelled"})  # fmt: skip

    async def _of(self, event: Event, act: Callable[[Event], Any]) -> None:
        found = next((item for item in self.items if item["id"] == event["item_id"]), None)
        if found is None:
            await self._error(event, "item_not_found")
        else:
            act(found)

    async def _error(self, event: Event, code: str) -> None:
        self.server.errors.append(code)
        event_id = event.get("event_id") if self.server.names_event else None
        error = {"type": "invalid_request_error", "code": code, "event_id": event_id}
        await self.tell("error", error=error)

    async def _hear(self, samples: bytes) -> None:
        self._buffer += samples
        if not self._detects:
            return
        loud = np.abs(np.frombuffer(samples, "<i2").astype(float)).max(initial=0.0) > LOUD
        self._quiet_ms = 0.0 if loud else self._quiet_ms + 500.0 * len(samples) / RATE_HZ
        self._was_loud = self._was_loud or bool(loud)
        if self._was_loud and self._quiet_ms >= self.server.silence_ms:
            self._was_loud = False
            await self._commit()
            await self._ask({"response": {}})

    async def _commit(self) -> None:
        item_id = f"item_{next(self._ids)}"
        ms = 500.0 * len(self._buffer) / RATE_HZ
        self.items.append({"id": item_id, "role": "user", "text": "sound", "ms": ms})
        self._buffer = b""
        await self.tell("input_audio_buffer.committed", item_id=item_id)

    async def _ask(self, event: Event) -> None:
        server, asked = self.server, event["response"]
        server.asked.append(asked)
        server.asked_at.append(server.clock())
        if server.refuses:
            await self._error(event, server.refuses)
            return
        if self._speaking is not None and not self._speaking.done():
            await self._error(event, "conversation_already_has_active_response")
            return
        reply = server.replies[server.n_replies % len(server.replies)]
        server.n_replies += 1
        self._response_id = f"resp_{next(self._ids)}"
        created = {"id": self._response_id, "metadata": asked.get("metadata")}
        await self.tell("response.created", response=created)
        answer = self._call(reply) if isinstance(reply, Call) else self._say(reply, asked)
        self._speaking = asyncio.create_task(self._answer(answer))

    async def _answer(self, answer: Any) -> None:
        try:
            await answer
            usage = {"input_tokens": 50, "output_tokens": 20}
            done = {"id": self._response_id, "status": "completed", "usage": usage}
            await self.tell("response.done", response=done)
        except ConnectionClosed:
            pass

    async def _call(self, call: Call) -> None:
        item = {"id": f"item_{next(self._ids)}", "type": "function_call", "name": call.name,
                "call_id": f"call_{next(self._ids)}", "arguments": call.arguments}  # fmt: skip
        self.items.append({"id": item["id"], "role": "function_call", "text": call.name})
        await self._of_response("response.output_item.added", item={**item, "arguments": ""})
        await self._of_response("response.output_item.done", item=item)

    async def _say(self, text: str, asked: Event) -> None:
        server = self.server
        await asyncio.sleep(server.first_ms / 1000.0)
        item_id = f"item_{next(self._ids)}"
        if asked.get("conversation") != "none":
            self.items.append({"id": item_id, "role": "assistant", "text": text})
        item = {"id": item_id, "type": "message", "role": "assistant"}
        await self._of_response("response.output_item.added", item=item)
        words = text.split()
        if server.leads and server.has_transcript:
            await self._transcript(text)
        for number, word in enumerate(words):
            if number == server.drop_after:
                await self.socket.close(1011, "dropped")
                return
            if number == server.fail_after:
                await self._error({}, "server_error")
                await asyncio.Event().wait()
            if not server.leads and server.has_transcript:
                await self._transcript(word if number == 0 else f" {word}")
            samples = tone(word_ms(word), RATE_HZ).astype("<i2").tobytes()
            if number == 0:
                server.first_at.append(server.clock())
            audio = base64.b64encode(samples).decode()
            await self._of_response("response.output_audio.delta", delta=audio, item_id=item_id)
            await asyncio.sleep(word_ms(word) / 1000.0 / server.speed)

    async def _transcript(self, text: str) -> None:
        await self._of_response("response.output_audio_transcript.delta", delta=text)

    async def _of_response(self, kind: str, **fields: Any) -> None:
        await self.tell(kind, response_id=self._response_id, **fields)


@asynccontextmanager
async def omni(server: OmniServer) -> AsyncIterator[str]:
    """Its address, as `realtime_url` has it."""
    async with serve(server.handle, "127.0.0.1", 0) as listening:
        server.url = f"ws://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
        yield server.url
