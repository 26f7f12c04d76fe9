"""The worker's loop over one end of a socket pair, driven in a thread."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import cast

import pytest

from voiceloop.backends import (
    ChatMessage,
    Generated,
    GenerateParams,
    RecognizerOptions,
    Speech,
    Staged,
    TextDelta,
    Transcript,
    VoiceOptions,
)
from voiceloop.workers.messages import (
    Asked,
    Close,
    Commit,
    FeedAudio,
    FeedText,
    Finalize,
    FrameReader,
    FromWorker,
    Heartbeat,
    LoadFailed,
    OpenBranch,
    OpenRecognizer,
    OpenVoice,
    Ready,
    RoleSpec,
    Settle,
    Settled,
    Stage,
    StreamEvent,
    StreamFailed,
    ToWorker,
    WorkerSpec,
    decode_from_worker,
    encode,
)
from voiceloop.workers.process_setup import limit_threads
from voiceloop.workers.roles.role import Role, RoleError, load_role
from voiceloop.workers.worker import Worker

pytestmark = pytest.mark.usefixtures("scripted_roles")


class Gateway:
    """The other end: sends messages, and reads until it has seen what it waits for."""

    def __init__(self, *roles: RoleSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(10)
        self.n_heartbeats = 0
        self._frames = FrameReader()
        self._messages: list[FromWorker] = []
        self._worker = Worker(theirs, WorkerSpec("test", roles), clock)
        self._worker.load()
        self._theirs = theirs
        self._thread = threading.Thread(target=self._worker.run)
        self._thread.start()

    def send(self, *messages: ToWorker) -> None:
        self.socket.sendall(b"".join(encode(message) for message in messages))

    def next(self) -> FromWorker:
        """The next message that is not a heartbeat."""
        while True:
            while not self._messages:
                bodies = self._frames.feed(self.socket.recv(65536))
                self._messages += [decode_from_worker(body) for body in bodies]
            message = self._messages.pop(0)
            if not isinstance(message, Heartbeat):
                return message
            self.n_heartbeats += 1

    def close(self) -> None:
        self.socket.close()
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._theirs.close()


def role(name: str, factory: str = "load", **options: object) -> RoleSpec:
    return RoleSpec(name, dict(options), f"scripted_roles:{factory}")  # type: ignore[arg-type]


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    running = Gateway(role("recognizer"), role("voice"))
    yield running
    running.close()


def after_ready(gateway: Gateway) -> Ready:
    while not isinstance(message := gateway.next(), Ready):
        pass
    return message


def test_it_says_what_it_holds_before_streams_are_opened(gateway: Gateway) -> None:
    ready = after_ready(gateway)
    assert [role.role for role in ready.roles] == ["recognizer", "voice"]
    assert ready.roles[1].rate_hz == 24_000


def test_events_carry_the_stream_they_belong_to(gateway: Gateway) -> None:
    after_ready(gateway)
    gateway.send(
        OpenRecognizer("sess_1/0", RecognizerOptions()),
        OpenVoice("sess_1/turn_1/1", VoiceOptions()),
        FeedAudio("sess_1/0", b"\0\0" * 160),
        Finalize("sess_1/0"),
        FeedText("sess_1/turn_1/1", "hi"),
    )
    events = {message.stream_id: message for message in (gateway.next(), gateway.next())}
    transcript, speech = events["sess_1/0"], events["sess_1/turn_1/1"]
    assert isinstance(transcript, StreamEvent) and isinstance(transcript.event, Transcript)
    assert transcript.event.text == "160"
    assert isinstance(speech, StreamEvent) and isinstance(speech.event, Speech)
    assert speech.sent_at > 0


def test_it_says_that_all_is_computed_behind_what_came_of_it(gateway: Gateway) -> None:
    after_ready(gateway)
    gateway.send(
        OpenRecognizer("sess_1/0", RecognizerOptions()),
        FeedAudio("sess_1/0", b"\0\0" * 160),
        Finalize("sess_1/0"),
        Settle(1),
        Settle(2),
    )
    told = []
    while not isinstance(message := gateway.next(), Settled) or message.number != 2:
        told.append(message)
    assert any(isinstance(one, StreamEvent) for one in told)
    gateway.send(Settle(3))
    assert gateway.next() == Settled(3)


def test_a_failed_stream_is_forgotten_and_the_loop_goes_on(gateway: Gateway) -> None:
    after_ready(gateway)
    gateway.send(
        OpenVoice("a", VoiceOptions()),
        OpenVoice("b", VoiceOptions()),
        FeedText("a", "refuse"),
        FeedText("a", "unheard"),
        FeedText("b", "heard"),
    )
    assert gateway.next() == StreamFailed("a", "expected a speakable text, found 'refuse'", False)
    message = gateway.next()
    assert isinstance(message, StreamEvent) and message.stream_id == "b"


def test_a_closed_stream_is_silent_and_closing_twice_is_fine(gateway: Gateway) -> None:
    after_ready(gateway)
    gateway.send(
        OpenVoice("a", VoiceOptions()),
        FeedText("a", "never spoken"),
        Close("a"),
        Close("a"),
        FeedText("a", "nor this"),
        OpenVoice("b", VoiceOptions()),
        FeedText("b", "spoken"),
    )
    message = gateway.next()
    assert isinstance(message, StreamEvent) and message.stream_id == "b"


def test_a_role_that_is_not_here_fails_only_the_stream_that_asks(gateway: Gateway) -> None:
    after_ready(gateway)
    gateway.send(OpenBranch("a", ()))
    failed = gateway.next()
    assert isinstance(failed, StreamFailed)
    assert "expected a role of this worker (recognizer, voice), found engine" in failed.message


def test_the_heart_beats_from_the_step_loop(gateway: Gateway) -> None:
    after_ready(gateway)
    gateway.send(OpenVoice("a", VoiceOptions()))
    while gateway.n_heartbeats < 2:
        gateway.send(FeedText("a", "x"))
        gateway.next()


def test_a_step_is_told_of_a_commit_and_that_is_passed_on_before_the_next(
    scripted_roles: ModuleType,
) -> None:
    tail = (ChatMessage("user", "hello"),)
    arriving: list[ToWorker] = [
        Stage("a", 2, "he"),
        Commit("a", tail, GenerateParams(is_batch=True)),
        Commit("a", tail, GenerateParams()),
    ]
    told: list[list[str]] = []

    class Asking(scripted_roles.EchoRole):  # type: ignore[misc, name-defined]
        """Has something arrive in the middle of its step, and asks what that was."""

        def step(self, asked: Callable[[], Sequence[Asked]] | None = None) -> object:
            assert asked is not None
            while arriving:
                gateway.send(arriving.pop(0))
                told.append([one.stream_id for one in asked()])
            return super().step(asked)

    scripted_roles.asking = Asking
    gateway = Gateway(role("engine", "asking"))
    after_ready(gateway)
    gateway.send(OpenBranch("a", ()), Stage("a", 1, "h"))
    answers = [gateway.next() for _ in range(4)]
    gateway.close()
    assert told == [[], [], ["a"]]
    assert [type(a.event) for a in answers if isinstance(a, StreamEvent)] == [
        Staged, Staged, TextDelta, Generated,
    ]  # fmt: skip


def test_what_arrives_within_the_last_step_is_passed_on_at_once(
    scripted_roles: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "voiceloop.workers.worker.HEARTBEAT_S", 3600.0
    )  # it would be woken by nothing else
    arriving: list[ToWorker] = [Stage("a", 2, "he")]

    class Asking(scripted_roles.EchoRole):  # type: ignore[misc, name-defined]
        """Has something arrive in its only step."""

        def step(self, asked: Callable[[], Sequence[Asked]] | None = None) -> object:
            while arriving:
                gateway.send(arriving.pop(0))
                assert asked is not None and not asked()
            return super().step(asked)

    scripted_roles.asking = Asking
    gateway = Gateway(role("engine", "asking"))
    after_ready(gateway)
    gateway.send(OpenBranch("a", ()), Stage("a", 1, "h"))
    answers = [gateway.next() for _ in range(2)]
    gateway.close()
    assert [type(a.event) for a in answers if isinstance(a, StreamEvent)] == [Staged, Staged]


def test_a_file_is_heard_once_what_a_caller_waits_for_is_answered(gateway: Gateway) -> None:
    after_ready(gateway)
    gateway.send(
        OpenRecognizer("file", RecognizerOptions(is_batch=True)),
        FeedAudio("file", bytes(320)),
        Finalize("file"),
        OpenRecognizer("call", RecognizerOptions()),
        FeedAudio("call", bytes(320)),
        Finalize("call"),
    )
    answered = [message.stream_id for message in (gateway.next(), gateway.next())
                if isinstance(message, StreamEvent)]  # fmt: skip
    assert answered == ["call", "file"]


def test_a_file_that_nobody_wants_any_more_is_never_heard(gateway: Gateway) -> None:
    after_ready(gateway)
    gateway.send(
        OpenRecognizer("call", RecognizerOptions()),
        FeedAudio("call", bytes(320)),
        OpenRecognizer("file", RecognizerOptions(is_batch=True)),
        FeedAudio("file", bytes(320)),
        Finalize("file"),
        Close("file"),
        OpenRecognizer("another", RecognizerOptions(is_batch=True)),
        Finalize("another"),
    )
    answer = gateway.next()
    assert isinstance(answer, StreamEvent) and answer.stream_id == "another"


def test_options_that_a_role_does_not_know_are_named() -> None:
    with pytest.raises(RoleError, match="unexpected keyword argument 'colour'"):
        load_role(role("voice", colour="red"))


@pytest.mark.parametrize("factory", ["no_such_module:load", "scripted_roles:no_such_function"])
def test_a_factory_that_is_not_there_is_named(factory: str) -> None:
    with pytest.raises(RoleError, match="expected the factory"):
        load_role(RoleSpec("voice", {}, factory))


def test_threads_are_limited_and_wait_passively(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    limit_threads(2)
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


def test_many_streams_opened_at_once_are_no_silence() -> None:
    # A second at each look once they are sent, and no more heartbeats than the socket holds unread.
    # Until then the worker stands still: it would spend those seconds before they come.
    seconds = itertools.chain(range(100), itertools.repeat(100))
    is_sent, goes_on = threading.Event(), threading.Event()
    goes_on.set()

    def clock() -> float:
        goes_on.wait(30)
        return float(next(seconds)) if is_sent.is_set() else 0.0

    gateway = Gateway(role("voice"), clock=clock)
    after_ready(gateway)
    options = RecognizerOptions()  # of a role that is not here: each is answered by a failure
    goes_on.clear()
    gateway.send(*(OpenRecognizer(f"r{n}", options) for n in range(5)))
    is_sent.set()
    goes_on.set()
    assert isinstance(gateway.next(), StreamFailed)
    for _ in range(4):
        n_before = gateway.n_heartbeats
        assert isinstance(gateway.next(), StreamFailed)
        assert gateway.n_heartbeats > n_before
    gateway.close()


@pytest.mark.parametrize("when", ["load", "warm_up"])
def test_what_a_driver_raises_while_a_role_loads_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("CUDA error: no kernel image is available\nCompile with ...")

    class Failing:
        warm_up = failing

    found = failing if when == "load" else lambda _: Failing()
    monkeypatch.setattr("voiceloop.workers.roles.role.load_role", found)
    ours, theirs = socket.socketpair()
    with pytest.raises(RoleError):
        Worker(theirs, WorkerSpec("test", (role("engine"),))).load()
    theirs.close()
    ours.settimeout(10)
    frames = FrameReader()
    sent = [decode_from_worker(body) for body in frames.feed(ours.recv(65536))]
    ours.close()
    assert sent[-1] == LoadFailed(
        "engine",
        "expected the engine to load and to answer, found RuntimeError: CUDA error: no kernel "
        "image is available",
    )


def test_a_worker_beats_within_a_step_that_asks_for_commits() -> None:
    """So a long one is no hang, and no spinning."""
    ours, theirs = socket.socketpair()
    now_s = 0.0
    worker = Worker(theirs, WorkerSpec("test", (role("engine"),)), lambda: now_s)
    worker.load()

    class Long:
        def step(self, asked: Callable[[], Sequence[Asked]]) -> Sequence[StreamEvent]:
            nonlocal now_s
            for _ in range(20):
                now_s += 1.0
                assert not asked()
            return []

    worker._step(cast(Role, Long()))
    ours.settimeout(10)
    frames, n_beats = FrameReader(), 0
    while n_beats < 20:
        found = [decode_from_worker(body) for body in frames.feed(ours.recv(65536))]
        n_beats += sum(isinstance(message, Heartbeat) for message in found)
    ours.close()
    theirs.close()
