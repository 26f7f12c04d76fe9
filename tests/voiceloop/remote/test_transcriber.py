"""A recognizer behind a transcription session: what is committed when, and what is made of it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection, serve

from audio.resample import Resampler
from tests.tables import each_row
from voiceloop.backends import Partial, RecognizerOptions, Transcript
from voiceloop.errors import BackendError, BackendRefused
from voiceloop.remote.realtime_session import PART_BYTES, address_of, appended
from voiceloop.remote.transcriber import RemoteTranscriber, RemoteTranscriberStream

LOUD = (8000 * np.sin(np.arange(8000) / 5)).astype("<i2").tobytes()  # half a second
PAUSE = bytes(3200)  # a tenth of a second
ITEM = "conversation.item.input_audio_transcription"


class Transcriptions:
    """A scripted transcription server: each commit is answered by the next text."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refuses: str | None = None
        self.fails = False
        self.hold: asyncio.Event | None = None  # before each answer
        self.settings: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.n_bytes: list[int] = []  # of each commit
        self.url = ""
        self._sockets: set[ServerConnection] = set()

    async def handle(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.paths.append(socket.request.path)
        self._sockets.add(socket)
        await self._say(socket, type="session.created", session={})
        n_bytes = 0
        async for frame in socket:
            event = json.loads(frame)
            match event["type"]:
                case "session.update" if self.refuses:
                    await self._say(socket, type="error", error={"message": self.refuses})
                case "session.update":
                    self.settings.append(event["session"])
                    await self._say(socket, type="session.updated", session=event["session"])
                case "input_audio_buffer.append":
                    n_bytes += len(base64.b64decode(event["audio"]))
                case "input_audio_buffer.clear":
                    n_bytes = 0
                case "input_audio_buffer.commit":
                    self.n_bytes.append(n_bytes)
                    n_bytes = 0
                    await self._answer(socket, f"item_{len(self.n_bytes)}")

    async def _answer(self, socket: ServerConnection, item: str) -> None:
        await self._say(socket, type="input_audio_buffer.committed", item_id=item)
        if self.hold is not None:
            await self.hold.wait()
        if self.fails:
            await self._say(socket, type=f"{ITEM}.failed", item_id=item, error={"message": "oom"})
            return
        text = self.texts.pop(0)
        for piece in text.split():
            await self.delta(item, f"{piece} ", socket)
        await self._say(socket, type=f"{ITEM}.completed", item_id=item, transcript=text)

    async def delta(self, item: str, text: str, socket: ServerConnection | None = None) -> None:
        socket = socket or next(iter(self._sockets))
        await self._say(socket, type=f"{ITEM}.delta", item_id=item, delta=text)

    async def drop(self) -> None:
        for socket in self._sockets:
            await socket.close(1011)

    async def _say(self, socket: ServerConnection, **event: Any) -> None:
        await socket.send(json.dumps(event))


@pytest.fixture
async def server() -> AsyncIterator[Transcriptions]:
    transcriptions = Transcriptions()
    async with serve(transcriptions.handle, "127.0.0.1", 0) as running:
        port = running.sockets[0].getsockname()[1]
        transcriptions.url = f"ws://127.0.0.1:{port}/v1"
        yield transcriptions


async def test_a_key_in_the_address_is_sent_and_never_told(server: Transcriptions) -> None:
    host = server.url.removeprefix("ws://")
    await RemoteTranscriber(f"ws://{host}?api-key=s3cret", model="m").start()
    assert server.paths == ["/v1/realtime?api-key=s3cret&intent=transcription"]
    with pytest.raises(BackendError) as raised:
        await RemoteTranscriber("ws://me:s3cret@127.0.0.1:9/v1?key=s3cret", model="m").start()
    assert "127.0.0.1:9/v1" in raised.value.message and "s3cret" not in raised.value.message


@pytest.fixture
async def stream(server: Transcriptions) -> AsyncIterator[RemoteTranscriberStream]:
    options = RecognizerOptions(hotwords=("Zoe",))
    opened = await RemoteTranscriber(server.url, model="m").open("sess_1", options)
    yield opened
    await opened.close()


def speak(stream: RemoteTranscriberStream, audio: bytes) -> None:
    for start in range(0, len(audio), 640):
        stream.feed(audio[start : start + 640])


async def until(stream: RemoteTranscriberStream, kind: type) -> Any:
    async for event in stream.events():
        if isinstance(event, kind) and (not isinstance(event, Partial) or event.flushed):
            return event
    raise AssertionError("the stream ended")


async def test_the_session_is_a_transcription_without_turn_detection(
    server: Transcriptions, stream: RemoteTranscriberStream
) -> None:
    assert server.paths == ["/v1/realtime?intent=transcription"]
    asked = server.settings[0]["audio"]["input"]
    assert asked["turn_detection"] is None
    assert asked["format"] == {"type": "audio/pcm", "rate": 24_000}
    assert asked["transcription"] == {"model": "m", "language": "en", "prompt": "Zoe"}


async def test_it_is_told_of_other_words_and_not_of_a_number_that_was_asked_for(
    server: Transcriptions, stream: RemoteTranscriberStream
) -> None:
    for options in (
        RecognizerOptions(hotwords=("Zoe",), n_digits=10),
        RecognizerOptions(hotwords=("Ana",), n_digits=10),
        RecognizerOptions(hotwords=("Ana",)),
    ):
        stream.set_options(options)
    server.texts = ["hello"]
    speak(stream, LOUD)
    stream.flush()
    speak(stream, PAUSE)
    await until(stream, Partial)
    told = [one["audio"]["input"]["transcription"]["prompt"] for one in server.settings]
    assert told == ["Zoe", "Ana"]


async def test_a_pause_is_committed_and_the_end_of_the_turn_then_costs_nothing(
    server: Transcriptions, stream: RemoteTranscriberStream
) -> None:
    server.texts = ["hello"]
    speak(stream, LOUD)
    stream.flush()
    speak(stream, PAUSE)
    assert await until(stream, Partial) == Partial(0, ("hello",), (), flushed=True)
    stream.finalize()
    assert (await until(stream, Transcript)).text == "hello"
    assert len(server.n_bytes) == 1


async def test_a_gap_shorter_than_a_pause_cuts_no_word(
    server: Transcriptions, stream: RemoteTranscriberStream
) -> None:
    server.texts = ["hello"]
    speak(stream, LOUD)
    stream.flush()
    speak(stream, PAUSE[:1280] + LOUD)
    stream.finalize()
    assert (await until(stream, Transcript)).text == "hello"
    assert len(server.n_bytes) == 1


async def test_what_follows_a_pause_joins_the_same_segment(
    server: Transcriptions, stream: RemoteTranscriberStream
) -> None:
    server.texts = ["a table", "for two"]
    speak(stream, LOUD)
    stream.flush()
    speak(stream, PAUSE)
    await until(stream, Partial)
    speak(stream, LOUD)
    stream.finalize()
    transcript = await until(stream, Transcript)
    assert (transcript.segment, transcript.text) == (0, "a table for two")
    starts = [word.start_ms for word in transcript.words]
    assert starts == sorted(starts) and starts[2] == pytest.approx(600)


async def test_a_flush_overtaken_by_speech_and_another_is_answered_with_that(
    server: Transcriptions, stream: RemoteTranscriberStream
) -> None:
    server.hold = asyncio.Event()
    server.texts = ["a table", "for two"]
    for _ in range(2):
        speak(stream, LOUD)
        stream.flush()
        speak(stream, PAUSE)
    server.hold.set()
    async with asyncio.timeout(5.0):
        answers = [await until(stream, Partial) for _ in range(2)]
    assert answers == [Partial(0, ("a", "table", "for", "two"), (), flushed=True)] * 2


async def test_words_sent_before_the_commit_are_partials_of_it(
    server: Transcriptions, stream: RemoteTranscriberStream
) -> None:
    speak(stream, LOUD)
    await server.delta("item_1", "a ta")
    assert await anext(stream.events()) == Partial(0, ("a",), ("ta",))
    server.texts = ["a table"]
    stream.finalize()
    assert (await until(stream, Transcript)).text == "a table"


async def test_transcripts_come_in_the_order_of_their_segments(
    server: Transcriptions, stream: RemoteTranscriberStream
) -> None:
    server.hold = asyncio.Event()
    server.texts = ["first", "second"]
    for _ in range(2):
        speak(stream, LOUD)
        stream.finalize()
    server.hold.set()
    found = [await until(stream, Transcript), await until(stream, Transcript)]
    assert [(t.segment, t.text) for t in found] == [(0, "first"), (1, "second")]


async def test_silence_is_not_committed(
    server: Transcriptions, stream: RemoteTranscriberStream
) -> None:
    speak(stream, PAUSE * 5)
    stream.flush()
    speak(stream, PAUSE)
    assert await until(stream, Partial) == Partial(0, (), (), flushed=True)
    stream.finalize()
    assert await until(stream, Transcript) == Transcript(0, ())
    assert server.n_bytes == []


async def test_a_refused_session_is_said_with_the_services_own_words(
    server: Transcriptions,
) -> None:
    server.refuses = "no such model"
    with pytest.raises(BackendRefused, match="no such model"):
        await RemoteTranscriber(server.url, model="m").open("sess_1", RecognizerOptions())


async def test_a_refused_session_does_not_shut_others_out(server: Transcriptions) -> None:
    recognizer = RemoteTranscriber(server.url, model="m")
    server.refuses = "no such language"
    for _ in range(4):
        with pytest.raises(BackendRefused):
            await recognizer.open("sess_1", RecognizerOptions())
    server.refuses = None
    await (await recognizer.open("sess_1", RecognizerOptions())).close()


async def test_a_service_that_fails_is_left_alone_and_found_again() -> None:
    now = [100.0]
    recognizer = RemoteTranscriber("ws://127.0.0.1:1/v1", model="m", clock=lambda: now[0])
    for _ in range(3):
        with pytest.raises(BackendError, match="expected a transcription session"):
            await recognizer.open("sess_1", RecognizerOptions())
    assert not recognizer.reachable
    with pytest.raises(BackendError, match="keeps failing"):
        await recognizer.open("sess_1", RecognizerOptions())
    now[0] += 3.0
    assert recognizer.reachable  # so that a call is admitted, which finds out


async def test_a_failed_transcription_fails_the_stream_in_one_sentence(
    server: Transcriptions, stream: RemoteTranscriberStream
) -> None:
    server.fails = True
    speak(stream, LOUD)
    stream.finalize()
    with pytest.raises(BackendError, match="failed to transcribe: oom"):
        await until(stream, Transcript)


async def test_a_lost_connection_fails_the_stream(
    server: Transcriptions, stream: RemoteTranscriberStream
) -> None:
    await server.drop()
    with pytest.raises(BackendError, match="connection lost"):
        await until(stream, Transcript)


@each_row(
    ("url", "query", "address"),
    [
        ("ws://h:1/v1", "intent=t", "ws://h:1/v1/realtime?intent=t"),
        (
            "wss://h/v1/realtime/?deployment=d",
            "model=m",
            "wss://h/v1/realtime?deployment=d&model=m",
        ),
        ("ws://h", "", "ws://h/realtime"),
    ],
)
def test_a_session_is_opened_at_a_service_s_url_with_or_without_its_path(
    url: str, query: str, address: str
) -> None:
    assert address_of(url, query) == address


def test_sound_of_a_long_turn_is_sent_in_parts_below_what_a_message_may_hold() -> None:
    sound = bytes(PART_BYTES + 3200)
    sent = [event["audio"] for event in appended(Resampler(16_000, 16_000), sound, is_last=True)]
    assert b"".join(map(base64.b64decode, sent)) == sound
    assert [len(base64.b64decode(part)) for part in sent] == [PART_BYTES, 3200]
