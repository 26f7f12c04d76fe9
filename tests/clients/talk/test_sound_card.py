"""The sound card's two callbacks, with a scripted sounddevice and a room between them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from clients.connection import RATE_HZ
from clients.recording import Samples
from clients.talk.echo import is_available
from clients.talk.sound_card import N_BLOCK, sound_card
from clients.talk.speaker import Speaker
from tests.clients.talk.room import AGENT, Room, level_db, speech


class ScriptedCard:
    """sounddevice as far as `sound_card` uses it; `tick` is a block of time."""

    PortAudioError = OSError

    def __init__(self, room: Room) -> None:
        self._room = room
        self._callbacks: dict[str, Callable[..., None]] = {}

    def RawInputStream(self, **options: Any) -> ScriptedCard:  # noqa: N802 - the library's name
        return self._opened("in", options)

    def RawOutputStream(self, **options: Any) -> ScriptedCard:  # noqa: N802
        return self._opened("out", options)

    def _opened(self, side: str, options: dict[str, Any]) -> ScriptedCard:
        assert (options["samplerate"], options["blocksize"]) == (RATE_HZ, N_BLOCK)
        self._callbacks[side] = options["callback"]
        return self

    latency = 0.02

    def __enter__(self) -> ScriptedCard:
        return self

    def __exit__(self, *_: object) -> None: ...

    def tick(self) -> Samples:
        """Play one block and record what the room makes of it."""
        played = bytearray(2 * N_BLOCK)
        self._callbacks["out"](played, N_BLOCK, None, None)
        heard = self._room.echo(np.frombuffer(bytes(played), np.int16))
        self._callbacks["in"](heard.tobytes(), N_BLOCK, None, None)
        return heard


@pytest.mark.skipif(not is_available(), reason="livekit is not installed")
@pytest.mark.parametrize(("cancels_echo", "low", "high"), [(False, -0.1, 0.1), (True, 25, 120)])
async def test_what_reaches_the_line_holds_no_echo_where_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, cancels_echo: bool, low: float, high: float
) -> None:
    card = ScriptedCard(Room(40))
    monkeypatch.setitem(sys.modules, "sounddevice", card)
    speaker, microphone = Speaker(), asyncio.Queue[Samples](2000)
    agent = speech(AGENT)[: 6 * RATE_HZ]
    speaker.push("reply", agent)
    with sound_card(microphone, speaker, cancels_echo=cancels_echo):
        heard = [card.tick() for _ in range(len(agent) // N_BLOCK)]
        await asyncio.sleep(0)
    sent = np.concatenate([microphone.get_nowait() for _ in heard])
    settled = slice(3 * RATE_HZ, None)
    erle_db = level_db(np.concatenate(heard)[settled]) - level_db(sent[settled])
    assert low <= erle_db <= high


async def test_a_line_that_does_not_keep_up_loses_blocks_and_not_the_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = ScriptedCard(Room(40))
    monkeypatch.setitem(sys.modules, "sounddevice", card)
    microphone = asyncio.Queue[Samples](3)
    with sound_card(microphone, Speaker(), cancels_echo=False):
        for _ in range(10):
            card.tick()
        await asyncio.sleep(0)
    assert microphone.qsize() == 3
