"""The proxies over a transport that only records: demultiplexing, bounds, loss."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from voiceloop import event_stream
from voiceloop.backends import (
    ChatMessage,
    GenerateParams,
    Partial,
    PreemptiveDone,
    RecognizerOptions,
    Speech,
    Staged,
    VoiceOptions,
)
from voiceloop.errors import BackendRefused, Overloaded, RequestUnserved, WorkerLost
from voiceloop.workers import client as worker_client
from voiceloop.workers.client import (
    WorkerClient,
    WorkerConnection,
)
from voiceloop.workers.messages import (
    Close,
    FeedAudio,
    FrameReader,
    FromWorker,
    OpenBranch,
    Pause,
    ReadAhead,
    Ready,
    RoleReady,
    StreamEvent,
    StreamFailed,
    ToWorker,
    decode_to_worker,
    encode,
)
from voiceloop.workers.models import (
    WorkerLanguageModel,
    WorkerRecognizer,
    WorkerVoice,
)


class Wire(asyncio.Transport):
    """Stands for the socket: what was written, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self._frames = FrameReader()
        self._sent: list[ToWorker] = []

    def write(self, data: Any) -> None:
        self._sent += [decode_to_worker(body) for body in self._frames.feed(bytes(data))]

    def abort(self) -> None:
        self.closed = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def take(self) -> list[ToWorker]:
        sent, self._sent = self._sent, []
        return sent


class Worker:
    """A connected, ready worker process as the client sees it."""

    def __init__(self, client: WorkerClient) -> None:
        self.wire = Wire()
        self.connection = WorkerConnection(client.name)
        self.connection.connection_made(self.wire)
        self.say(Ready((RoleReady("voice", 0.0, 22_050),)))
        client.attach(self.connection)

    def say(self, message: FromWorker) -> None:
        self.connection.data_received(encode(message))


@pytest.fixture
def client() -> WorkerClient:
    return WorkerClient("speech")


async def test_events_reach_their_own_stream(client: WorkerClient) -> None:
    worker = Worker(client)
    one = await WorkerRecognizer(client).open("sess_1", RecognizerOptions())
    two = await WorkerRecognizer(client).open("sess_1", RecognizerOptions())
    assert one.stream_id != two.stream_id
    assert one.stream_id.startswith("sess_1/")
    worker.say(StreamEvent(two.stream_id, Partial(0, ("two",), ())))
    worker.say(StreamEvent(one.stream_id, Partial(0, ("one",), ())))
    assert await anext(one.events()) == Partial(0, ("one",), ())
    assert await anext(two.events()) == Partial(0, ("two",), ())


async def test_closing_ends_the_events_and_tells_the_worker_once(client: WorkerClient) -> None:
    worker = Worker(client)
    stream = await WorkerVoice(client).open("sess_1/turn_1", VoiceOptions())
    worker.wire.take()
    worker.say(StreamEvent(stream.stream_id, Speech(b"", 24_000)))
    await stream.close()
    await stream.close()
    stream.feed("too late")
    assert [event async for event in stream.events()] == []
    assert worker.wire.take() == [Close(stream.stream_id)]
    worker.say(StreamEvent(stream.stream_id, Speech(b"", 24_000)))  # was on its way: dropped
    assert worker.connection.n_streams == 0


async def test_a_waiting_taker_is_woken_by_close(client: WorkerClient) -> None:
    Worker(client)
    stream = await WorkerVoice(client).open("sess_1/turn_1", VoiceOptions())

    async def take() -> list[object]:
        return [event async for event in stream.events()]

    task = asyncio.create_task(take())
    await asyncio.sleep(0)
    await stream.close()
    assert await task == []


async def test_what_came_before_a_failure_is_still_delivered(client: WorkerClient) -> None:
    worker = Worker(client)
    branch = await WorkerLanguageModel(client).branch("sess_1/turn_1", ())
    worker.say(StreamEvent(branch.stream_id, Staged(1, 2, 3, 0.5)))
    worker.say(
        StreamFailed(branch.stream_id, "expected a shorter prompt, found 9000 tokens", False)
    )
    events = branch.events()
    assert await anext(events) == Staged(1, 2, 3, 0.5)
    with pytest.raises(BackendRefused, match="shorter prompt"):
        await anext(events)
    branch.commit((), GenerateParams())
    await branch.close()


async def test_what_the_model_cannot_serve_is_the_requests_fault(client: WorkerClient) -> None:
    worker = Worker(client)
    branch = await WorkerLanguageModel(client).branch("sess_1/turn_1", ())
    worker.say(StreamFailed(branch.stream_id, "expected no tools", False, is_request=True))
    with pytest.raises(RequestUnserved) as caught:
        await anext(branch.events())
    assert (caught.value.type, caught.value.http_status) == ("invalid_request_error", 400)
    await branch.close()


@pytest.mark.parametrize(
    ("text", "seed", "is_promised"), [("hi", 0, True), ("hi there", 0, False), ("hi", 1, False)]
)
async def test_the_reply_to_the_turn_answered_ahead_is_promised_to_begin_with_that(
    client: WorkerClient, text: str, seed: int, is_promised: bool
) -> None:
    Worker(client)
    branch = await WorkerLanguageModel(client).branch("sess_1/turn_1", ())
    branch.begin_preemptive(1, (ChatMessage("user", "hi"),), GenerateParams())
    tail = (ChatMessage("user", text),)
    assert branch.commit(tail, GenerateParams(seed=seed)) == is_promised
    assert not branch.commit(tail, GenerateParams(seed=seed))  # nothing was made ahead for the next
    await branch.close()


async def test_events_nobody_takes_fail_that_stream_alone(
    client: WorkerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "MAX_WAITING_EVENTS", 2)
    worker = Worker(client)
    slow = await WorkerVoice(client).open("slow", VoiceOptions())
    other = await WorkerVoice(client).open("other", VoiceOptions())
    for _ in range(3):
        worker.say(StreamEvent(slow.stream_id, Speech(b"", 24_000)))
    worker.say(StreamEvent(other.stream_id, Speech(b"x", 24_000)))
    assert Close(slow.stream_id) in worker.wire.take()
    with pytest.raises(Overloaded):
        async for _ in slow.events():
            pass
    assert await anext(other.events()) == Speech(b"x", 24_000)


async def test_sound_that_nobody_takes_pauses_what_no_call_waits_for(client: WorkerClient) -> None:
    worker = Worker(client)
    file = await WorkerVoice(client).open("file", VoiceOptions(is_batch=True))
    call = await WorkerVoice(client).open("call", VoiceOptions())
    worker.wire.take()
    piece = Speech(bytes(event_stream.PAUSED_FROM_BYTES // 4), 24_000)
    for stream in (file, call):
        for _ in range(6):
            worker.say(StreamEvent(stream.stream_id, piece))
    assert worker.wire.take() == [Pause(file.stream_id, is_paused=True)]
    events = file.events()
    for _ in range(3):
        await anext(events)
    assert worker.wire.take() == []  # more than half of it waits still
    await anext(events)
    assert worker.wire.take() == [Pause(file.stream_id, is_paused=False)]


async def test_messages_the_worker_does_not_read_are_bounded_for_each_stream(
    client: WorkerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_client, "MAX_WAITING_BYTES", 1000)
    worker = Worker(client)
    greedy = await WorkerRecognizer(client).open("greedy", RecognizerOptions())
    modest = await WorkerRecognizer(client).open("modest", RecognizerOptions())
    worker.wire.take()
    worker.connection.pause_writing()
    greedy.feed(b"\0" * 800)
    with pytest.raises(Overloaded):
        greedy.feed(b"\0" * 800)
    modest.feed(b"\1\1")
    assert worker.wire.take() == []
    worker.connection.resume_writing()
    assert worker.wire.take() == [
        FeedAudio(greedy.stream_id, b"\0" * 800),
        FeedAudio(modest.stream_id, b"\1\1"),
    ]
    worker.connection.pause_writing()
    greedy.feed(b"\0" * 800)  # what was read makes room again


async def test_a_lost_worker_fails_its_streams_and_new_ones_go_to_its_successor(
    client: WorkerClient,
) -> None:
    first = Worker(client)
    voice = WorkerVoice(client)
    old = await voice.open("sess_1/turn_1", VoiceOptions())
    first.connection.connection_lost(None)
    client.detach()
    with pytest.raises(WorkerLost):
        await anext(old.events())
    opening = asyncio.create_task(voice.open("sess_1/turn_2", VoiceOptions()))
    await asyncio.sleep(0)
    second = Worker(client)
    new = await opening
    second.say(StreamEvent(new.stream_id, Speech(b"new", 22_050)))
    assert await anext(new.events()) == Speech(b"new", 22_050)
    assert voice.rate_hz == 22_050
    await old.close()


async def test_of_calls_that_wait_for_a_process_the_newest_is_heard_first(
    client: WorkerClient,
) -> None:
    recognizer = WorkerRecognizer(client)
    calls = [
        asyncio.create_task(recognizer.open(f"sess_{n}", RecognizerOptions())) for n in range(3)
    ]
    await asyncio.sleep(0)
    calls[1].cancel()  # it has hung up
    await asyncio.sleep(0)
    worker = Worker(client)
    await asyncio.gather(*calls, return_exceptions=True)
    opened = [message.stream_id.partition("/")[0] for message in worker.wire.take()]
    assert opened == ["sess_2", "sess_0"]


async def test_every_process_is_told_first_what_all_prompts_begin_with(
    client: WorkerClient,
) -> None:
    first = Worker(client)
    WorkerLanguageModel(client).read_ahead((ChatMessage("system", "be brief"),), ())
    [told] = first.wire.take()
    assert isinstance(told, ReadAhead) and told.history[0].content == "be brief"
    first.connection.connection_lost(None)
    client.detach()
    second = Worker(client)
    await WorkerLanguageModel(client).branch("sess_1/turn_1", ())
    assert [type(message) for message in second.wire.take()] == [ReadAhead, OpenBranch]


@pytest.mark.virtual_time
async def test_a_worker_that_stays_away_is_not_waited_for_long(client: WorkerClient) -> None:
    with pytest.raises(WorkerLost, match="speech"):
        await WorkerVoice(client).open("sess_1/turn_1", VoiceOptions())


async def test_a_worker_that_breaks_the_protocol_is_cut_off(client: WorkerClient) -> None:
    worker = Worker(client)
    worker.connection.data_received(b"\0\0\0\1\x00")
    assert worker.wire.closed


@pytest.mark.parametrize(("said", "is_promised"), [("hi", True), ("hello", False)])
async def test_a_reply_is_promised_where_its_turn_was_answered_ahead_last(
    client: WorkerClient, said: str, is_promised: bool
) -> None:
    worker = Worker(client)
    branch = await WorkerLanguageModel(client).branch("sess_1/turn_1", ())
    branch.begin_preemptive(1, (ChatMessage("user", "hello"),), GenerateParams())
    branch.begin_preemptive(2, (ChatMessage("user", "hi"),), GenerateParams())
    worker.say(
        StreamEvent(branch.stream_id, PreemptiveDone(2, "lost"))
    )  # its text stays, in the worker
    assert branch.commit((ChatMessage("user", said),), GenerateParams()) == is_promised
