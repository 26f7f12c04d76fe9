"""The embedded voice: espeak-ng in process, a clause in a few milliseconds.

The library is one instance a process, so streams take turns inside `step`: one clause of one
stream at a time. Its 22.05 kHz becomes the house's 24 kHz in a stream-long resampler.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..chunker import Chunker, Clause
from ..errors import AudioError, UnknownStream
from ..espeak_library import Timbre, WordMark, load_espeak
from ..frames import VOICE_HZ, Samples, duration_ms, samples_in
from ..normalize import NormalizedText, normalize
from ..resample import Resampler
from ..stream import Event, Speech, SpeechEnd, SpokenWord, StreamFailed, VoiceOptions

RATE_WPM = 170  # conversational American English is 150-180 words a minute
MIN_SPEED, MAX_SPEED = 0.25, 4.0  # what the OpenAI speech interfaces allow
MIN_WPM, MAX_WPM = 80, 450  # espeak's own limits: speeds beyond 0.47 and 2.6 sound like these
QUIET = 33  # -60 dBFS: below this espeak's output is silence
LEAD_MS = 5.0  # kept of a clause's leading silence, so that its onset is not clipped
# The pause before the next clause, by the mark that ended this one. espeak's own pauses come
# after the last word, where they would only delay the end of the reply.
PAUSE_MS = {".": 260.0, "?": 260.0, "!": 260.0, ",": 130.0, ";": 180.0, ":": 180.0}
EVENT_MS = 200.0  # audio in one Speech event: what playout holds ahead


_TIMBRES = {
    "ava": Timbre("en-us+Annie", 48, 55),
    "en-us": Timbre("en-us", 45, 55),
    "en-us-f": Timbre("en-us+f3", 50, 55),
    "en-gb": Timbre("en-gb-x-rp", 45, 55),
    "en-gb-f": Timbre("en-gb-x-rp+f2", 50, 55),
}
# The voices of the Realtime API, so that an unchanged client is heard in some voice.
_TIMBRES |= dict.fromkeys(("alloy", "coral", "marin", "nova", "sage", "shimmer"), _TIMBRES["ava"])
_TIMBRES |= dict.fromkeys(("ash", "ballad", "cedar", "echo", "onyx", "verse"), _TIMBRES["en-us"])
_TIMBRES["fable"] = _TIMBRES["en-gb"]
DEFAULT_VOICE = "ava"
_TIMBRES["default"] = _TIMBRES[DEFAULT_VOICE]


@dataclass(slots=True)
class _Stream:
    timbre: Timbre
    rate_wpm: int
    resampler: Resampler
    chunker: Chunker = field(default_factory=Chunker)
    clauses: deque[Clause] = field(default_factory=deque)
    finished: bool = False
    position: int = 0  # samples at espeak's rate so far
    pause_ms: float = 0.0  # owed before the next clause
    n_samples: int = 0  # samples given out


class EspeakVoice:
    """`VoiceModel` over espeak-ng. Raises: MissingExtra if the package is absent."""

    rate_hz = VOICE_HZ
    voices = tuple(_TIMBRES)

    def __init__(self) -> None:
        self._espeak = load_espeak()
        self._streams: dict[str, _Stream] = {}

    def open(self, stream_id: str, options: VoiceOptions) -> None:
        """Raises: AudioError on a voice or speed that is not there, or an id in use."""
        timbre = _TIMBRES.get(options.voice or DEFAULT_VOICE)
        if timbre is None:
            raise AudioError(
                f"expected a voice of {', '.join(self.voices)}, found {options.voice!r}"
            )
        if not MIN_SPEED <= options.speed <= MAX_SPEED:
            raise AudioError(
                f"expected a speed of {MIN_SPEED} to {MAX_SPEED}, found {options.speed}"
            )
        if stream_id in self._streams:
            raise AudioError(f"expected a new stream id, found {stream_id!r} in use")
        rate_wpm = min(MAX_WPM, max(MIN_WPM, round(RATE_WPM * options.speed)))
        resampler = Resampler(self._espeak.rate_hz, VOICE_HZ)
        self._streams[stream_id] = _Stream(timbre, rate_wpm, resampler)

    def feed(self, stream_id: str, text: str) -> None:
        stream = self._stream(stream_id)
        stream.clauses += stream.chunker.feed(text)

    def flush(self, stream_id: str) -> None:
        stream = self._stream(stream_id)
        stream.clauses += stream.chunker.flush()

    def finish(self, stream_id: str) -> None:
        stream = self._stream(stream_id)
        stream.clauses += stream.chunker.finish()
        stream.finished = True

    def close(self, stream_id: str) -> None:
        self._streams.pop(stream_id, None)

    def has_work(self) -> bool:
        return any(stream.clauses or stream.finished for stream in self._streams.values())

    def step(self) -> list[Event]:
        """One clause of each stream that has one."""
        events: list[Event] = []
        for stream_id, stream in list(self._streams.items()):
            try:
                if stream.clauses:
                    events += self._speak(stream_id, stream, stream.clauses.popleft())
                if stream.finished and not stream.clauses:
                    events += self._end(stream_id, stream)
            except AudioError as error:
                self.close(stream_id)
                events.append(StreamFailed(stream_id, str(error), retryable=True))
        return events

    def _stream(self, stream_id: str) -> _Stream:
        if stream_id not in self._streams:
            raise UnknownStream(stream_id)
        return self._streams[stream_id]

    def _speak(self, stream_id: str, stream: _Stream, clause: Clause) -> list[Event]:
        normalized = normalize(clause.text)
        text = normalized.text.rstrip()
        if not any(character.isalnum() for character in text):
            return []
        mark = text.rstrip("\"')]\u2019\u201d")[-1:]
        if mark not in PAUSE_MS and not (stream.finished and not stream.clauses):
            text += ","  # a cut without a mark: the voice stays up, more comes
        samples, marks = self._espeak.synthesize(text, stream.timbre, stream.rate_wpm)
        first, last = _audible_range(samples, samples_in(LEAD_MS, self._espeak.rate_hz))
        pause = samples_in(stream.pause_ms, self._espeak.rate_hz)
        # A pause is as fast as the speech around it.
        stream.pause_ms = PAUSE_MS.get(mark, 0.0) * RATE_WPM / stream.rate_wpm
        start = stream.position + pause
        stream.position = start + last - first
        words = _spoken_words(
            marks, clause, normalized, start - first, stream.position, self._espeak.rate_hz
        )
        audio = np.concatenate((np.zeros(pause, np.int16), samples[first:last]))
        return self._events(stream_id, stream, stream.resampler.push(audio), words)

    def _events(
        self, stream_id: str, stream: _Stream, samples: Samples, words: Sequence[SpokenWord]
    ) -> list[Event]:
        """samples in pieces of EVENT_MS, each with the words that start in it."""
        events: list[Event] = []
        size = samples_in(EVENT_MS, VOICE_HZ)
        given = 0
        for offset in range(0, len(samples), size):
            piece = samples[offset : offset + size]
            stream.n_samples += len(piece)
            end_ms = duration_ms(stream.n_samples, VOICE_HZ)
            last_piece = offset + size >= len(samples)
            started = [w for w in words[given:] if w.start_ms < end_ms or last_piece]
            given += len(started)
            events.append(Speech(stream_id, piece, VOICE_HZ, tuple(started)))
        return events

    def _end(self, stream_id: str, stream: _Stream) -> list[Event]:
        events = self._events(stream_id, stream, stream.resampler.flush(), ())
        self.close(stream_id)
        return [*events, SpeechEnd(stream_id, stream.n_samples)]


def _audible_range(samples: Samples, lead: int) -> tuple[int, int]:
    """Where the audible part starts (lead samples before its onset) and ends."""
    audible = np.flatnonzero(np.abs(samples.astype(np.int32)) > QUIET)
    if len(audible) == 0:
        return 0, 0
    return max(0, int(audible[0]) - lead), int(audible[-1]) + 1


def _spoken_words(
    marks: Sequence[WordMark],
    clause: Clause,
    normalized: NormalizedText,
    offset: int,
    end: int,
    rate_hz: int,
) -> list[SpokenWord]:
    """The clause's words with times in the stream; a word ends where the next one starts."""
    starts = [max(0, mark.sample + offset) for mark in marks] + [end]
    words = []
    for index, mark in enumerate(marks):
        spoken = normalized.source_end(mark.end)
        if index == len(marks) - 1:
            spoken = len(clause.text.rstrip())
        # Marks that hang on the word (a comma, a closing quote) are spoken with it.
        hangs = spoken > 0 and not clause.text[spoken - 1].isspace()
        while hangs and spoken < len(clause.text) and _is_mark(clause.text[spoken]):
            spoken += 1
        words.append(
            SpokenWord(
                normalized.text[mark.start : mark.end],
                duration_ms(min(starts[index], end), rate_hz),
                duration_ms(min(starts[index + 1], end), rate_hz),
                clause.start + spoken,
            )
        )
    return words


def _is_mark(character: str) -> bool:
    return not character.isalnum() and not character.isspace()
