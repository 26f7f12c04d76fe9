"""A recognizer without a model, for worker processes: each frame is answered at the next step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from voiceloop.backends import Partial
from voiceloop.workers.messages import FeedAudio, StreamEvent, StreamFailed, ToRole


class Echo:
    """Answers a frame of audio by a partial of no words."""

    rate_hz = 0
    detail = "echo"
    tokenizer = b""
    served: Mapping[str, str] = {}

    def __init__(self) -> None:
        self._due: list[StreamEvent | StreamFailed] = []

    def warm_up(self) -> None:
        pass

    def receive(self, message: ToRole) -> None:
        if isinstance(message, FeedAudio):
            self._due.append(StreamEvent(message.stream_id, Partial(0, (), (), True)))

    def close(self, stream_id: str) -> None:
        pass

    def has_work(self) -> bool:
        return bool(self._due)

    def totals(self) -> dict[str, float]:
        return {}

    def step(
        self, interrupted: Callable[[], bool] | None = None
    ) -> Sequence[StreamEvent | StreamFailed]:
        due, self._due = self._due, []
        return due


def load() -> Echo:
    return Echo()
