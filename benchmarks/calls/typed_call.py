"""A caller who types: each turn sent as a message, and what the agent says and calls for it.

Owns one session of a server that answers its tools itself. A tool that is left to the client is
answered by nobody here, until the server says so for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from clients.connection import RealtimeConnection, own_key
from clients.errors import ConnectionFailed

ANSWER_S = 30.0
SAID = ("response.output_text.done", "response.output_audio_transcript.done")


@dataclass(frozen=True, slots=True)
class TypedTurn:
    """What the agent said to a turn, and the tools it called before; failed: a reply's own word."""

    said: str
    called: tuple[str, ...]
    failed: bool


class TypedCall:
    """One open call; `typed_call` makes it."""

    def __init__(self, connection: RealtimeConnection) -> None:
        self._connection = connection

    async def turn(self, text: str) -> TypedTurn:
        """Raises: ConnectionFailed: the line broke, or no reply ended within `ANSWER_S`."""
        await self._add("user", "input_text", text)
        await self._connection.send({"type": "response.create"})
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._read()
        except TimeoutError as error:
            raise ConnectionFailed(f"no reply to {text!r} within {ANSWER_S:g} s") from error

    async def _add(self, role: str, kind: str, text: str) -> None:
        item = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
        await self._connection.send({"type": "conversation.item.create", "item": item})

    async def _read(self) -> TypedTurn:
        """Up to the reply that calls nothing; behind one that does, the server makes another."""
        said: list[str] = []
        called: list[str] = []
        n_answered = 0
        async with aclosing(self._connection.events()) as events:
            async for received in events:
                event = received.event
                if event["type"] in SAID:
                    said.append(event.get("text") or event.get("transcript") or "")
                elif event["type"] == "response.function_call_arguments.done":
                    called.append(event["name"])
                elif event["type"] == "response.done":
                    failed = event["response"]["status"] != "completed"
                    if failed or len(called) == n_answered:
                        return TypedTurn(" ".join(said), tuple(called), failed)
                    n_answered = len(called)
        raise ConnectionFailed(f"the server ended the call: {self._connection.ended_by}")


@asynccontextmanager
async def typed_call(
    url: str,
    greeting: str,
    *,
    speaks: bool,
    instructions: str | None = None,
    agent: str | None = None,
) -> AsyncIterator[TypedCall]:
    """A call in which the agent has said its greeting. speaks: whether it answers aloud.

    instructions: in place of the served agent's. agent: of several, by name.

    Raises: ClientError: there is no server, or it refuses the call.
    """
    extras = {"agent": agent} if agent else {}
    connection = await RealtimeConnection.open(url, key=own_key(url), extras=extras)
    try:
        session = {"type": "realtime", "output_modalities": ["audio" if speaks else "text"]}
        if instructions is not None:
            session["instructions"] = instructions
        await connection.send({"type": "session.update", "session": session})
        call = TypedCall(connection)
        await call._add("assistant", "output_text", greeting)
        yield call
    finally:
        await connection.close()
