"""The one shape of a streaming speech model: messages out, and the two Protocols that give them.

`open / feed / flush / finalize / finish / close` enqueue and return at once; `step()` advances
every stream that is due by a bounded amount of work and returns immutable events. A model is
driven by one thread. An unknown stream id raises `audio.errors.UnknownStream`, except in
`close`, which is idempotent. A fault inside one stream becomes `StreamFailed` for that stream.
"""

import logging
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from .errors import AudioError
from .frames import Samples

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Word:
    """A recognized word; times in ms from the first sample fed to the stream."""

    text: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class Partial:
    """The hypothesis so far of one segment; flushed: this answers a `flush()`.

    stable_words only grow within a segment unless the recognizer revises itself; the unstable
    ones may change with the next update. The hypothesis is stable_words + unstable_words.
    p_voice: with the answer to a flush, and perhaps again once the silence has lasted: log-odds
    that the speaker has finished, by the voice and by what a decoder made of the words, where it
    is read; None where the model cannot tell.
    for_agent: the latest log-odds that the sound is words for the agent, read while it was young.
    """

    stream_id: str
    segment: int
    stable_words: tuple[str, ...]
    unstable_words: tuple[str, ...]
    flushed: bool
    p_voice: float | None = None
    for_agent: float | None = None


@dataclass(frozen=True, slots=True)
class Transcript:
    """The final words of one segment; answers `finalize()`. No words: nothing was said."""

    stream_id: str
    segment: int
    words: tuple[Word, ...]

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word the voice says; times in ms from the start of the stream's audio.

    text_end: number of characters of the fed text that are spoken once this word has ended.
    """

    text: str
    start_ms: float
    end_ms: float
    text_end: int


@dataclass(frozen=True, slots=True)
class Speech:
    """The next samples (mono int16 at rate_hz) and the words that start in them."""

    stream_id: str
    samples: Samples
    rate_hz: int
    words: tuple[SpokenWord, ...]


@dataclass(frozen=True, slots=True)
class SpeechEnd:
    """All text fed before `finish()` was spoken; n_samples in the whole stream."""

    stream_id: str
    n_samples: int


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """The failure of one stream alone; retryable: a new stream may well succeed."""

    stream_id: str
    message: str
    retryable: bool


def failed(stream_id: str, error: Exception) -> StreamFailed:
    """End a stream by an error of its own; an unforeseen one is logged with its origin.

    Its words are not: they may quote what was said.
    """
    if isinstance(error, AudioError):
        return StreamFailed(stream_id, str(error), retryable=True)
    kind, frames = type(error).__name__, "".join(traceback.format_tb(error.__traceback__))
    log.error("the stream %s failed: %s\n%s", stream_id, kind, frames)
    return StreamFailed(stream_id, f"expected the model to go on, found {kind}", retryable=True)


Event: TypeAlias = Partial | Transcript | Speech | SpeechEnd | StreamFailed


@dataclass(frozen=True, slots=True)
class RecognizerOptions:
    """Facts about the call that a recognizer may know.

    hotwords: words or phrases to expect. context: system prompt, for its names and menu items.
    n_digits: of the number that was asked for, 0 where none was; it counts from now on, and the
    rest from the next segment.
    """

    language: str = "en"
    hotwords: tuple[str, ...] = ()
    context: str = ""
    n_digits: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class VoiceOptions:
    """voice: an id of the model's `voices`, or "" for its default; speed: 1.0 is normal."""

    voice: str = ""
    speed: float = 1.0


class RecognizerModel(Protocol):
    """Speech to words; mono int16 at 16 kHz in."""

    def open(self, stream_id: str, options: RecognizerOptions) -> None: ...

    def feed(self, stream_id: str, samples: Samples) -> None: ...

    def flush(self, stream_id: str) -> None:
        """The caller paused: report the fullest hypothesis now. Not destructive."""

    def finalize(self, stream_id: str) -> None:
        """Close the segment: a `Transcript` follows, and the stream goes on with the next one."""

    def set_options(self, stream_id: str, options: RecognizerOptions) -> None:
        """Takes effect at the next segment."""

    def close(self, stream_id: str) -> None: ...

    def step(self) -> Sequence[Event]: ...

    def has_work(self) -> bool:
        """Whether step() would do something now."""


class VoiceModel(Protocol):
    """Text deltas to speech; mono int16 at `rate_hz` out."""

    @property
    def rate_hz(self) -> int: ...

    @property
    def voices(self) -> tuple[str, ...]: ...

    def open(self, stream_id: str, options: VoiceOptions) -> None: ...

    def feed(self, stream_id: str, text: str) -> None:
        """The next characters of the reply; the model cuts clauses itself."""

    def flush(self, stream_id: str) -> None:
        """Speak what is held back now, though the clause is not complete."""

    def finish(self, stream_id: str) -> None:
        """No more text comes: `SpeechEnd` follows the last `Speech`."""

    def close(self, stream_id: str) -> None:
        """Cancel: nothing more comes from this stream."""

    def step(self) -> Sequence[Event]: ...

    def has_work(self) -> bool:
        """Whether step() would do something now."""
