"""Times the questions to a worker that a caller waits for.

Owns the open questions of one worker's streams, and how long each kind takes on a quiet machine. A
small model answers in 50 ms what another takes two seconds for: neither of them is overloaded.
Pure: the clock is passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum

from voiceloop.backends import (
    Generated,
    Partial,
    Speech,
    SpeechEnd,
    TextDelta,
    Thinks,
    ToolCall,
    Transcript,
)
from voiceloop.workers.messages import Commit, Finalize, FinishText, Flush, StreamOutput, ToWorker

MOST_OPEN = 4096
MOST_ANSWERS = 1024  # between two looks
# The usual time of a kind is the lowest quartile of any so many answers in a row: load makes some
# of them late, and a quiet moment comes before long. It falls at once, and rises slowly: an hour of
# longer prompts is learnt, a minute of overload is not.
JUDGED_AT_ONCE = 32
QUARTILE = 0.25
DOUBLES_IN_S = 600.0
# Before that it is the longest of at least so many, for the first ones warm something up.
LEAST_JUDGED = 4
USUAL_TIMES = 2.0  # what takes no longer than so many times the usual is not overdue


class Ask(Enum):
    """The question to a model while a caller waits."""

    WORDS = "words"  # of a pause: the recognizer's fullest hypothesis
    TRANSCRIPT = "transcript"  # the final words of a turn
    FIRST_TOKEN = "first_token"  # of a reply
    FIRST_SOUND = "first_sound"  # of a text that is whole


def asked_by(message: ToWorker) -> Ask | None:
    """Return what a message asks for that somebody waits for."""
    match message:
        case Flush():
            return Ask.WORDS
        case Finalize():
            return Ask.TRANSCRIPT
        case Commit(params=params) if not params.is_batch:
            return Ask.FIRST_TOKEN
        case FinishText():
            return Ask.FIRST_SOUND
    return None


def call_of(stream_id: str) -> str:
    """The call a stream belongs to: its id begins with the session's, and a dot."""
    return stream_id.partition(".")[0]


def answered_by(event: StreamOutput) -> tuple[Ask, ...]:
    """Return what an event answers."""
    match event:
        case Partial(flushed=True):
            return (Ask.WORDS,)
        case Transcript():
            return (Ask.WORDS, Ask.TRANSCRIPT)  # words that are final need no flush
        case Thinks(attempt=None) | TextDelta() | ToolCall() | Generated():
            return (Ask.FIRST_TOKEN,)
        case Speech() | SpeechEnd():
            return (Ask.FIRST_SOUND,)
    return ()


class Waits:
    """The open questions of one worker's streams."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[tuple[str, Ask], float] = {}  # since when
        self._has_sounded: set[str] = set()  # streams that sounded before their text was whole
        self._answers = deque[tuple[Ask, float]](maxlen=MOST_ANSWERS)
        self._judged: dict[Ask, list[float]] = {ask: [] for ask in Ask}
        self._usual_s: dict[Ask, float] = {}
        self._usual_since_s: dict[Ask, float] = {}  # when it was last found

    def ask(self, stream_id: str, message: ToWorker) -> None:
        ask = asked_by(message)
        if ask is None or len(self._open) >= MOST_OPEN:
            return
        if ask is Ask.FIRST_SOUND and stream_id in self._has_sounded:
            return
        self._open.setdefault((stream_id, ask), self._clock())

    def answer(self, stream_id: str, event: StreamOutput) -> None:
        for ask in answered_by(event):
            since_s = self._open.pop((stream_id, ask), None)
            if since_s is not None:
                self._learn(ask, self._clock() - since_s)
            elif ask is Ask.FIRST_SOUND:
                self._has_sounded.add(stream_id)

    def forget(self, stream_id: str) -> None:
        """The stream is over; nobody waits for it."""
        self._has_sounded.discard(stream_id)
        for ask in Ask:
            self._open.pop((stream_id, ask), None)

    def _learn(self, ask: Ask, seconds: float) -> None:
        self._answers.append((ask, seconds))
        judged = self._judged[ask]
        judged.append(seconds)
        if len(judged) >= JUDGED_AT_ONCE:
            self._find_usual(ask, sorted(judged)[int(QUARTILE * len(judged))])
            judged.clear()
        elif len(judged) >= LEAST_JUDGED and ask not in self._usual_since_s:
            self._usual_s[ask] = max(judged)

    def _find_usual(self, ask: Ask, usual_s: float) -> None:
        now_s = self._clock()
        if (since_s := self._usual_since_s.get(ask)) is not None:
            usual_s = min(usual_s, self._usual_s[ask] * 2.0 ** ((now_s - since_s) / DOUBLES_IN_S))
        self._usual_s[ask], self._usual_since_s[ask] = usual_s, now_s

    def oldest_s(self) -> float:
        """How long the oldest question has had no answer."""
        now_s = self._clock()
        return max((now_s - since_s for since_s in self._open.values()), default=0.0)

    def overdue_s(self) -> dict[str, float]:
        """Return how long each late call is overdue, beyond `USUAL_TIMES` what its kind usually
        takes.

        A kind of which nobody knows yet what is usual is never late.
        """
        now_s = self._clock()
        late_s: dict[str, float] = {}
        for (stream_id, ask), since_s in self._open.items():
            if (usual_s := self._usual_s.get(ask)) is None:
                continue
            call, beyond_s = call_of(stream_id), now_s - since_s - USUAL_TIMES * usual_s
            if beyond_s > late_s.get(call, 0.0):
                late_s[call] = beyond_s
        return late_s

    def take_answers(self) -> list[tuple[Ask, float]]:
        """Return what was answered since this was last called, with the seconds each took."""
        taken = list(self._answers)
        self._answers.clear()
        return taken
