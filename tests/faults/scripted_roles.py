"""Roles without a model, for worker processes in tests: they echo, and misbehave when asked to.

A worker finds this module by ``PYTHONPATH``; it imports no model, so such a worker starts in a
tenth of a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from voiceloop.backends import (
    Generated,
    Partial,
    Speech,
    SpeechEnd,
    Staged,
    TextDelta,
    Transcript,
    Usage,
    Word,
)
from voiceloop.workers.messages import (
    MAX_MESSAGE_BYTES,
    Commit,
    FeedAudio,
    FeedText,
    Finalize,
    FinishText,
    Flush,
    OpenBranch,
    OpenRecognizer,
    OpenVoice,
    Stage,
    StreamEvent,
    StreamFailed,
    StreamOutput,
    ToRole,
)
from voiceloop.workers.roles.role import RoleBroken, RoleError, StreamError


class EchoRole:
    """Answers every message at the next step; ``raise_at_steps`` makes these steps of it fail."""

    rate_hz = 24_000
    detail = "scripted"
    tokenizer = b""
    tokens = ""
    served: Mapping[str, str] = {}

    def __init__(self, raise_at_steps: Sequence[int] = ()) -> None:
        self.open: list[str] = []
        self.closed: list[str] = []
        self._raise_at_steps = raise_at_steps
        self._n_steps = 0
        self._must_fail = False
        self._due: list[StreamEvent | StreamFailed] = []
        self._n_samples = 0
        self._unfinished: set[str] = set()

    def warm_up(self) -> None:
        pass

    def receive(self, message: ToRole) -> None:
        match message:
            case OpenRecognizer() | OpenBranch() | OpenVoice():
                self.open.append(message.stream_id)
            case FeedAudio():
                self._n_samples += len(message.samples) // 2
            case Flush():
                self._answer(message.stream_id, Partial(0, (str(self._n_samples),), (), True))
            case Finalize():
                words = (Word(str(self._n_samples), 0.0, 1.0),)
                self._answer(message.stream_id, Transcript(0, words))
            case Stage():
                self._answer(message.stream_id, Staged(message.stage_id, 1, 1, 0.5))
            case Commit() if message.tail[-1].content == "hang":
                time.sleep(3600)
            case Commit() if message.tail[-1].content == "spin":
                while True:
                    pass
            case Commit() if message.tail[-1].content == "half a reply":
                self._answer(message.stream_id, TextDelta("half of"))
            case Commit():
                self._answer(message.stream_id, TextDelta(message.tail[-1].content))
                self._answer(message.stream_id, Generated("stop", Usage()))
            case FeedText(text="refuse"):
                raise StreamError("expected a speakable text, found 'refuse'")
            case FeedText(text="fail in step"):
                self._due.append(StreamFailed(message.stream_id, "this stream only", True))
            case FeedText(text="hang"):
                time.sleep(3600)
            case FeedText(text="spin"):
                while True:
                    pass
            case FeedText(text="oversize"):
                self._answer(message.stream_id, Speech(bytes(MAX_MESSAGE_BYTES), 24_000))
            case FeedText(text="fail the step"):
                self._must_fail = True
                self._answer(message.stream_id, Speech(b"", 24_000))
            case FeedText(text="break"):
                raise RoleBroken("the state is not sound")
            case FeedText(text="crash"):
                raise RuntimeError("a bug in the model")
            case FeedText(text="flood"):
                for _ in range(6000):
                    self._answer(message.stream_id, Speech(b"", 24_000))
            case FeedText(text="half"):
                half_a_second = b"\0\x10" * (self.rate_hz // 2)
                self._answer(message.stream_id, Speech(half_a_second, self.rate_hz))
                self._unfinished.add(message.stream_id)
            case FeedText():
                self._answer(message.stream_id, Speech(message.text.encode(), 24_000))
            case FinishText() if message.stream_id not in self._unfinished:
                self._answer(message.stream_id, SpeechEnd(0))

    def _answer(self, stream_id: str, event: StreamOutput) -> None:
        self._due.append(StreamEvent(stream_id, event))

    def close(self, stream_id: str) -> None:
        self.closed.append(stream_id)
        self._due = [event for event in self._due if event.stream_id != stream_id]

    def has_work(self) -> bool:
        return bool(self._due)

    def totals(self) -> dict[str, float]:
        return {"steps": float(self._n_steps)}

    def step(
        self, commits: Callable[[], Sequence[Commit]] | None = None
    ) -> Sequence[StreamEvent | StreamFailed]:
        self._n_steps += 1
        due, self._due = self._due, []
        if self._n_steps in self._raise_at_steps or self._must_fail:
            self._must_fail = False
            raise RuntimeError(f"step {self._n_steps} was told to fail")
        return due


def load(raise_at_steps: Sequence[int] = ()) -> EchoRole:
    return EchoRole(raise_at_steps)


def unloadable() -> EchoRole:
    raise RoleError("expected a model folder, found nothing at /nowhere")


def broken() -> EchoRole:
    raise RuntimeError("a bug while loading")


def dying() -> EchoRole:
    os._exit(1)
