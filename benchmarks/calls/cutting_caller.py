"""A caller who has sentences said and cuts them short, in one of three ways.

"truncate": without turn detection, by ``response.cancel``, telling how much was played. "barge_in":
by speaking over the agent on the wire, telling nothing: the server must know by itself.
"resumed": by a voice in which the recognizer hears no words; the client flushes and truncates as
stock clients do, and the reply is taken up again and heard to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Literal

import numpy as np

from clients.connection import RATE_HZ, RealtimeConnection, Received, typed
from clients.errors import ClientError
from clients.playout import Interrupted, Playout
from clients.recording import Samples
from clients.uplink import Uplink

Kind = Literal["truncate", "barge_in", "resumed"]
Played = tuple[float, float]  # ms of a reply's beginning, and of its end where it was taken up

AUDIO = "response.output_audio.delta"
STARTED, DONE = "input_audio_buffer.speech_started", "response.done"
HEARD = "conversation.item.input_audio_transcription.completed"
FIRST_SOUND_S, JUDGED_S, OVER_S = 20.0, 6.0, 20.0  # so long each is waited for


class Playing:
    """What one reply was on the wire, and what of it the client has played."""

    def __init__(self) -> None:
        self.playout = Playout(RATE_HZ)
        self.first_at = float("inf")
        self.flushed: Interrupted | None = None
        self.statuses: list[str] = []
        self._sent: dict[str, int] = {}  # samples of each item

    def take(self, received: Received) -> None:
        """An event of the server; at its report of speech the client stops playing."""
        match received.type:
            case "response.output_audio.delta":
                samples, item_id = received.samples, received.event["item_id"]
                self._sent[item_id] = self._sent.get(item_id, 0) + len(samples)
                self.playout.push(item_id, samples, received.at)
                self.first_at = min(self.first_at, received.at)
            case "input_audio_buffer.speech_started":
                self.flush(received.at)
            case "response.done":
                self.statuses.append(received.event["response"]["status"])

    def flush(self, at: float) -> None:
        self.flushed = self.playout.flush(at) or self.flushed

    @property
    def sent_ms(self) -> tuple[float, ...]:
        """Of each item, in order."""
        return tuple(round(1000.0 * n / RATE_HZ, 2) for n in self._sent.values())

    @property
    def played_ms(self) -> float:
        """Of the first item: what a flush left of it, else all that came."""
        return round(self.flushed.played_ms, 2) if self.flushed is not None else self.sent_ms[0]


class CuttingCaller:
    """One session. ``speech``: what cuts a reply short, at 24 kHz."""

    def __init__(
        self, connection: RealtimeConnection, name: str, kind: Kind, speech: Samples
    ) -> None:
        self._connection = connection
        self._name, self._kind, self._speech = name, kind, speech
        self._events: asyncio.Queue[Received] = asyncio.Queue()
        # A wait that ends must not end the stream.
        self._tasks = [asyncio.create_task(self._listen())]
        self._uplink = Uplink(connection)
        self._n_said = 0

    async def _listen(self) -> None:
        async for received in self._connection.events():
            self._events.put_nowait(received)

    async def start(self) -> None:
        """Set the session up, upon which nobody greets."""
        detection: dict[str, Any] | None = None
        if self._kind != "truncate":
            # With words of the caller the next request is asked for, not due by itself.
            is_answered = self._kind == "resumed"
            detection = {"type": "semantic_vad", "create_response": is_answered}
        heard = {"turn_detection": detection, "transcription": {"model": "whisper-1"}}
        session = {
            "type": "realtime",
            "output_modalities": ["audio"],
            "instructions": "Say what you are asked to say.",
            "audio": {"input": heard, "output": {}},
        }
        await self._connection.send({"type": "session.update", "session": session})
        if detection is not None:
            self._tasks.append(asyncio.create_task(self._uplink.run()))

    async def close(self) -> None:
        for task in self._tasks[1:]:
            task.cancel()
            with suppress(asyncio.CancelledError, ClientError):
                await task
        await self._connection.close()
        await self._tasks[0]

    async def ask(self, sentence: int) -> str:
        """Have the sentence said; returns the key of the request."""
        key = f"{self._name} {self._n_said} {sentence}"
        self._n_said += 1
        await self._connection.send({"type": "conversation.item.create", "item": typed(key)})
        await self._connection.send({"type": "response.create"})
        return key

    async def whole(self, sentence: int) -> Samples:
        """The sentence's audio, uncut."""
        await self.ask(sentence)
        pieces = []
        while (received := await self._events.get()).type != DONE:
            if received.type == AUDIO:
                pieces.append(received.samples)
        return np.concatenate(pieces)

    async def cut(self, sentence: int, after_ms: float) -> tuple[str, Played | None]:
        """Cut the sentence when so much of it has been played.

        Returns the key it was asked with, and what was played of it; None where it was not cut, or
        not taken up where it should have been.
        """
        key, playing = await self.ask(sentence), Playing()
        if not await self._hear(playing, lambda r: r.type == AUDIO, monotonic() + FIRST_SOUND_S):
            raise ClientError(f"expected sound within {FIRST_SOUND_S:.0f} s, found none")
        cut_at = playing.first_at + playing.playout.buffer_s + after_ms / 1000.0
        await self._hear(playing, lambda r: False, cut_at)
        match self._kind:
            case "truncate":
                return key, await self._truncate(playing)
            case "barge_in":
                return key, await self._barge_in(playing)
            case "resumed":
                return key, await self._be_noise(playing)

    async def _truncate(self, playing: Playing) -> Played | None:
        playing.flush(monotonic())
        if playing.flushed is not None:
            await self._connection.send({"type": "response.cancel"})
            await self._connection.truncate(playing.flushed)
        if not playing.statuses:
            await self._hear(playing, lambda r: r.type == DONE, monotonic() + OVER_S)
        return None if playing.flushed is None else (playing.played_ms, 0.0)

    async def _barge_in(self, playing: Playing) -> Played | None:
        self._uplink.say(self._speech)
        await self._hear(playing, lambda r: r.type == HEARD, monotonic() + OVER_S)
        return (playing.played_ms, 0.0) if playing.statuses[:1] == ["cancelled"] else None

    async def _be_noise(self, playing: Playing) -> Played | None:
        self._uplink.say(self._speech)
        await self._hear(playing, lambda r: r.type == STARTED, monotonic() + JUDGED_S)
        if playing.flushed is not None:
            await self._connection.truncate(playing.flushed)
        # Where the reply had ended before it was cut nothing is taken up.
        await self._hear(playing, lambda r: len(playing.statuses) > 1, monotonic() + OVER_S)
        if playing.statuses != ["cancelled", "completed"] or len(playing.sent_ms) < 2:
            return None
        await asyncio.sleep(max(0.0, playing.playout.idle_at - monotonic()))
        return playing.played_ms, playing.sent_ms[1]

    async def go_on(self) -> str:
        """Ask for another reply, of which nothing matters; returns the key it was asked with."""
        key, playing = await self.ask(0), Playing()
        await self._hear(playing, lambda r: r.type == AUDIO, monotonic() + FIRST_SOUND_S)
        await self._connection.send({"type": "response.cancel"})
        if not playing.statuses:
            await self._hear(playing, lambda r: r.type == DONE, monotonic() + OVER_S)
        return key

    async def _hear(
        self, playing: Playing, is_it: Callable[[Received], bool], until_s: float
    ) -> bool:
        """Take events up to the one that is waited for; False where none was by then."""
        while True:
            try:
                async with asyncio.timeout(max(0.0, until_s - monotonic())):
                    received = await self._events.get()
            except TimeoutError:
                return False
            playing.take(received)
            if is_it(received):
                return True
