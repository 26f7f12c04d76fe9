"""One reply of a voice: text deltas to fragments, samples and word times to events.

What every voice shares and no model knows: the clause chunker, normalization, the 24 kHz of the
protocol, the silence a model starts with, and which characters are spoken when.
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..chunker import Chunker, Clause
from ..errors import AudioError
from ..frames import VOICE_HZ, Samples, duration_ms, samples_in
from ..normalize import Spelling, as_written, normalize
from ..resample import Resampler
from ..stream import Event, Speech, SpeechEnd, SpokenWord

LEAD_MS = 5.0  # kept of the leading silence, so that the onset is not clipped
LONGEST_LEAD_MS = 400.0  # more silence than this is the model's speech, not its start
MAX_HELD_CLAUSES = 4_096  # an hour of speech: more is a fault of the sender

Waveform = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FragmentWord:
    """A word as it is spoken; text_end: characters of the fed text spoken once it has ended."""

    text: str
    text_end: int


class Fragment:
    """One input of a voice model: the text of a clause as it is read, and the words in it."""

    def __init__(self, clause: Clause, phonemes: Spelling, *, is_english: bool = True) -> None:
        self._clause = clause
        self._normalized = (normalize if is_english else as_written)(clause.text, phonemes)
        self.text = self._normalized.text.strip()
        self.words = tuple(
            FragmentWord(match.group(), self.text_end(match.end()))
            for match in re.finditer(r"\S+", self.text)
            if is_spoken(match.group())
        )

    @property
    def ending(self) -> str:
        """The last character, closing quotes and brackets aside: the mark, where one ends it."""
        return self.text.rstrip("\"')]\u2019\u201d")[-1:]

    def text_end(self, end: int) -> int:
        """Characters of the fed text that are spoken once text[:end] is."""
        source = self._clause.text
        if not is_spoken(self.text[end:]):  # the last word takes the clause's closing marks along
            return self._clause.start + len(source.rstrip())
        n_leading = len(self._normalized.text) - len(self._normalized.text.lstrip())
        spoken = self._normalized.source_end(n_leading + end)
        # Marks that hang on the word (a comma, a closing quote) are spoken with it.
        hangs = spoken > 0 and not source[spoken - 1].isspace()
        while hangs and spoken < len(source) and _is_mark(source[spoken]):
            spoken += 1
        return self._clause.start + spoken


@dataclass(frozen=True, slots=True)
class WordSpan:
    """A fragment's word and where it is spoken, in ms from the fragment's first sample."""

    word: FragmentWord
    start_ms: float
    end_ms: float


class Reply:
    """One stream in voice, of a model that gives float32 samples at model_hz.

    quiet: what is below this level (1.0 is full scale) before the first word is silence.
    phonemes: writes what is said by its sounds as the model reads it.
    is_english: numbers and signs are spelled out; a voice of another language reads its own.
    """

    def __init__(
        self,
        stream_id: str,
        voice: str,
        *,
        speed: float,
        model_hz: int,
        quiet: float,
        phonemes: Spelling,
        is_english: bool = True,
    ) -> None:
        self.stream_id = stream_id
        self.voice = voice
        self.speed = speed
        self.is_finished = False
        self._chunker = Chunker()
        self._clauses: deque[Clause] = deque()
        self._model_hz = model_hz
        self._quiet = quiet
        self._is_english = is_english
        self._phonemes = phonemes
        self._resampler = Resampler(model_hz, VOICE_HZ)
        self._lead = np.zeros(0, np.float32)  # the silent start, until it ends
        self._has_started = False
        self._n_taken = 0  # samples of the model that belong to the stream, the lead cut off
        self._n_given = 0  # samples at VOICE_HZ
        self._words: deque[SpokenWord] = deque()  # spoken in samples to come
        self._fragment_start_ms = 0.0

    @property
    def has_fragment(self) -> bool:
        return bool(self._clauses)

    def feed(self, text: str) -> None:
        """Raises: AudioError if an hour of text already waits to be spoken."""
        if len(self._clauses) > MAX_HELD_CLAUSES:
            raise AudioError(f"expected at most {MAX_HELD_CLAUSES} clauses waiting, found more")
        self._clauses += self._chunker.feed(text)

    def flush(self) -> None:
        self._clauses += self._chunker.flush()

    def finish(self) -> None:
        self._clauses += self._chunker.finish()
        self.is_finished = True

    def next_fragment(self) -> Fragment | None:
        """The next clause that has something to say; what only holds marks is passed over."""
        while self._clauses:
            fragment = Fragment(
                self._clauses.popleft(), self._phonemes, is_english=self._is_english
            )
            if fragment.words:
                self._fragment_start_ms = duration_ms(self._n_taken, self._model_hz)
                return fragment
        return None

    def say(self, waveform: Waveform, spans: Sequence[WordSpan] = ()) -> list[Event]:
        """The next float32 samples [n] of the fragment, and the words known by now.

        spans of words that start in samples still to come are kept until these come.
        """
        self._words.extend(
            SpokenWord(
                span.word.text,
                self._fragment_start_ms + span.start_ms,
                self._fragment_start_ms + span.end_ms,
                span.word.text_end,
            )
            for span in spans
        )
        waveform = self._without_lead(waveform)
        self._n_taken += len(waveform)
        whole = np.clip(np.rint(waveform * 32767.0), -32768, 32767).astype(np.int16)
        return self._give(self._resampler.push(whole))

    def end(self) -> list[Event]:
        """Return what the resampler withheld, the last words, and `SpeechEnd`."""
        events = self._give(self._resampler.flush(), is_last=True)
        return [*events, SpeechEnd(self.stream_id, self._n_given)]

    def _without_lead(self, waveform: Waveform) -> Waveform:
        if self._has_started:
            return waveform
        self._lead = np.concatenate((self._lead, waveform))
        loud = np.flatnonzero(np.abs(self._lead) > self._quiet)
        longest = samples_in(LONGEST_LEAD_MS, self._model_hz)
        if len(loud) == 0 and len(self._lead) < longest:
            return self._lead[:0]
        self._has_started = True
        onset = int(loud[0]) if len(loud) else len(self._lead)
        cut = max(0, min(onset, longest) - samples_in(LEAD_MS, self._model_hz))
        self._fragment_start_ms -= duration_ms(cut, self._model_hz)
        shift_ms = duration_ms(cut, self._model_hz)
        self._words = deque(
            SpokenWord(
                w.text, max(0.0, w.start_ms - shift_ms), max(0.0, w.end_ms - shift_ms), w.text_end
            )
            for w in self._words
        )
        started, self._lead = self._lead[cut:], self._lead[:0]
        return started

    def _give(self, samples: Samples, *, is_last: bool = False) -> list[Event]:
        self._n_given += len(samples)
        given_ms = duration_ms(self._n_given, VOICE_HZ)
        started = []
        while self._words and (is_last or self._words[0].start_ms < given_ms):
            started.append(self._words.popleft())
        if not len(samples) and not started:
            return []
        return [Speech(self.stream_id, samples, VOICE_HZ, tuple(started))]


def is_spoken(text: str) -> bool:
    return any(character.isalnum() for character in text)


def _is_mark(character: str) -> bool:
    return not character.isalnum() and not character.isspace()
