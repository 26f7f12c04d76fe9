"""A worker with several gateways: whose stream is whose, whose turn it is, who reads nothing."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from voiceloop.backends import Speech, VoiceOptions
from voiceloop.workers import peer as peers
from voiceloop.workers.messages import (
    Close,
    Drain,
    Draining,
    FeedText,
    FrameReader,
    FromWorker,
    Heartbeat,
    OpenVoice,
    ReadAhead,
    Ready,
    RoleSpec,
    StreamEvent,
    StreamFailed,
    ToWorker,
    WorkerSpec,
    decode_from_worker,
    encode,
)
from voiceloop.workers.peer import Peer
from voiceloop.workers.worker import Worker

pytestmark = pytest.mark.usefixtures("scripted_roles")


class Line:
    """A gateway's end."""

    def __init__(self) -> None:
        self.socket, self.theirs = socket.socketpair()
        self.socket.settimeout(10)
        self.beats: list[Heartbeat] = []
        self._frames = FrameReader()
        self._messages: list[FromWorker] = []

    def close(self) -> None:
        self.socket.close()
        self.theirs.close()

    def send(self, *messages: ToWorker) -> None:
        self.socket.sendall(b"".join(encode(message) for message in messages))

    def next(self) -> FromWorker:
        """The next message that is no heartbeat."""
        while True:
            while not self._messages:
                data = self.socket.recv(1 << 20)
                assert data, "the worker has hung up"
                self._messages += [decode_from_worker(body) for body in self._frames.feed(data)]
            message = self._messages.pop(0)
            if not isinstance(message, Heartbeat):
                return message
            self.beats.append(message)


class Doorway:
    """Gateways that have come in."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._come: list[Peer] = []
        self._lines: list[Line] = []

    def close(self) -> None:
        for line in self._lines:
            line.close()
        os.close(self._reading)
        os.close(self._writing)

    def fileno(self) -> int:
        return self._reading

    def take(self) -> list[Peer]:
        try:
            os.read(self._reading, 100)
        except BlockingIOError:
            return []
        come, self._come = self._come, []
        return come

    def enter(self, name: str) -> Line:
        line = Line()
        self._lines.append(line)
        self._come.append(Peer(line.theirs, name, time.monotonic))
        os.write(self._writing, b".")
        assert isinstance(line.next(), Ready)
        return line


class Running:
    """A worker with one scripted voice, its parent, and a door."""

    def __init__(self) -> None:
        self.parent, self.door = Line(), Doorway()
        self.worker = Worker(
            self.parent.theirs, WorkerSpec("test", (RoleSpec("voice", {}, "scripted_roles:load"),))
        )
        self.worker.load()
        self.worker.let_in_by(self.door)
        self._thread = threading.Thread(target=self.worker.run)
        self._thread.start()
        while not isinstance(self.parent.next(), Ready):
            pass

    def close(self) -> None:
        self.parent.socket.close()
        self._thread.join(10)
        assert not self._thread.is_alive()
        self.parent.close()
        self.door.close()


@pytest.fixture
def running() -> Iterator[Running]:
    worker = Running()
    yield worker
    worker.close()


def spoken(line: Line) -> tuple[str, bytes]:
    message = line.next()
    assert isinstance(message, StreamEvent) and isinstance(message.event, Speech), message
    return message.stream_id, message.event.samples


def test_nobody_touches_a_stream_of_another(running: Running) -> None:
    one, two = running.door.enter("one"), running.door.enter("two")
    one.send(OpenVoice("a", VoiceOptions()), FeedText("a", "mine"))
    assert spoken(one) == ("a", b"mine")
    two.send(
        Close("a"), FeedText("a", "not mine"), OpenVoice("a", VoiceOptions()),
        OpenVoice("b", VoiceOptions()), FeedText("b", "mine too"),
    )  # fmt: skip
    assert spoken(two) == ("b", b"mine too")
    one.send(FeedText("a", "still mine"))
    assert spoken(one) == ("a", b"still mine")


def test_a_gateway_that_goes_ends_its_own_streams_only(running: Running) -> None:
    one, two = running.door.enter("one"), running.door.enter("two")
    for line, name in ((one, "a"), (two, "b")):
        line.send(OpenVoice(name, VoiceOptions()), FeedText(name, "hello"))
        spoken(line)
    one.socket.close()
    two.beats.clear()
    while not (two.beats and two.beats[-1].n_streams == 1):
        two.send(FeedText("b", "there?"))
        assert spoken(two) == ("b", b"there?")


def test_bytes_that_are_no_protocol_cost_their_sender_its_line(running: Running) -> None:
    one, two = running.door.enter("one"), running.door.enter("two")
    one.socket.sendall(b"\xff" * 64)
    while one.socket.recv(65536):
        pass  # heartbeats, then the end
    two.send(OpenVoice("b", VoiceOptions()), FeedText("b", "hello"))
    assert spoken(two) == ("b", b"hello")


def test_a_gateway_that_reads_nothing_loses_its_streams_and_no_neighbour_notices(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "MAX_WAITING_BYTES", 100_000)
    deaf, other = running.door.enter("deaf"), running.door.enter("other")
    deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.send(OpenVoice("a", VoiceOptions()))
    long = "x" * 50_000
    other.send(OpenVoice("b", VoiceOptions()))
    for _ in range(20):
        deaf.send(FeedText("a", long))
        other.send(FeedText("b", "hello"))
        assert spoken(other) == ("b", b"hello")
    found = deaf.next()
    while not isinstance(found, StreamFailed):
        found = deaf.next()
    assert found.stream_id == "a" and found.retryable
    assert "expected deaf to read" in found.message


def test_messages_are_passed_on_by_turns() -> None:
    ends = [Line(), Line()]
    worker = Worker(ends[0].theirs, WorkerSpec("test", ()))
    worker._peers.append(Peer(ends[1].theirs, "other", time.monotonic))
    passed: list[str] = []
    worker._receive = lambda message, peer: passed.append(message.stream_id)  # type: ignore[method-assign, assignment, union-attr]
    ends[0].send(*(Close(f"busy {n}") for n in range(4)))
    ends[1].send(Close("quiet"))
    worker._take_in(0.0)
    worker._pass_on()
    assert passed == ["busy 0", "quiet", "busy 1", "busy 2", "busy 3"]
    for end in ends:
        end.close()


def test_all_gateways_are_told_that_the_worker_will_end_and_whoever_comes_later(
    running: Running,
) -> None:
    one = running.door.enter("one")
    one.send(Drain())  # not its to say
    one.send(OpenVoice("a", VoiceOptions()), FeedText("a", "hello"))
    assert spoken(one) == ("a", b"hello")
    running.parent.send(Drain())
    assert one.next() == Draining()
    assert running.door.enter("late").next() == Draining()


def test_one_that_has_read_nothing_for_long_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    line = Line()
    peer = Peer(line.theirs, "stuck", lambda: now[0])
    big = [StreamFailed("a", "x" * 2**20)]
    peer.send(big)
    assert peer.awaits & 4 and not peer.is_gone  # something waits to be written
    now[0] = peers.UNREAD_S + 0.1
    peer.flush()
    assert peer.is_gone
    line.close()


def test_one_that_is_lost_while_it_is_written_to_is_polled_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line, other = Line(), Line()
    worker = Worker(line.theirs, WorkerSpec("test", ()))
    stuck = Peer(other.theirs, "stuck", time.monotonic)
    worker._peers.append(stuck)
    worker._take_in(0.0)  # now it is polled
    monkeypatch.setattr(peers, "UNREAD_S", -1.0)
    stuck.send([StreamFailed("a", "x" * 2**22)])
    stuck.flush()
    assert stuck.is_gone
    worker._see_off()
    assert worker._poll.poll(0) == []  # a closed descriptor would wake the loop for ever
    worker._take_in(0.0)
    line.close()
    other.close()


def test_what_is_read_ahead_for_nobody_opens_no_stream(running: Running) -> None:
    one = running.door.enter("one")
    one.send(ReadAhead("operator/1", ()))
    one.beats.clear()
    one.send(OpenVoice("a", VoiceOptions()))
    while not one.beats:
        one.send(FeedText("a", "hello"))
        assert spoken(one) == ("a", b"hello")
    assert one.beats[-1].n_streams == 1


def test_a_call_between_two_turns_is_counted_and_one_that_is_long_silent_is_not() -> None:
    now_s = 0.0
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = Peer(ours, "gateway", lambda: now_s)
        for stream_id in ("sess_1.b1/g.1", "sess_1.b2/g.2", "sess_2.b1/g.3", "http-7/g.4"):
            peer.open(stream_id)
        assert peer.n_calls() == 3
        for stream_id in ("sess_1.b1/g.1", "sess_2.b1/g.3", "http-7/g.4"):
            peer.forget(stream_id)
        now_s = peers.CALL_S - 1
        assert peer.n_calls() == 2  # what was asked over HTTP is over
        now_s = peers.CALL_S + 1
        assert peer.n_calls() == 1


def test_what_a_gateway_sends_within_one_step_has_a_bound_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "MAX_READ_AHEAD_BYTES", 1000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = Peer(theirs, "gateway", time.monotonic)
        message = FeedText("sess_1.turn_1", "x" * 600)
        ours.sendall(2 * encode(message))
        assert peer.awaits & select.POLLIN
        peer.read()
        assert len(peer.inbox) == 2 and not peer.awaits & select.POLLIN
        assert peer.take() == message
        assert peer.awaits & select.POLLIN  # what waits on the socket comes now
