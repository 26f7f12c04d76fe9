"""A person's side of one call at a desk: microphone to the line, answers to the loudspeaker.

Hands-free, the server hears all and says who speaks. In push to talk a key begins what the person
says and the same key ends it: the server gets that alone, as one turn, and answers it.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto

from clients.connection import RATE_HZ, RealtimeConnection
from clients.errors import ConnectionFailed
from clients.live_view import LiveView
from clients.recording import Samples
from clients.talk.level_meter import LevelMeter
from clients.talk.speaker import Speaker

SHORTEST_TALK_MS = 200  # a shorter one is a slip of the finger
TALK_KEYS = (" ", "\n", "\r")


class Line(Enum):
    """A line that takes the microphone's sound."""

    OPEN = auto()  # all of it to the server
    RESTING = auto()  # nowhere, until a key is pressed
    HELD = auto()  # to the server, until the key is pressed again


class DeskCall:
    """``keys``: of the terminal, in push to talk; None for hands-free."""

    def __init__(
        self,
        connection: RealtimeConnection,
        microphone: asyncio.Queue[Samples],
        speaker: Speaker,
        view: LiveView,
        meter: LevelMeter,
        keys: asyncio.Queue[str] | None = None,
    ) -> None:
        self._connection = connection
        self._microphone = microphone
        self._speaker = speaker
        self._view = view
        self._meter = meter
        self._keys = keys
        self._open_response: str | None = None
        self._n_said = 0  # samples since the key was pressed
        self._set_line(Line.OPEN if keys is None else Line.RESTING)

    async def run(self) -> None:
        """Hold the call until the server ends it."""
        async with asyncio.TaskGroup() as group:
            mine = [group.create_task(self._send_microphone())]
            if self._keys is not None:
                mine.append(group.create_task(self._obey_keys(self._keys)))
            await self._play_answers()
            for task in mine:
                task.cancel()

    def _set_line(self, line: Line) -> None:
        self._line = line
        self._meter.is_open = line is not Line.RESTING

    async def _send_microphone(self) -> None:
        try:
            while True:
                samples = await self._microphone.get()
                self._meter.feed(samples)
                if self._line is not Line.RESTING:
                    self._n_said += len(samples)
                    await self._connection.append_audio(samples)
        except ConnectionFailed:
            return  # the other task sees the end of the events and ends the call

    async def _obey_keys(self, keys: asyncio.Queue[str]) -> None:
        try:
            while True:
                if await keys.get() not in TALK_KEYS:
                    continue
                if self._line is Line.RESTING:
                    await self._take_the_floor()
                else:
                    await self._hand_over()
        except ConnectionFailed:
            return

    async def _take_the_floor(self) -> None:
        await self._fall_silent()
        if self._open_response is not None:
            await self._connection.send({"type": "response.cancel"})
        await self._connection.send({"type": "input_audio_buffer.clear"})
        self._n_said = 0
        self._set_line(Line.HELD)

    async def _hand_over(self) -> None:
        self._set_line(Line.RESTING)
        if 1000 * self._n_said < SHORTEST_TALK_MS * RATE_HZ:
            await self._connection.send({"type": "input_audio_buffer.clear"})
            return
        await self._connection.send({"type": "input_audio_buffer.commit"})
        await self._connection.send({"type": "response.create"})

    async def _fall_silent(self) -> None:
        interrupted = self._speaker.flush()
        if interrupted is not None:
            await self._connection.truncate(interrupted)

    async def _play_answers(self) -> None:
        async for received in self._connection.events():
            self._view.received(received)
            match received.type:
                case "response.created":
                    self._open_response = received.event["response"]["id"]
                case "response.done":
                    self._open_response = None
                case "response.output_audio.delta":
                    self._speaker.push(received.event["item_id"], received.samples)
                case "input_audio_buffer.speech_started":
                    await self._fall_silent()
                case "voiceloop.resumed":
                    self._speaker.flush()  # what was under way is said anew
                    self._open_response = None
