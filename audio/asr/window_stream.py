"""One caller of a window recognizer: the window of sound, its words, and what was decoded early.

Owns the sound that is still in the window, by its place in the stream, and what is known of the
segment under way. Decides nothing: `window_recognizer` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from ..end_in_states import joined
from ..frames import RECOGNIZER_HZ, Samples, samples_in
from ..stream import RecognizerOptions, Word
from .local_agreement import FORCED_CUT_MS, HypothesisWord, LocalAgreement
from .queued_recognizer import QueuedStream
from .session_words import session_phrases
from .speech_level import SpeechLevel
from .window_decoder import MAX_TOKENS, DecodedWindow

KEPT_SILENCE = RECOGNIZER_HZ  # of the silence before a segment's first word, 1 s is kept
LONGEST_WINDOW = samples_in(FORCED_CUT_MS, RECOGNIZER_HZ)
# Scripts that are spelled out by bytes fill the decoder's context before the window is long: from
# here on it is cut, so that two seconds of such speech still fit behind the forced words.
CROWDED_TOKENS = MAX_TOKENS - 48


class Again(Enum):
    """A judgement of a voice that fell silent, made once more."""

    WORDS = "words"  # behind the voice, where nobody hears them
    VOICE = "voice"  # once the silence has lasted


@dataclass(frozen=True, slots=True)
class EarlyFinal:
    """The segment's words if only silence came after position; the rest: as of `DecodedWindow`.

    is_told: with the answer to a flush; read_again: what has been since.
    """

    position: int
    words: tuple[Word, ...]
    p_voice: float | None
    by_words: float | None = None
    is_told: bool = False
    read_again: frozenset[Again] = frozenset()

    @property
    def log_odds(self) -> float | None:
        """The odds that the speaker has finished, by the sound and by the words as decoded."""
        return None if self.p_voice is None else joined(self.p_voice, self.by_words)

    def judged_again(self, again: Again, told: DecodedWindow) -> EarlyFinal:
        read = self.read_again | {again}
        if again is Again.WORDS:
            return replace(self, by_words=told.by_words, read_again=read)
        return replace(self, p_voice=told.p_voice, read_again=read)


class Segment:
    """One segment of one stream; positions are samples from the stream's start."""

    def __init__(self, start: int, options: RecognizerOptions, n_held_back: int) -> None:
        self.options = options
        self.window = np.zeros(0, np.int16)
        self.hints = tuple(" ".join(phrase) for phrase in session_phrases(options))
        self.start = start
        self.window_start = start
        self.decoded_to = start
        self.agreement = LocalAgreement(n_held_back)
        self.left: list[Word] = []  # the words that left the window, with their times
        self.early: EarlyFinal | None = None
        self.paused_to = start  # where a pause was last decoded, with or without an `early`
        self.for_agent: float | None = None  # as of `DecodedWindow`, the latest
        self.n_longest = LONGEST_WINDOW  # less once so much sound held more than a context of text

    @property
    def is_full(self) -> bool:
        return len(self.window) >= self.n_longest

    @property
    def is_crowded(self) -> bool:
        return len(tokens_of((*self.agreement.prefix, *self.agreement.tail))) >= CROWDED_TOKENS

    @property
    def end(self) -> int:
        return self.window_start + len(self.window)

    def cut(self, n_samples: int) -> None:
        self.window = self.window[n_samples:]
        self.window_start += n_samples


class WindowStream(QueuedStream):
    """One caller and the segment under way."""

    def __init__(
        self,
        stream_id: str,
        options: RecognizerOptions,
        level: SpeechLevel,
        n_held_back: int,
    ) -> None:
        super().__init__(stream_id, options)
        self.level = level
        self._n_held_back = n_held_back
        self.segment = Segment(0, options, n_held_back)
        self.due_since_s: float | None = None

    def hear(self, samples: Samples) -> int:
        """As much as the window has room for."""
        taken = samples[: max(0, self.segment.n_longest - len(self.segment.window))]
        self.segment.window = np.concatenate((self.segment.window, taken))
        self.level.feed(taken)
        return len(taken)

    def absorb(self) -> None:
        super().absorb()
        self._drop_leading_silence()

    @property
    def is_silent(self) -> bool:
        """Whether the segment has no word, and no sound that could hold one."""
        segment = self.segment
        has_words = segment.left or segment.agreement.committed or segment.agreement.tail
        return not has_words and self.level.is_silent_since(segment.window_start)

    def _drop_leading_silence(self) -> None:
        segment = self.segment
        surplus = len(segment.window) - KEPT_SILENCE
        if surplus > 0 and self.is_silent:
            segment.cut(surplus)
            segment.decoded_to = max(segment.decoded_to, segment.window_start)

    @property
    def n_undecoded(self) -> int:
        return self.segment.end - self.segment.decoded_to

    def open_segment(self) -> None:
        self.n_segment += 1
        self.segment = Segment(self.segment.end, self.options, self._n_held_back)


def tokens_of(words: Sequence[HypothesisWord]) -> list[int]:
    return [token for word in words for token in word.tokens]
