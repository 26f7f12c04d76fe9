"""What is kept of replies that are cut on a bad line: ``python -m benchmarks.webrtc.cuts URL ...``.

One caller (libwebrtc) over a line that loses packets asks in text, and cuts each answer at a random
moment: one of two by speaking, as a person does, the other by the two events that the stock SDK's
`interrupt()` sends. The reply is a tone that rises: its pitch tells how far it was heard, however
libwebrtc stretches, shortens or makes up what a bad line brings. Prints, for each cut, what the
server says was heard and what came out of libwebrtc's buffer, as one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.calls.fake_server import RISE_HZ_PER_S
from benchmarks.webrtc.ear import EarConnection
from benchmarks.webrtc.relay import Impairment
from clients.call.script import DEFAULT_CAST, load_call, load_utterances
from clients.connection import RATE_HZ, typed
from clients.recording import Samples
from tests.fakes import RISE_FROM_HZ

MOST_S = 20.0
EARLIEST_S, LATEST_S = 0.3, 1.5  # of the answer's sound
AFTER = "barge_in"  # of the turn of the bundled call that is one
SILENT_S = 0.6  # after the cut nothing of the reply comes out any more
PIECE = RATE_HZ // 50
PIECE_MS = 10.0  # libwebrtc lets sound out in such pieces
N_SPECTRUM = 1 << 14  # 1.5 Hz, which is 4 ms of the reply
TONE_SHARE = 0.8  # of the sound lies at one pitch, or it is none
MOST_AHEAD_MS = 400.0  # a line loses no more at once; what lies further was misheard
NO_ANSWER = {"turn_detection": {"type": "server_vad", "create_response": False}}


class Caller:
    """Reads all events, and keeps the last of each type."""

    def __init__(self, ear: EarConnection, barge_in: Any) -> None:
        self._ear = ear
        self._barge_in = barge_in
        self._came = asyncio.Condition()
        self._events: list[dict[str, Any]] = []
        self._to_say = b""

    async def read(self) -> None:
        async for received in self._ear.events():
            if received.type != "response.output_audio.delta":
                async with self._came:
                    self._events.append(received.event)
                    self._came.notify_all()

    async def until(self, type: str) -> dict[str, Any]:
        """The next event of this type that nobody has waited for. Raises: TimeoutError."""

        def found() -> dict[str, Any] | None:
            return next((one for one in self._events if one["type"] == type), None)

        async with asyncio.timeout(MOST_S), self._came:
            await self._came.wait_for(lambda: found() is not None)
            event = found()
            assert event is not None
            self._events = self._events[self._events.index(event) + 1 :]
            return event

    async def speak(self) -> None:
        """Send silence, and what is to be said, by the clock, for ever."""
        loop = asyncio.get_running_loop()
        begun_s, n = loop.time(), 0
        silence = bytes(2 * PIECE)
        while True:
            piece, self._to_say = self._to_say[: 2 * PIECE], self._to_say[2 * PIECE :]
            sound = piece + silence[len(piece) :]
            for at in range(0, len(sound), PIECE):  # libwebrtc takes 10 ms at a time
                self._ear._microphone._generator.writeAudio(
                    sound[at : at + PIECE], RATE_HZ, 1, PIECE // 2
                )
            n += 1
            await asyncio.sleep(max(0.0, begun_s + n / 50 - loop.time()))

    async def cut_one(self, draws: random.Random, *, by_voice: bool) -> list[float]:
        """What the server tells was heard of one answer, and what was. Raises: TimeoutError."""
        item = typed("Tell me more.")
        await self._ear.send({"type": "conversation.item.create", "item": item})
        await self._ear.send({"type": "response.create"})
        asked_ms = self._ear.out_ms
        await self.until("output_audio_buffer.started")
        await asyncio.sleep(draws.uniform(EARLIEST_S, LATEST_S))
        if by_voice:
            self._to_say = self._barge_in
        else:
            await self._ear.send({"type": "response.cancel"})
            await self._ear.send({"type": "output_audio_buffer.clear"})
        told = await self.until("conversation.item.truncated")
        await asyncio.sleep(SILENT_S + len(self._to_say) / (2 * RATE_HZ))
        return [told["audio_end_ms"], round(self._heard_ms(asked_ms), 1)]

    def _heard_ms(self, asked_ms: float) -> float:
        """Of the answer, by the pitch of what came out since it was asked for."""
        pieces = [one for one in self._ear.loud if one[0] >= asked_ms]
        heard_ms = 0.0
        for (from_ms, first), (next_ms, second) in pairwise(pieces):
            if next_ms - from_ms < 1.5 * PIECE_MS:
                place_ms = place_of(np.concatenate((first, second)))
                if place_ms is not None and place_ms < heard_ms + MOST_AHEAD_MS:
                    heard_ms = max(heard_ms, place_ms)
        return heard_ms


def place_of(samples: Samples) -> float | None:
    """Where in a rising reply the end of 20 ms at 24 kHz lies, in ms; None: this is no tone."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), N_SPECTRUM)) ** 2
    hz = np.fft.rfftfreq(N_SPECTRUM, 1.0 / RATE_HZ)
    peak_hz = hz[int(spectrum.argmax())]
    is_near = np.abs(hz - peak_hz) < 2.0 * RATE_HZ / len(samples)  # the window's main lobe
    if spectrum[is_near].sum() < TONE_SHARE * spectrum.sum():
        return None
    middle_ms = 1000.0 * (peak_hz - RISE_FROM_HZ) / RISE_HZ_PER_S
    return float(middle_ms + 500.0 * len(samples) / RATE_HZ)


async def play(chosen: argparse.Namespace) -> list[list[float] | None]:
    script = load_call()
    utterances = load_utterances(script, script.casts[DEFAULT_CAST][0], RATE_HZ)
    barge_in = next(one for one in utterances if one.turn.after == AFTER)
    line = Impairment(chosen.loss, 20.0, 40.0)
    ear = await EarConnection.open(f"http://{chosen.server}/v1/realtime/calls", line, chosen.seed)
    caller = Caller(ear, barge_in.recording.samples.tobytes())
    beside = [asyncio.create_task(caller.read()), asyncio.create_task(caller.speak())]
    await ear.send(
        {"type": "session.update", "session": {"type": "realtime", "audio": {"input": NO_ANSWER}}}
    )
    await caller.until("session.updated")
    draws = random.Random(chosen.seed)
    cuts: list[list[float] | None] = []
    for n in range(chosen.cuts):
        try:
            cuts.append(await caller.cut_one(draws, by_voice=n % 2 == 0))
        except TimeoutError:  # the answer never came, or the cut came too late for it
            cuts.append(None)
    for task in beside:
        task.cancel()
    return cuts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.webrtc.cuts", description=__doc__)
    parser.add_argument("server", help="host:port")
    parser.add_argument("--cuts", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loss", type=float, default=0.05)
    print(json.dumps(asyncio.run(play(parser.parse_args()))), flush=True)
    os._exit(0)  # the threads of libwebrtc do not end by themselves


if __name__ == "__main__":
    main()
