"""Finds the streams of a worker whose answer comes too late for whoever asked.

Owns the questions that came with a time to wait. The time is a duration, because another machine
has another clock. The gateway gives such a stream up itself, but a gateway that is held up or cut
off would leave the models working for nothing. Pure: the clock is passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from voiceloop.backends import Generated, TextDelta, ToolCall, Transcript
from voiceloop.workers.messages import Commit, Finalize, StreamOutput, ToRole

# The gateway's own clock decides first, for it knows why; and the message was on its way.
GRACE_S = 0.5
FOR_EVER = float("inf")


class Deadlines:
    """`ask` at each message, `answer` at each event; `passed` are the streams to give up."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until_s: dict[str, deque[float]] = {}  # of each question without an answer, in order

    def ask(self, message: ToRole) -> None:
        match message:
            case Finalize(within_ms=within_ms):
                pass
            case Commit(params=params):
                within_ms = params.within_ms
            case _:
                return
        until_s = self._clock() + within_ms / 1000 + GRACE_S if within_ms else FOR_EVER
        self._until_s.setdefault(message.stream_id, deque()).append(until_s)

    def answer(self, stream_id: str, event: StreamOutput) -> None:
        """Of a reply its first token is the answer."""
        match event:
            case Transcript():
                if waiting := self._until_s.get(stream_id):
                    waiting.popleft()
            case TextDelta() | ToolCall() | Generated():
                self.forget(stream_id)

    def forget(self, stream_id: str) -> None:
        """The stream is over; idempotent."""
        self._until_s.pop(stream_id, None)

    def passed(self) -> list[str]:
        """The streams whose answer nobody waits for any more."""
        now_s = self._clock()
        return [one for one, until_s in self._until_s.items() if until_s and min(until_s) < now_s]
