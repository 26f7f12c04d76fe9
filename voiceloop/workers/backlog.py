"""Keeps speech work that no call waits for until the models are free.

Owns the messages of streams that a request over HTTP opened (a file to transcribe, a text to
speak), and when the next piece begins: when nothing else is due and no call has sent anything for a
moment. If that moment does not come, such work gets a small share of the time, so that it ends. A
model's step runs to its end once it has begun, so the work waits before it. Pure: the clock is
passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from voiceloop.workers.messages import (
    FeedAudio,
    FeedText,
    Finalize,
    FinishText,
    Flush,
    Pause,
    ToRole,
)

# Of a call that speaks something arrives every 20 ms; a pause within its words is shorter.
QUIET_S = 0.25
# Of the time while calls are there. Chosen: a turn in twenty then finds the model at something
# else, which leaves the 95th percentile of its gap where it was.
SHARE = 0.05
LONGEST_REST_S = 5.0  # a file of ten minutes is thirty segments; who waits for it waits for minutes
PIECE_CHARACTERS = 160  # of a text: a clause or two, a few hundredths of a second of a voice's work
MOST_BYTES = 24 * 1024 * 1024  # of one stream, as the gateway's own bound


class Backlog:
    """`put` what arrives, and `take` the next piece of work whenever `is_due`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: dict[str, deque[ToRole]] = {}  # by stream, whose turn is next first
        self._n_bytes: dict[str, int] = {}
        self._paused: set[str] = set()  # streams whose answers nobody takes at the moment
        self._quiet_from_s = clock()
        self._begun_s: float | None = None  # the piece that the models are at
        self._rests_until_s = clock()

    def __bool__(self) -> bool:
        return self._next() is not None

    def put(self, message: ToRole) -> bool:
        """Keep it for later. False where the stream has too much here: it is to fail."""
        if isinstance(message, Pause):
            (self._paused.add if message.is_paused else self._paused.discard)(message.stream_id)
            return True
        n_bytes = self._n_bytes.get(message.stream_id, 0) + _size(message)
        if n_bytes > MOST_BYTES:
            return False
        self._n_bytes[message.stream_id] = n_bytes
        self._waiting.setdefault(message.stream_id, deque()).extend(_pieces(message))
        return True

    def forget(self, stream_id: str) -> None:
        """The stream is over; idempotent."""
        self._waiting.pop(stream_id, None)
        self._n_bytes.pop(stream_id, None)
        self._paused.discard(stream_id)

    def observe_call(self) -> None:
        """A call has sent something that is to be heard, answered or spoken."""
        self._quiet_from_s = self._clock() + QUIET_S

    def is_due(self, *, is_idle: bool) -> bool:
        """Whether to begin a piece of it now. is_idle: no model has anything to do."""
        now_s = self._clock()
        if self._begun_s is not None and is_idle:
            spent_s, self._begun_s = now_s - self._begun_s, None
            self._rests_until_s = now_s + min(LONGEST_REST_S, spent_s * (1 - SHARE) / SHARE)
        if not self:
            return False
        if is_idle and now_s >= self._quiet_from_s:
            return True
        return now_s >= self._rests_until_s + (0.0 if is_idle else LONGEST_REST_S)

    def wait_s(self) -> float:
        """How long nothing of it can become due, where nothing else happens."""
        now_s = self._clock()
        return max(0.0, min(self._quiet_from_s, self._rests_until_s) - now_s)

    def take(self) -> list[ToRole]:
        """The next piece of the stream whose turn it is: what a model can answer, and no more."""
        stream_id = self._next()
        assert stream_id is not None
        messages = self._waiting.pop(stream_id)
        piece = [messages.popleft()]
        while not _ends_piece(piece[-1]):
            piece.append(messages.popleft())
        self._n_bytes[stream_id] -= sum(map(_size, piece))
        if messages:
            self._waiting[stream_id] = messages  # behind the others
        now_s = self._clock()
        self._begun_s = now_s
        self._rests_until_s = now_s + LONGEST_REST_S
        return piece

    def _next(self) -> str | None:
        """Return whose turn it is; None where nobody has anything to be begun."""
        for stream_id, messages in self._waiting.items():
            if stream_id not in self._paused and _is_whole(messages):
                return stream_id
        return None


def _is_whole(messages: deque[ToRole]) -> bool:
    return any(map(_ends_piece, messages))


def _ends_piece(message: ToRole) -> bool:
    return isinstance(message, Flush | Finalize | FeedText | FinishText)


def _size(message: ToRole) -> int:
    match message:
        case FeedAudio(samples=samples):
            return len(samples)
        case FeedText(text=text):
            return len(text)
    return 0


def _pieces(message: ToRole) -> list[ToRole]:
    """A long text in several messages, cut between words."""
    if not isinstance(message, FeedText):
        return [message]
    pieces, text = list[ToRole](), message.text
    while len(text) > PIECE_CHARACTERS:
        end = text.rfind(" ", 1, PIECE_CHARACTERS) + 1 or PIECE_CHARACTERS
        pieces.append(FeedText(message.stream_id, text[:end]))
        text = text[end:]
    return [*pieces, FeedText(message.stream_id, text)]
