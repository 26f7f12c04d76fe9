"""Calls on a server whose own model is the small one, and what is read off them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from clients.call.open_call import CallOptions
from clients.call.record import Reply
from clients.call.result import CallResult, TurnResult
from clients.call.script import DEFAULT_CAST, load_call, load_utterances
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ, RealtimeConnection, Received, own_key
from clients.server_process import ServerProcess, running_server

EXTRAS = {"voiceloop.timeline": "1", "greeting": "1"}
AGENT = """name = "Ava"
instructions = "You are Ava, the voice assistant of Juniper Cafe. Answer in a short sentence."
greeting = "Hi, this is Ava at Juniper Cafe."
[waiting]
say = []
first_token_ms = {first_token_ms}
{more}
[limits]
max_reply_tokens = 40
"""


@asynccontextmanager
async def server(
    url: str = "",
    *,
    first_token_ms: int = 5000,
    more: str = "",
    is_cascade: bool = True,
    keys: str = "",
) -> AsyncIterator[ServerProcess]:
    """The embedded preset with a further model at this address, or with these keys in its place;
    more: of the agent's file.
    """
    with tempfile.TemporaryDirectory() as folder:
        agent, config = Path(folder) / "agent.toml", Path(folder) / "server.toml"
        agent.write_text(AGENT.format(first_token_ms=first_token_ms, more=more), encoding="utf-8")
        cascade = '[cascade]\nmodels = ["main", "big"]\n' if is_cascade else ""
        beside = f'{cascade}[[models]]\nname = "big"\nurl = "{url}"\n' if url else ""
        config.write_text(keys + beside, encoding="utf-8")
        arguments = ("--preset", "embedded", "--config", str(config), "--agent", str(agent))
        async with running_server(arguments, log=Path(folder) / "log") as running:
            yield running


class Watch:
    """What comes of one call besides what is measured of its turns. then: called behind each."""

    def __init__(self, then: Callable[[TurnResult], None] = lambda turn: None) -> None:
        self._then = then

    def received(self, received: Received) -> None:
        """All that is read is in the record."""

    def speaks(self, utterance: Any) -> None:
        """So is what was said."""

    def finished(self, turn: TurnResult) -> None:
        self._then(turn)


async def play(
    running: ServerProcess, seed: int, *, models: Sequence[str] = ()
) -> tuple[CallResult, list[Reply]]:
    """The bundled call; behind each turn the session takes the next of these models."""
    return await play_at(running.url, seed, own_key(running.url), models=models)


async def play_at(
    url: str, seed: int, key: str | None = None, *, models: Sequence[str] = ()
) -> tuple[CallResult, list[Reply]]:
    """The same at any Realtime server."""
    script = load_call()
    voices = script.casts[DEFAULT_CAST]
    utterances = load_utterances(script, voices[seed % len(voices)], RATE_HZ)
    connection = await RealtimeConnection.open(url, key=key, extras=EXTRAS)
    updates = list[asyncio.Task[None]]()

    def switch(turn: TurnResult) -> None:
        if models:
            session = {"type": "realtime", "model": models[len(updates) % len(models)]}
            update = {"type": "session.update", "session": session}
            updates.append(asyncio.create_task(connection.send(update)))

    call = SimulatedCall(
        connection, utterances, options=CallOptions(seed=seed), observer=Watch(switch)
    )
    return await call.run(), call.record.replies


def longest_hole_ms(reply: Reply) -> float:
    """Of the silence between two pieces of its sound, as a client without a buffer plays it."""
    play_end, longest = 0.0, 0.0
    for piece in reply.audio:
        if play_end:
            longest = max(longest, piece.at - play_end)
        play_end = max(play_end, piece.at) + len(piece.samples) / RATE_HZ
    return 1000.0 * longest


def said_twice(text: str, least_words: int = 3) -> bool:
    """Whether so many words of it follow each other twice."""
    words = [word.strip(".,;:!?").lower() for word in text.split()]
    n = len(words)
    return any(
        words[i : i + size] == words[i + size : i + 2 * size]
        for size in range(least_words, n // 2 + 1)
        for i in range(n - 2 * size + 1)
    )
