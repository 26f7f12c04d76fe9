"""How long a transcript is waited for, and what becomes of audio that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from tests.fakes import EventPipe
from voiceloop.backends import Partial, RecognizerEvent, RecognizerOptions, Transcript, Word
from voiceloop.errors import BackendError
from voiceloop.listening.recognition import Recognition

pytestmark = pytest.mark.virtual_time
SECOND = bytes(32_000)


class Stream:
    """Hears audio at its own speed, in order, and says how many seconds a segment had."""

    def __init__(self, owner: Recognizer) -> None:
        self._owner = owner
        self._pipe: EventPipe[RecognizerEvent] = EventPipe()
        self._segment = 0
        self._fed_s = 0.0
        self._heard_at_s = 0.0
        self.options: list[RecognizerOptions] = []
        self.is_closed = False

    def feed(self, samples: bytes) -> None:
        self._fed_s += len(samples) / 32_000
        now_s = asyncio.get_running_loop().time()
        took_s = len(samples) / 32_000 * self._owner.seconds_a_second
        self._heard_at_s = max(self._heard_at_s, now_s) + took_s

    def flush(self) -> None:
        pass

    def finalize(self) -> None:
        left_s = max(0.0, self._heard_at_s - asyncio.get_running_loop().time())
        words = (Word(f"{self._fed_s:g}", 0.0, 1.0),)
        self._pipe.put(Transcript(self._segment, words), 1000 * left_s)
        self._segment, self._fed_s = self._segment + 1, 0.0

    def set_options(self, options: RecognizerOptions) -> None:
        self.options.append(options)

    def events(self) -> AsyncIterator[RecognizerEvent]:
        return self._pipe.events()

    async def close(self) -> None:
        self.is_closed = True
        self._pipe.close()


@dataclass
class Recognizer:
    seconds_a_second: float
    streams: list[Stream] = field(default_factory=list)

    async def open(self, stream_id: str, options: RecognizerOptions) -> Stream:
        self.streams.append(Stream(self))
        return self.streams[-1]


@dataclass
class Heard:
    """What the call is told, in order: the words of a segment, or None where it failed."""

    told: list[tuple[int, str | None]] = field(default_factory=list)

    def on_partial(self, segment: int, partial: Partial) -> None: ...

    def on_transcript(self, segment: int, transcript: Transcript) -> None:
        self.told.append((segment, transcript.text))

    def on_recognition_failed(self, segment: int, error: BackendError) -> None:
        self.told.append((segment, None))


@asynccontextmanager
async def listening(recognizer: Recognizer) -> AsyncIterator[tuple[Recognition, Heard]]:
    heard = Heard()
    recognition = Recognition(recognizer, "sess_1", RecognizerOptions(), heard)
    running = asyncio.create_task(recognition.run())
    await asyncio.sleep(0)
    try:
        yield recognition, heard
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_five_minutes_sent_at_once_are_waited_for() -> None:
    async with listening(Recognizer(seconds_a_second=0.5)) as (recognition, heard):
        for _ in range(300):
            recognition.feed(SECOND)
        recognition.finalize()
        await asyncio.sleep(149)
        assert heard.told == []
        await asyncio.sleep(2)
    assert heard.told == [(0, "300")]


async def test_audio_in_real_time_has_six_seconds_and_no_more() -> None:
    async with listening(Recognizer(seconds_a_second=3.0)) as (recognition, heard):
        for _ in range(10):
            recognition.feed(SECOND)
            await asyncio.sleep(1)
        recognition.finalize()
        await asyncio.sleep(5.9)
        assert heard.told == []
        await asyncio.sleep(0.2)
        assert heard.told == [(0, None)]


async def test_what_comes_too_late_is_given_up_and_what_is_said_now_is_not() -> None:
    recognizer = Recognizer(seconds_a_second=100.0)
    async with listening(recognizer) as (recognition, heard):
        recognition.feed(SECOND)
        recognition.finalize()
        await asyncio.sleep(7.5)
        recognizer.seconds_a_second = 0.1
        recognition.feed(SECOND)  # while the next stream is not open yet
        await asyncio.sleep(0.5)
        assert [stream.is_closed for stream in recognizer.streams] == [True, False]
        recognition.feed(SECOND)
        recognition.finalize()
        await asyncio.sleep(1)
    assert heard.told == [(0, None), (1, "2")]


async def test_options_reach_a_recognizer_once_a_second_and_the_newest_last() -> None:
    recognizer = Recognizer(seconds_a_second=0.1)
    async with listening(recognizer) as (recognition, _):
        for number in range(400):
            recognition.set_options(RecognizerOptions(hotwords=(str(number),)))
            await asyncio.sleep(1 / 160)
        await asyncio.sleep(2)
        [stream] = recognizer.streams
    assert len(stream.options) <= 4
    assert stream.options[0].hotwords == ("0",) and stream.options[-1].hotwords == ("399",)
