"""A person's side of a call: all that is heard goes, or what lies between two keys."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from clients.connection import RealtimeConnection, Received
from clients.live_view import LiveView
from clients.playout import Interrupted
from clients.recording import Samples
from clients.talk.desk_call import DeskCall
from clients.talk.level_meter import LevelMeter
from clients.talk.sound_card import N_BLOCK
from clients.talk.speaker import Speaker

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
BLOCK = np.full(N_BLOCK, 1000, np.int16)


@dataclass
class Line:
    """The server's end: what it was sent, and the events it answers with."""

    sent: list[str] = field(default_factory=list)
    n_audio: int = 0
    answers: asyncio.Queue[dict[str, Any] | None] = field(
        default_factory=lambda: asyncio.Queue(100)
    )

    async def send(self, event: dict[str, Any]) -> None:
        self.sent.append(event["type"])

    async def append_audio(self, samples: Samples) -> None:
        self.n_audio += len(samples)

    async def truncate(self, interrupted: Interrupted) -> None:
        self.sent.append(f"truncate {interrupted.item_id} at {interrupted.played_ms:.0f} ms")

    async def events(self) -> AsyncIterator[Received]:
        while (event := await self.answers.get()) is not None:
            yield Received(event, 0.0)


@dataclass
class Desk:
    line: Line
    microphone: asyncio.Queue[Samples]
    keys: asyncio.Queue[str]
    speaker: Speaker
    meter: LevelMeter

    async def speak(self, n_blocks: int) -> None:
        for _ in range(n_blocks):
            self.microphone.put_nowait(BLOCK)
        await asyncio.sleep(0.01)

    async def press(self, key: str = " ") -> None:
        self.keys.put_nowait(key)
        await asyncio.sleep(0.01)

    async def answer(self, type_: str, **fields: Any) -> None:
        self.line.answers.put_nowait({"type": type_, **fields})
        await asyncio.sleep(0.01)


@asynccontextmanager
async def desk(*, push_to_talk: bool) -> AsyncIterator[Desk]:
    made = Desk(Line(), asyncio.Queue(100), asyncio.Queue(100), Speaker(), LevelMeter())
    with LiveView(Console(file=io.StringIO()), "agent", meter=made.meter) as view:
        connection = cast(RealtimeConnection, made.line)
        keys = made.keys if push_to_talk else None
        call = DeskCall(connection, made.microphone, made.speaker, view, made.meter, keys)
        holding = asyncio.create_task(call.run())
        await asyncio.sleep(0.01)
        yield made
        made.line.answers.put_nowait(None)
        await holding


async def speaks(at: Desk) -> None:
    """The agent has begun a reply, of which 40 ms were played."""
    audio = base64.b64encode(np.full(48_000, 500, "<i2").tobytes()).decode()
    await at.answer("response.created", response={"id": "resp_1"})
    await at.answer("response.output_audio.delta", item_id="item_1", delta=audio)
    at.speaker.take(960)


async def test_hands_free_all_that_is_heard_goes_to_the_server(clock: Clock) -> None:
    async with desk(push_to_talk=False) as at:
        await at.speak(5)
        await at.press()  # no key means anything
        assert at.line.n_audio == 5 * N_BLOCK
        assert at.meter.is_open and at.line.sent == []


async def test_between_two_keys_is_a_turn_and_the_rest_goes_nowhere(clock: Clock) -> None:
    async with desk(push_to_talk=True) as at:
        await at.speak(5)
        assert at.line.n_audio == 0 and not at.meter.is_open
        await at.press("x")
        await at.press()
        assert at.meter.is_open
        await at.speak(20)
        await at.press()
        await at.speak(5)
        assert at.line.n_audio == 20 * N_BLOCK
        assert at.line.sent == [
            "input_audio_buffer.clear",
            "input_audio_buffer.commit",
            "response.create",
        ]


async def test_a_slip_of_the_finger_is_no_turn(clock: Clock) -> None:
    async with desk(push_to_talk=True) as at:
        await at.press()
        await at.speak(3)
        await at.press()
        assert at.line.sent == ["input_audio_buffer.clear"] * 2


async def test_a_key_takes_the_floor_from_an_agent_that_speaks(clock: Clock) -> None:
    async with desk(push_to_talk=True) as at:
        await speaks(at)
        await at.press()
        assert at.line.sent == [
            "truncate item_1 at 40 ms",
            "response.cancel",
            "input_audio_buffer.clear",
        ]
        assert at.speaker.idle
        await at.answer("response.done", response={"id": "resp_1", "status": "cancelled"})
        await at.speak(20)
        await at.press()
        await at.press()
        assert at.line.sent[-1] == "input_audio_buffer.clear"  # nothing was open to be cancelled
        assert at.line.sent.count("response.cancel") == 1


async def test_what_was_under_way_when_the_line_broke_is_not_played_twice(clock: Clock) -> None:
    async with desk(push_to_talk=True) as at:
        await speaks(at)
        await at.answer("voiceloop.resumed", session_id="sess_1", items=1, last_item_id="item_0")
        assert not at.speaker.take(960).any()
        await at.press()  # the response of the line that broke is no longer there to be cancelled
        assert at.line.sent == ["input_audio_buffer.clear"]


async def test_hands_free_the_loudspeaker_falls_silent_when_the_server_hears_the_caller(
    clock: Clock,
) -> None:
    async with desk(push_to_talk=False) as at:
        await speaks(at)
        await at.answer("input_audio_buffer.speech_started", item_id="u", audio_start_ms=0)
        assert at.speaker.idle
        assert at.line.sent == ["truncate item_1 at 40 ms"]
