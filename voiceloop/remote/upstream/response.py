"""One response of an upstream server: its text, its calls and its sound, as they come.

Owns what has come of it. Text is passed on with the sound that says it, so that no word counts as
said of which nothing was heard. Of a response that nobody reads any more it is noted what it said.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from audio.frames import BYTES_PER_SAMPLE, VOICE_HZ
from audio.resample import Resampler
from voiceloop.backends import (
    Generated,
    LanguageEvent,
    SpokenWord,
    TextDelta,
    ToolCall,
    Usage,
)
from voiceloop.errors import BackendError, VoiceLoopError
from voiceloop.remote.realtime_session import code_of
from voiceloop.remote.upstream.mirror import Entry, Known
from voiceloop.remote.upstream.words import WordTimes

log = logging.getLogger(__name__)

# Sound that waits for the playout, of a server that sends faster than real time: 14 MB. It is read
# all the same, for a server whose pings nobody answers hangs up after some 20 s. With more the
# response is cut. Where nobody has asked for the sound, much less is kept.
MOST_BYTES = 2 * VOICE_HZ * 300
MOST_UNTAKEN_BYTES = 2 * VOICE_HZ * 5
# Said in place of text by a server that sends none: a reply without words would be no reply.
NO_TRANSCRIPT = "(said without a transcript)"
AUDIO = ("response.output_audio.delta", "response.audio.delta")  # GA, beta
TRANSCRIPT = ("response.output_audio_transcript.delta", "response.audio_transcript.delta")
TEXT = ("response.output_text.delta", "response.text.delta")


class ReplySound:
    """The sound of one response, PCM16 at 24 kHz, until a voice's stream takes it.

    on_more: called when there is more.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.has_begun = False  # to be taken
        self.on_more: Callable[[], None] | None = None
        self._is_dropped = False
        self._n_bytes = 0
        self._pieces: deque[tuple[bytes, tuple[SpokenWord, ...]]] = deque()

    def add(self, samples: bytes, words: tuple[SpokenWord, ...] = ()) -> None:
        if self._is_dropped or not (samples or words):
            return
        if self.on_more is None and self._n_bytes > MOST_UNTAKEN_BYTES:
            self.drop()  # a reply that is read
            return
        self._pieces.append((samples, words))
        self._count(len(samples))

    @property
    def has_more(self) -> bool:
        return bool(self._pieces)

    @property
    def is_playing(self) -> bool:
        """Whether somebody plays it, and has some left."""
        return self.on_more is not None and self.has_more

    def take(self) -> tuple[bytes, tuple[SpokenWord, ...]] | None:
        if not self._pieces:
            return None
        self.has_begun = True
        piece = self._pieces.popleft()
        self._count(-len(piece[0]))
        return piece

    def end(self) -> None:
        self.is_over = True
        self._count(0)

    def drop(self) -> None:
        """Drop the sound: nobody hears it any more."""
        self._is_dropped = True
        self._pieces.clear()
        self._count(-self._n_bytes)

    @property
    def is_full(self) -> bool:
        return self._n_bytes > MOST_BYTES

    def _count(self, n_bytes: int) -> None:
        self._n_bytes += n_bytes
        if self.on_more is not None:
            self.on_more()


class UpstreamResponse:
    """number: of the request. is_beside: it is no part of the conversation there.

    deliver: is given its events. most_words: with more it is cut, and 0 is no bound.
    """

    def __init__(
        self,
        number: int,
        service: str,
        ms_per_letter: float,
        deliver: Callable[[LanguageEvent], None],
        *,
        is_beside: bool = False,
        most_words: int = 0,
    ) -> None:
        self._most_words = most_words
        self.number = number
        self.id = ""  # once the server has begun it
        self.n_events = 0  # of the server
        self.is_beside = is_beside
        self.sound = ReplySound()
        self.words = WordTimes(ms_per_letter)
        self.text = ""  # that was passed on
        self.speaks = False  # its text is that of its sound
        self.is_left = False
        self.failure: VoiceLoopError | None = None
        self.answered = asyncio.Event()  # all that is wanted of it has come, or it failed
        self.ended = asyncio.Event()  # at the server
        self.is_cancelled = False  # the server was told to end it
        self.calls: list[ToolCall] = []
        self._service = service
        self._deliver = deliver
        self._item_ids: list[str] = []  # of its messages
        self._known: list[Known] = []
        self._odd = b""
        self._resampler: Resampler | None = None

    @property
    def has_begun(self) -> bool:
        return bool(self.words.sound_ms or self.text or self.calls)

    def leave(self) -> None:
        """Leave the response: nobody reads it any more. What came of one that failed is heard."""
        self.is_left = True
        if self.failure is None:
            self.sound.drop()
            self.sound.end()

    def _cut(self) -> None:
        """Cut a response that is as long as it may be: what has come is said, and the rest is
        nobody's.
        """
        self._generated("incomplete", Usage())
        self.is_left = True
        self.sound.end()
        self.answered.set()

    def fail(self, error: VoiceLoopError) -> None:
        if not self.ended.is_set():
            self.failure = error
            self._end()

    def _end(self) -> None:
        self.sound.end()
        self.answered.set()
        self.ended.set()

    def observe(self, event: dict[str, Any], rate_hz: int) -> None:
        """Take in an event of the response, in order. rate_hz: of its sound. Raises:
        BackendError.
        """
        self.n_events += 1
        match event.get("type"):
            case kind if kind in AUDIO:
                self._hear(str(event.get("delta") or ""), rate_hz)
            case kind if kind in TRANSCRIPT:
                self.speaks = True
                self.words.read(str(event.get("delta") or ""))
                self._release(b"")
            case kind if kind in TEXT:
                self._pass_on(str(event.get("delta") or ""))
            case "response.output_item.added" if event["item"].get("type") == "message":
                self._item_ids.append(str(event["item"]["id"]))
            case "response.output_item.done" if event["item"].get("type") == "function_call":
                self._call(event["item"])
            case "response.done":
                self._finish(event["response"])

    def _hear(self, sound: str, rate_hz: int) -> None:
        try:
            samples = self._odd + base64.b64decode(sound, validate=True)
        except ValueError:
            raise BackendError(f"expected sound of {self._service} in base64") from None
        n_odd = len(samples) % BYTES_PER_SAMPLE
        samples, self._odd = samples[: len(samples) - n_odd], samples[len(samples) - n_odd :]
        if rate_hz != VOICE_HZ:
            if self._resampler is None or self._resampler.in_hz != rate_hz:
                self._resampler = Resampler(rate_hz, VOICE_HZ)
            heard = np.frombuffer(samples, "<i2").astype(np.int16, copy=False)
            samples = self._resampler.push(heard).astype("<i2").tobytes()
        if not self.has_begun and not self.is_left:
            self._deliver(TextDelta(""))  # it answers, though no word is there yet
        self.words.hear(samples)
        self._release(samples)

    def _release(self, samples: bytes, *, is_over: bool = False) -> None:
        """Pass on what has come, with the words that begin to sound."""
        if self.is_left:
            return
        words = self.words.take(is_over=is_over)
        n_chars = len(self.words.text) if is_over else self.words.n_taken
        self.sound.add(samples, words)
        self._pass_on(self.words.text[len(self.text) : n_chars])
        is_long = self._most_words and len(self.words.words) >= self._most_words
        if (is_long or self.sound.is_full) and not is_over:
            self._cut()

    def _pass_on(self, text: str) -> None:
        self.text += text
        if text and not self.is_left:
            self._deliver(TextDelta(text))

    def _call(self, item: dict[str, Any]) -> None:
        call = ToolCall(str(item["call_id"]), str(item["name"]), str(item["arguments"]))
        self.calls.append(call)
        entry = Entry("call", call.arguments, call.call_id, call.name)
        self._known.append(Known(entry, [str(item["id"])]))
        if not self.is_left:
            self._release(b"", is_over=True)
            self._deliver(call)

    def known(self) -> list[Known]:
        """Return what it has added to the conversation there."""
        said = self.words.text if self.speaks else self.text
        if not said.strip():
            return self._known
        return [Known(Entry("assistant", said), self._item_ids, self.words.words), *self._known]

    def _finish(self, told: dict[str, Any]) -> None:
        if self.words.sound_ms and not self.words.text:
            log.warning("%s says no text with its sound: history lacks what it says", self._service)
            self.speaks = True
            self.words.read(NO_TRANSCRIPT)
        self._release(b"", is_over=True)
        status = str(told.get("status") or "completed")
        details = told.get("status_details") or {}
        if status == "failed" and not self.is_left:
            code = code_of(details.get("error"))
            self.fail(BackendError(f"expected a reply of {self._service}, found it failed: {code}"))
        elif status == "cancelled" and not self.is_left:
            self.fail(BackendError(f"expected a reply, found that {self._service} cancelled it"))
        else:
            self._generated(status, _usage(told.get("usage")))
            self._end()

    def _generated(self, status: str, usage: Usage) -> None:
        reason: Literal["stop", "length", "tool_calls"] = "tool_calls" if self.calls else "stop"
        if status == "incomplete":
            reason = "length"
        if not self.is_left:
            self._deliver(Generated(reason, usage))


def _usage(told: Any) -> Usage:
    """The tokens that it reports, of text and sound together."""
    if not isinstance(told, dict):
        return Usage()
    cached = (told.get("input_token_details") or {}).get("cached_tokens")
    counts = (told.get("input_tokens"), cached, told.get("output_tokens"))
    n_prompt, n_cached, n_reply = (int(n) if isinstance(n, int | float) else 0 for n in counts)
    return Usage(n_prompt_tokens=n_prompt, n_cached_tokens=n_cached, n_reply_tokens=n_reply)
