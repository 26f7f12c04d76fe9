"""Deepgram: ``stt_url = "deepgram:"``, words while the caller speaks.

Its own endpointing (`speech_final`) is evidence of the turn's end and never decides it. At a pause
it is asked to finalize what it has heard, so the words are whole when the turn ends.

Written from its public reference ("Live Audio", "Finalize", "Endpointing", November 2026), and held
against a server scripted from that. It was not run against the service itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, ClassVar
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection

from audio.frames import BYTES_PER_SAMPLE, RECOGNIZER_HZ
from voiceloop.backends import Partial, RecognizerEvent, RecognizerOptions, Transcript, Word
from voiceloop.errors import BackendError, ConfigError
from voiceloop.log_form import keyless
from voiceloop.remote.circuit_breaker import CircuitBreaker
from voiceloop.remote.recognizer import is_quiet
from voiceloop.remote.socket_stream import SocketStream, dial

URL, MODEL, VENDOR = "wss://api.deepgram.com/v1/listen", "nova-3", "Deepgram"
BYTES_PER_MS = RECOGNIZER_HZ * BYTES_PER_SAMPLE / 1000
IDLE_S = 4.0  # it hangs up after ten seconds without sound or a KeepAlive
# It answers a Finalize with `from_finalize`, but "in most cases" only: what it has said by then
# counts. Longer than its streaming latency.
FINALIZE_S = 0.5
ENDPOINTING_MS = 100  # of silence, by its own detector; shorter is the closure of a stop
# Log-odds that the turn is over where it says so: its detector hears silence, as ours does, so it
# moves a wait and decides none. Not fitted: no call on it was recorded.
SPEECH_FINAL_LOG_ODDS = 1.0
MAX_KEYTERMS, MAX_WORDS = 100, 2000  # of hot words; of a segment that nobody finalizes


class Deepgram:
    """``Recognizer``; a connection a caller."""

    def __init__(self, *, url: str, key: str, model: str) -> None:
        """Raises: ConfigError without a key."""
        if not key:
            raise ConfigError(f"stt_key: expected a key of {VENDOR}, found none")
        self._url, self._model = url or URL, model or MODEL
        self._headers = {"authorization": f"Token {key}"}
        self._breaker = CircuitBreaker(monotonic)

    @property
    def reachable(self) -> bool:
        return self._breaker.state != "open"

    async def start(self) -> None:
        """Find out that it is there. Raises: as `open`."""
        await (await self._dial(RecognizerOptions())).close()

    async def open(self, stream_id: str, options: RecognizerOptions) -> DeepgramStream:
        """Raises: BackendError, BackendTimeout, BackendRefused (key, model, language)."""
        return DeepgramStream(stream_id, await self._dial(options), options)

    async def _dial(self, options: RecognizerOptions) -> ClientConnection:
        asked = [
            ("model", self._model), ("language", options.language), ("encoding", "linear16"),
            ("sample_rate", RECOGNIZER_HZ), ("channels", 1), ("interim_results", "true"),
            ("punctuate", "true"), ("endpointing", ENDPOINTING_MS),
            *(("keyterm", word) for word in options.hotwords[:MAX_KEYTERMS]),
        ]  # fmt: skip
        with self._breaker.request(keyless(self._url)):
            return await dial(f"{self._url}?{urlencode(asked)}", self._headers, VENDOR)


@dataclass(slots=True)
class _Segment:
    """sound: all of it; covered_bytes: so much was finalized. words: final, times of the stream."""

    number: int
    start_ms: float
    sound: bytearray = field(default_factory=bytearray)
    covered_bytes: int = 0
    words: list[Word] = field(default_factory=list)
    interim: tuple[str, ...] = ()
    is_over: bool = False

    @property
    def end_ms(self) -> float:
        return self.start_ms + len(self.sound) / BYTES_PER_MS

    @property
    def is_covered(self) -> bool:
        """Whether nothing was said behind what was finalized."""
        return is_quiet(bytes(self.sound), self.covered_bytes)

    def transcript(self) -> Transcript:
        at = self.start_ms
        return Transcript(
            self.number,
            tuple(Word(w.text, max(0.0, w.start_ms - at), w.end_ms - at) for w in self.words),
        )


class DeepgramStream(SocketStream[RecognizerEvent]):
    """One caller."""

    _idle: ClassVar[Mapping[str, Any]] = {"type": "KeepAlive"}

    def __init__(
        self, stream_id: str, socket: ClientConnection, options: RecognizerOptions
    ) -> None:
        super().__init__(stream_id, VENDOR, socket, IDLE_S)
        self._options = options
        self._segments = deque([_Segment(0, 0.0)])  # those without a transcript
        self._asked: deque[tuple[_Segment, int, bool]] = deque()  # finalized where; as a flush
        self._is_final = False  # it takes what was said for an utterance

    def feed(self, samples: bytes) -> None:
        self._segments[-1].sound += samples
        self._post(samples)

    def flush(self) -> None:
        if self.live:
            self._finalize(is_flush=True)

    def finalize(self) -> None:
        if not self.live:
            return
        segment = self._segments[-1]
        segment.is_over = True
        if not segment.is_covered:
            self._finalize(is_flush=False)
        self._segments.append(_Segment(segment.number + 1, segment.end_ms))
        self._is_final = False
        self._tell_transcripts()

    def set_options(self, options: RecognizerOptions) -> None:
        """Refuse other settings on an open connection: the call opens another one."""
        if (options.language, options.hotwords) != (self._options.language, self._options.hotwords):
            self.fail(BackendError(f"expected a connection of {VENDOR} with other settings"))

    def _finalize(self, *, is_flush: bool) -> None:
        segment = self._segments[-1]
        asked = (segment, len(segment.sound), is_flush)
        self._asked.append(asked)
        self._post({"type": "Finalize"})
        self._keep(self._wait(asked), "finalize")

    async def _wait(self, asked: tuple[_Segment, int, bool]) -> None:
        await asyncio.sleep(FINALIZE_S)
        while any(one is asked for one in self._asked):
            self._answered()

    def _observe(self, event: dict[str, Any]) -> None:
        match event.get("type"):
            case "Results":
                self._hear(event)
            case "Error":
                raise BackendError(f"{VENDOR} failed: {event.get('variant') or 'no code'}")

    def _hear(self, event: dict[str, Any]) -> None:
        best = event["channel"]["alternatives"][0]
        words = [
            Word(
                str(word.get("punctuated_word") or word["word"]),
                1000.0 * word["start"], 1000.0 * word["end"],
            )
            for word in best.get("words") or ()
        ]  # fmt: skip
        if event.get("is_final"):
            for word in words:
                self._segment_of(word).words.append(word)
            for segment in self._segments:
                segment.interim = ()
        elif words:
            self._segment_of(words[0]).interim = tuple(word.text for word in words)
        if len(self._segments[-1].words) > MAX_WORDS:
            raise BackendError(f"expected at most {MAX_WORDS} words of {VENDOR}, found more")
        self._is_final = bool(event.get("speech_final")) or (self._is_final and not words)
        if event.get("from_finalize"):
            self._answered()
        elif words or self._is_final:
            self._tell_words()

    def _segment_of(self, word: Word) -> _Segment:
        """The one in which the word's middle lies; the newest where none has been fed so far."""
        middle_ms = (word.start_ms + word.end_ms) / 2
        found = (one for one in self._segments if middle_ms < one.end_ms)
        return next(found, self._segments[-1])

    def _answered(self) -> None:
        """The oldest Finalize is: what it was asked for is as whole as it gets."""
        if not self._asked:
            return
        segment, n_bytes, is_flush = self._asked.popleft()
        segment.covered_bytes = max(segment.covered_bytes, n_bytes)
        if is_flush and segment is self._segments[-1]:
            self._tell_words(flushed=True)
        self._tell_transcripts()

    def _tell_words(self, *, flushed: bool = False) -> None:
        segment = self._segments[-1]
        stable = tuple(word.text for word in segment.words)
        p_voice = SPEECH_FINAL_LOG_ODDS if self._is_final and stable else None
        self.deliver(Partial(segment.number, stable, segment.interim, flushed, p_voice))

    def _tell_transcripts(self) -> None:
        while self._segments[0].is_over:
            segment = self._segments[0]
            if any(asked is segment for asked, _, _ in self._asked):
                return
            self._segments.popleft()
            self.deliver(segment.transcript())
