"""Recognition: the recognizer's stream of one call, kept alive.

Owns the stream: opening it, feeding it without ever waiting, and replacing it when its worker died.
The audio of every segment that has no transcript yet is kept and replayed once into the new stream,
so a crash costs time and not words. Where a transcript comes too late the stream is given up, so
that nobody recognizes what nobody waits for.

A flush whose answer is still to come may be overtaken by another: only the answer to the newest is
passed on as flushed, since an older one lacks what was said in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from audio.frames import BYTES_PER_SAMPLE, RECOGNIZER_HZ
from voiceloop.backends import (
    Partial,
    Recognizer,
    RecognizerOptions,
    RecognizerStream,
    Transcript,
)
from voiceloop.errors import BackendError, BackendTimeout, Overloaded
from voiceloop.listening.events import UserTurn

BYTES_PER_MINUTE = 60 * RECOGNIZER_HZ * BYTES_PER_SAMPLE
# Limits set by hand.
# A transcript later than this is no use to a caller. Audio that came faster than it plays has its
# own length besides: what keeps up with callers recognizes it in less.
FINAL_DEADLINE_S = 6.0
OPTIONS_EVERY_S = 1.0  # a recognizer may have to be built anew for them
KEPT_BYTES = BYTES_PER_MINUTE  # of one segment, for a replay
BACKLOG_BYTES = 11 * BYTES_PER_MINUTE  # over the protocol's bound on uncommitted audio, 10 minutes
RETRY_S = (0.0, 0.2, 0.5, 1.0, 2.0)  # before each further stream; then the last again
OVERLOAD_RETRY_S = 0.02  # as often as audio comes in

Action = Callable[[RecognizerStream], None]


class RecognitionListener(Protocol):
    """Takes what was recognized. Segments count over the whole call."""

    def on_partial(self, segment: int, partial: Partial) -> None: ...

    def on_transcript(self, segment: int, transcript: Transcript) -> None: ...

    def on_recognition_failed(self, segment: int, error: BackendError) -> None: ...


@dataclass(slots=True)
class _Segment:
    number: int
    audio: list[bytes] = field(default_factory=list)
    n_bytes: int = 0
    is_finalized: bool = False
    is_discarded: bool = False
    n_replays: int = 0
    n_flushes: int = 0  # those without an answer
    deadline: asyncio.TimerHandle | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all of its audio is kept."""
        return sum(map(len, self.audio)) == self.n_bytes

    def answer_flush(self, partial: Partial) -> Partial:
        """The answer to the oldest flush, marked as one only if no later flush waits."""
        self.n_flushes = max(0, self.n_flushes - 1)
        return msgspec.structs.replace(partial, flushed=self.n_flushes == 0)


class Recognition:
    """Recognizes the segments of one call, over as many streams as it takes.

    None of its methods waits but `run`.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        stream_id: str,
        options: RecognizerOptions,
        listener: RecognitionListener,
    ) -> None:
        self._recognizer = recognizer
        self._stream_id = stream_id
        self._options = options
        self._listener = listener
        self._stream: RecognizerStream | None = None
        self._numbers: list[int] = [0]  # our number of each of the stream's segments
        self._segments: dict[int, _Segment] = {0: _Segment(0)}
        self._current = self._segments[0]
        self._backlog: list[Action] = []
        self._backlog_bytes = 0
        self._retry: asyncio.TimerHandle | None = None
        self._n_streams = 0
        self._heard_at_s = 0.0  # when a recognizer as fast as speech will have heard what was fed
        self._options_due: asyncio.TimerHandle | None = None
        self._given_up: set[asyncio.Task[None]] = set()  # streams that are being closed

    @property
    def segment(self) -> int:
        return self._current.number

    def feed(self, audio: bytes) -> None:
        """PCM16 mono 16 kHz of the current segment."""
        segment = self._current
        if segment.n_bytes + len(audio) <= KEPT_BYTES:
            segment.audio.append(audio)
        else:
            segment.audio.clear()  # too long to replay: half of it would be worse than none
        segment.n_bytes += len(audio)
        now_s = asyncio.get_running_loop().time()
        self._heard_at_s = max(self._heard_at_s, now_s) + len(audio) / BYTES_PER_MINUTE * 60
        if self._backlog_bytes + len(audio) > BACKLOG_BYTES:
            return
        self._send_audio(audio)

    def flush(self) -> None:
        self._current.n_flushes += 1
        self._send(lambda stream: stream.flush())

    def finalize(self) -> int:
        """Close the current segment: its transcript or failure follows. Returns its number."""
        loop = asyncio.get_running_loop()
        wait_s = FINAL_DEADLINE_S + max(0.0, self._heard_at_s - loop.time())
        segment = self._current
        segment.deadline = loop.call_later(wait_s, self._too_late, segment.number, wait_s)
        return self._close_segment()

    def discard(self) -> None:
        """Close the current segment; its words are not reported."""
        if self._current.n_bytes:
            self._current.is_discarded = True
            number = self._close_segment()
            if self._stream is None:
                self._forget(number)  # no recognizer has heard of it: none need ever

    def set_options(self, options: RecognizerOptions) -> None:
        """Recognize with these from now on, in later streams too; a second apart at the least."""
        self._options = options
        if self._options_due is None:
            self._send(lambda stream: stream.set_options(options))
            loop = asyncio.get_running_loop()
            self._options_due = loop.call_later(OPTIONS_EVERY_S, self._set_newest, options)

    def expect_digits(self, n_digits: int) -> None:
        """The caller was asked for a number of so many; 0: for none."""
        if n_digits != self._options.n_digits:
            self.set_options(msgspec.structs.replace(self._options, n_digits=n_digits))

    def _set_newest(self, before: RecognizerOptions) -> None:
        self._options_due = None
        if self._options != before:
            self.set_options(self._options)

    def _close_segment(self) -> int:
        segment = self._current
        segment.is_finalized = True
        self._send_end(segment)
        self._current = _Segment(segment.number + 1)
        self._segments[self._current.number] = self._current
        self._numbers.append(self._current.number)
        return segment.number

    def _send_end(self, segment: _Segment) -> None:
        self._send(lambda stream: stream.finalize())

    def _send_audio(self, audio: bytes) -> None:
        self._send(lambda stream: stream.feed(audio), len(audio))

    def _send(self, action: Action, n_bytes: int = 0) -> None:
        if self._stream is None:
            return  # everything is replayed from the segments when the stream stands
        self._backlog.append(action)
        self._backlog_bytes += n_bytes
        if self._retry is None:
            self._drain()

    def _drain(self) -> None:
        self._retry = None
        stream = self._stream
        if stream is None:
            return
        done = 0
        try:
            for action in self._backlog:
                action(stream)
                done += 1
        except Overloaded:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(OVERLOAD_RETRY_S, self._drain)
        except BackendError:
            done = len(self._backlog)  # events() raises the same; `run` opens another stream
        del self._backlog[:done]
        if not self._backlog:
            self._backlog_bytes = 0

    def _too_late(self, number: int, wait_s: float) -> None:
        self._fail(
            number, BackendTimeout(f"The recognizer sent no transcript within {wait_s:.0f} s.")
        )
        if self._stream is not None:  # with its end `run` opens another, for what is said now
            closing = asyncio.get_running_loop().create_task(self._stream.close())
            self._given_up.add(closing)
            closing.add_done_callback(self._given_up.discard)

    def _fail(self, number: int, error: BackendError) -> None:
        if (segment := self._forget(number)) is not None and not segment.is_discarded:
            self._listener.on_recognition_failed(number, error)

    def _forget(self, number: int) -> _Segment | None:
        segment = self._segments.pop(number, None)
        if segment is not None and segment.deadline is not None:
            segment.deadline.cancel()
        return segment

    async def run(self) -> None:
        """Keep a stream open until cancelled."""
        n_failures = 0
        try:
            while True:
                try:
                    async for event in (await self._open()).events():
                        n_failures = 0
                        self._dispatch(event)
                    error = BackendError("The recognizer closed its stream.")
                except BackendError as failure:
                    error = failure
                except Overloaded as failure:
                    error = BackendError(failure.message)
                await self._lose_stream(error)
                await asyncio.sleep(RETRY_S[min(n_failures, len(RETRY_S) - 1)])
                n_failures += 1
        finally:
            for number in list(self._segments):
                self._forget(number)
            for timer in (self._retry, self._options_due):
                if timer is not None:
                    timer.cancel()
            if self._stream is not None:
                await self._stream.close()
            await asyncio.gather(*self._given_up)

    async def _open(self) -> RecognizerStream:
        stream_id = f"{self._stream_id}.{self._n_streams}"
        self._n_streams += 1
        stream = await self._recognizer.open(stream_id, self._options)
        self._stream = stream
        self._numbers = sorted(self._segments)
        for segment in [self._segments[number] for number in self._numbers]:
            for audio in segment.audio:
                self._send_audio(audio)
            if segment.is_finalized:
                self._send_end(segment)
            elif segment.n_flushes:
                # Those that the lost stream did not answer: once more, if the words can be whole.
                segment.n_flushes = 0
                if segment.is_whole:
                    self.flush()
        return stream

    async def _lose_stream(self, error: BackendError) -> None:
        stream, self._stream = self._stream, None
        self._backlog.clear()
        self._backlog_bytes = 0
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if stream is None:
            return
        await stream.close()
        for segment in list(self._segments.values()):
            if segment.is_discarded:
                self._forget(segment.number)
                continue
            if not segment.n_bytes and not segment.is_finalized:
                continue
            segment.n_replays += 1
            # Audio that broke two streams may be what breaks them.
            if segment.n_replays > 1 or not segment.audio:
                if segment.is_finalized:
                    self._fail(segment.number, error)
                else:
                    segment.audio.clear()

    def _dispatch(self, event: Partial | Transcript) -> None:
        number = self._numbers[event.segment]
        segment = self._segments.get(number)
        if segment is None:
            return  # it came too late and was reported as failed
        if isinstance(event, Transcript):
            self._forget(number)
            if not segment.is_discarded:
                self._listener.on_transcript(number, event)
        elif not segment.is_finalized:
            partial = segment.answer_flush(event) if event.flushed else event
            self._listener.on_partial(number, partial)


# A final pass takes 15 to 40 ms: words that are not there by then are late, however long the wait
# for the end of the turn was. Chosen, so that a slow one on a busy machine is none.
FINAL_PASS_S = 0.5


class AwaitedTurns:
    """Turns that have ended before their words were there; `on_late(turn)` once for each.

    late_s: after the caller's last sound, words that are still to come are late; None: never.
    """

    def __init__(self, on_late: Callable[[UserTurn], None]) -> None:
        self.late_s: float | None = None
        self._on_late = on_late
        self._turns: dict[int, tuple[UserTurn, asyncio.TimerHandle | None]] = {}

    def add(self, turn: UserTurn, now_s: float) -> None:
        """Add a turn whose words follow. now_s: on the session's clock."""
        timer = None
        if self.late_s is not None:
            wait_s = max(FINAL_PASS_S, turn.speech_end_s + self.late_s - now_s)
            timer = asyncio.get_running_loop().call_later(wait_s, self._on_late, turn)
        self._turns[turn.segment] = turn, timer

    def take(self, segment: int) -> UserTurn | None:
        """Take a turn whose words are there, or never will be."""
        turn, timer = self._turns.pop(segment, (None, None))
        if timer is not None:
            timer.cancel()
        return turn

    def cancel(self) -> None:
        for segment in list(self._turns):
            self.take(segment)
