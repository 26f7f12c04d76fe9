"""A recognizer behind ``/v1/realtime?intent=transcription``: audio streams in while it is spoken.

Owns one WebSocket a caller and the protocol of a transcription session on it: audio is appended as
it comes, and committed where the caller pauses, so that the words are there before the turn is
known to be over. A segment is what all its commits say, in their order. Deltas are append-only in
this protocol: every word but the last of them is stable.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from websockets.asyncio.client import ClientConnection

from audio.frames import BYTES_PER_SAMPLE, RECOGNIZER_HZ, VOICE_HZ
from audio.resample import Resampler
from voiceloop.backends import Partial, RecognizerEvent, RecognizerOptions, Transcript, Word
from voiceloop.errors import BackendError
from voiceloop.log_form import keyless
from voiceloop.remote.circuit_breaker import CircuitBreaker
from voiceloop.remote.pool import first_answer, reachable_first
from voiceloop.remote.realtime_session import address_of, appended, set_up
from voiceloop.remote.recognizer import (
    FRAME,
    PROMPT_CHARACTERS,
    is_quiet,
    share_time,
)
from voiceloop.remote.socket_stream import SocketStream, dial

log = logging.getLogger(__name__)

BYTES_PER_MS = RECOGNIZER_HZ * BYTES_PER_SAMPLE / 1000
# A consonant's closure is silent for up to 80 ms: a commit there would cut a word in two.
COMMIT_QUIET_BYTES = int(100 * BYTES_PER_MS) // FRAME * FRAME
MIN_COMMIT_BYTES = int(100 * BYTES_PER_MS)  # services refuse to commit less
APPEND_BYTES = int(40 * BYTES_PER_MS)  # a message a frame would cost more than the audio in it


@dataclass(slots=True)
class _Commit:
    """Audio that is transcribed as one item; ``start_ms`` within its segment."""

    start_ms: float = 0.0
    end_ms: float = 0.0
    item_id: str | None = None
    text: str = ""
    done: bool = False


@dataclass(slots=True)
class _Segment:
    number: int
    commits: list[_Commit] = field(default_factory=list)
    finalized: bool = False

    @property
    def done(self) -> bool:
        return all(commit.done for commit in self.commits)

    @property
    def words(self) -> tuple[Word, ...]:
        return tuple(
            Word(word.text, commit.start_ms + word.start_ms, commit.start_ms + word.end_ms)
            for commit in self.commits
            for word in share_time(commit.text.split(), commit.end_ms - commit.start_ms)
        )


class RemoteTranscriber:
    """``Recognizer`` over ``url`` (ws://host:8000/v1), a connection a caller."""

    def __init__(
        self, url: str, *, model: str, key: str = "", clock: Callable[[], float] = monotonic
    ) -> None:
        self._address = address_of(url, "intent=transcription")
        self.url = keyless(url).rstrip("/")  # as it is told
        self._model = model
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._breaker = CircuitBreaker(clock)
        self.n_open = 0  # streams

    @property
    def reachable(self) -> bool:
        """False while the service is left alone; after that the next call finds out."""
        return self._breaker.state != "open"

    async def start(self) -> None:
        """Find out that a session can be had. Raises: as `open`."""
        socket = await self._connect(_session(self._model, RecognizerOptions()))
        await socket.close()

    async def open(self, stream_id: str, options: RecognizerOptions) -> RemoteTranscriberStream:
        """Raises: BackendError (nobody there), BackendTimeout, BackendRefused (key, session)."""
        with self._breaker.request(self.url):
            session = _session(self._model, options)
            socket = await self._connect(session)
        self.n_open += 1
        stream = RemoteTranscriberStream(stream_id, self.url, socket, session, self._closed)
        return stream

    def _closed(self) -> None:
        self.n_open -= 1

    async def _connect(self, session: dict[str, Any]) -> ClientConnection:
        socket = await dial(self._address, self._headers, "a transcription session")
        try:
            settings = {"type": "session.update", "session": session}
            await set_up(socket, settings, self.url, _message)
        except BaseException:
            await socket.close()
            raise
        return socket


class Transcribers:
    """``Recognizer`` over several of them; a caller is with one from the opening on."""

    def __init__(
        self, each: Sequence[RemoteTranscriber], draw: random.Random | None = None
    ) -> None:
        self._each = tuple(each)
        self._draw = draw or random.Random()

    async def start(self) -> None:
        """Raises: as `RemoteTranscriber.start`, where none can be had."""
        outcomes = await asyncio.gather(
            *(one.start() for one in self._each), return_exceptions=True
        )
        failures = [one for one in outcomes if isinstance(one, BaseException)]
        for failure in failures:
            if len(failures) == len(self._each):
                raise failure
            log.warning("%s; others of its role do", failure)

    async def open(self, stream_id: str, options: RecognizerOptions) -> RemoteTranscriberStream:
        """Raises: as `RemoteTranscriber.open`, of the last that was asked."""
        asked = reachable_first(self._each, self._draw)
        return await first_answer(asked, lambda one: one.open(stream_id, options))


class RemoteTranscriberStream(SocketStream[RecognizerEvent]):
    """One caller. Transcripts come in the order of their segments."""

    def __init__(
        self,
        stream_id: str,
        url: str,
        socket: ClientConnection,
        session: dict[str, Any],
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(stream_id, url, socket)
        self._on_closed = on_closed
        self._session = session
        self._resampler = Resampler(RECOGNIZER_HZ, VOICE_HZ)
        self._audio = bytearray()  # since the last commit
        self._unsent = bytearray()
        self._segment = _Segment(0)
        self._segment_ms = 0.0  # of the segment that lies before `_audio`
        self._segments = deque([self._segment])  # those without a transcript yet
        self._ahead: _Commit | None = None  # words that the service sent before the commit
        self._flushing = False
        self._n_flushes = 0  # those without an answer
        self._quiet_from: int | None = None  # bytes of `_audio` when the caller paused

    def feed(self, samples: bytes) -> None:
        self._audio += samples
        self._unsent += samples
        if len(self._unsent) >= APPEND_BYTES:
            self._append()
        self._commit_if_paused()

    def flush(self) -> None:
        if not self.live:
            return
        self._flushing = True
        self._n_flushes += 1
        if self._quiet_from is None or not is_quiet(bytes(self._audio), self._quiet_from):
            self._quiet_from = len(self._audio)
        self._report_flush()

    def finalize(self) -> None:
        if not self.live:
            return
        self._forget_flushes()
        if self._ahead is not None or self._has_speech():
            self._commit()
        elif self._audio:
            self._unsent.clear()
            self._post({"type": "input_audio_buffer.clear"})
            self._audio.clear()
        self._segment.finalized = True
        self._segment = _Segment(self._segment.number + 1)
        self._segments.append(self._segment)
        self._segment_ms = 0.0
        self._finish_segments()

    def set_options(self, options: RecognizerOptions) -> None:
        before, model = self._session, self._session["audio"]["input"]["transcription"]["model"]
        self._session = _session(model, options)
        if self._session != before:  # a number that was asked for changes nothing here
            self._post({"type": "session.update", "session": self._session})

    async def close(self) -> None:
        self._on_closed()
        self._on_closed = lambda: None
        await super().close()

    def _has_speech(self) -> bool:
        return len(self._audio) >= MIN_COMMIT_BYTES and not is_quiet(bytes(self._audio), 0)

    def _commit_if_paused(self) -> None:
        """Commit once the pause has proved to be one; speech that goes on takes it back."""
        quiet_from = self._quiet_from
        if quiet_from is None or len(self._audio) - quiet_from < COMMIT_QUIET_BYTES:
            return
        self._quiet_from = None
        if not is_quiet(bytes(self._audio), quiet_from):
            self._flushing = False
        elif self._has_speech():
            self._commit()
        else:
            self._report_flush()

    def _append(self) -> None:
        for append in appended(self._resampler, bytes(self._unsent)):
            self._post(append)
        self._unsent.clear()

    def _commit(self) -> None:
        if self._unsent:
            self._append()
        end_ms = self._segment_ms + len(self._audio) / BYTES_PER_MS
        commit, self._ahead = self._ahead or _Commit(), None
        commit.start_ms, commit.end_ms = self._segment_ms, end_ms
        self._segment.commits.append(commit)
        self._segment_ms = end_ms
        self._audio.clear()
        self._post({"type": "input_audio_buffer.commit"})

    def _observe(self, event: dict[str, Any]) -> None:
        """Raises: BackendError when the service reports a failure."""
        match event.get("type"):
            case "input_audio_buffer.committed":
                self._commit_of(event)
            case "conversation.item.input_audio_transcription.delta":
                self._commit_of(event).text += str(event.get("delta") or "")
                self._report()
            case "conversation.item.input_audio_transcription.completed":
                commit = self._commit_of(event)
                commit.text, commit.done = str(event.get("transcript") or ""), True
                self._report_flush()
                self._finish_segments()
            case "conversation.item.input_audio_transcription.failed":
                raise BackendError(f"{self._service} failed to transcribe: {_message(event)}")
            case "error":
                raise BackendError(f"{self._service} reports: {_message(event)}")

    def _commit_of(self, event: dict[str, Any]) -> _Commit:
        """The commit an event is about: known by its item, else the oldest that has none."""
        item_id = event.get("item_id")
        commits = [commit for segment in self._segments for commit in segment.commits]
        if self._ahead is not None:
            commits.append(self._ahead)
        for commit in commits:
            if commit.item_id == item_id:
                return commit
        for commit in commits:
            if commit.item_id is None:
                commit.item_id = item_id
                return commit
        self._ahead = _Commit(item_id=item_id)
        return self._ahead

    def _report(self) -> None:
        segment = self._segment
        words = [word for commit in segment.commits for word in commit.text.split()]
        is_open = self._ahead is not None or not segment.done
        words += self._ahead.text.split() if self._ahead is not None else []
        n_stable = len(words) - 1 if is_open and words else len(words)
        self.deliver(Partial(segment.number, tuple(words[:n_stable]), tuple(words[n_stable:])))

    def _report_flush(self) -> None:
        """Answer every flush when all that was said before the last has been transcribed."""
        segment = self._segment
        waits = self._quiet_from is not None and self._has_speech()
        if not self._flushing or waits or not segment.done:
            return
        words = tuple(word.text for word in segment.words)
        for _ in range(self._n_flushes):
            self.deliver(Partial(segment.number, words, (), flushed=True))
        self._forget_flushes()

    def _forget_flushes(self) -> None:
        self._flushing, self._n_flushes, self._quiet_from = False, 0, None

    def _finish_segments(self) -> None:
        while self._segments[0].finalized and self._segments[0].done:
            segment = self._segments.popleft()
            self.deliver(Transcript(segment.number, segment.words))


def _session(model: str, options: RecognizerOptions) -> dict[str, Any]:
    """The settings of a transcription session; we find the caller's pauses ourselves."""
    transcription = {"model": model, "language": options.language}
    prompt = ", ".join(options.hotwords)[-PROMPT_CHARACTERS:]
    if prompt:
        transcription["prompt"] = prompt
    return {
        "type": "transcription",
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": VOICE_HZ},
                "transcription": transcription,
                "turn_detection": None,
            }
        },
    }


def _message(event: dict[str, Any]) -> str:
    error = event.get("error")
    return str(error.get("message") if isinstance(error, dict) else error)
