"""The embedded voice for English: hibari, a few hundredths of real time on one core.

A clause at a time, each cut free of the silence the network puts around it and faded at its edges,
with the house's pauses between. A step speaks one clause of one stream: that which has had least.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ..chunker import PAUSE_MS
from ..frames import duration_ms, samples_in
from ..phonemes import as_hibari
from ..stream import Event, VoiceOptions, failed
from .clause_audio import KEPT_MB, ClauseAudio
from .hibari_model import MAX_PHONEMES, MODEL_HZ, VOICE, HibariModel, PhonemeModel
from .reply import Fragment, FragmentWord, Reply, Waveform, WordSpan, is_spoken
from .reply_voice import ReplyVoice

SLOWEST, FASTEST = 0.5, 2.0  # what the network was made for: speeds beyond sound like these
GAIN = 1.6  # +4 dB: it speaks at -25 dBFS, recorded callers and espeak-ng at -21
# Kept around what is audible of a clause and faded: with 5 and 20 ms the breath of consonants is
# missed (sixteen replies: DNSMOS P.808 4.09, and 4.11 with these). They are a part of the pause
# between two clauses.
BEFORE_MS, AFTER_MS = 30.0, 60.0
SENTENCE_MARKS = frozenset(".?!")
UNMARKED_PAUSE_MS = 90.0  # after a cut without a mark: a breath, the sentence goes on

# A word's phonemes, and the word where it is one that is told; marks of their own are not.
_Word: TypeAlias = tuple[str, FragmentWord | None]


@dataclass(slots=True)
class _Progress:
    """The progress of one stream. pieces: of the clause under way, each short enough for a step."""

    pieces: deque[list[_Word]] = field(default_factory=deque)
    goes_on: bool = False  # more of the sentence comes behind the clause under way
    clause_pause_ms: float = 0.0  # owed after it
    pause_ms: float = 0.0  # owed before the next piece
    clause_ms: float = 0.0  # said of the clause under way
    said_ms: float = 0.0


class HibariVoice(ReplyVoice):
    """`VoiceModel` over hibari, on so many threads. kept_mb: of clauses that it has spoken.

    Raises: MissingExtra if its wheel is absent; AudioError if a file in it is not as expected.
    """

    speeds = (0.25, 4.0)  # what the OpenAI speech interfaces allow
    gain = GAIN
    most_phonemes = MAX_PHONEMES  # of a step
    _phonemes = staticmethod(as_hibari)

    def __init__(self, *, threads: int = 1, kept_mb: int = KEPT_MB) -> None:
        self._begin_with(HibariModel(threads), (VOICE,), kept_mb)

    def _begin_with(self, model: PhonemeModel, voices: tuple[str, ...], kept_mb: int) -> None:
        super().__init__(voices, MODEL_HZ)
        self._model = model
        # A clause sounds the same whatever was said before.
        self._spoken: ClauseAudio[list[tuple[float, float]]] = ClauseAudio(kept_mb * 2**20)
        self._progress: dict[str, _Progress] = {}

    def open(self, stream_id: str, options: VoiceOptions) -> None:
        super().open(stream_id, options)
        self._progress[stream_id] = _Progress()

    def close(self, stream_id: str) -> None:
        super().close(stream_id)
        self._progress.pop(stream_id, None)

    def has_work(self) -> bool:
        return super().has_work() or any(one.pieces for one in self._progress.values())

    def step(self) -> list[Event]:
        """One clause, at most 10 s of it, of the stream that has said least; and all ends."""
        due = [i for i, r in self._replies.items() if r.has_fragment or self._progress[i].pieces]
        events: list[Event] = []
        if due:
            stream_id = min(due, key=lambda one: self._progress[one].said_ms)
            try:
                events += self._say_next(self._replies[stream_id], self._progress[stream_id])
            except Exception as error:  # onnxruntime's errors have no common class of their own
                self.close(stream_id)
                events.append(failed(stream_id, error))
        for stream_id, reply in list(self._replies.items()):
            is_said = not reply.has_fragment and not self._progress[stream_id].pieces
            if reply.is_finished and is_said:
                self.close(stream_id)
                events += reply.end()
        return events

    def _say_next(self, reply: Reply, progress: _Progress) -> list[Event]:
        if not progress.pieces:
            fragment = reply.next_fragment()
            if fragment is None:
                return []
            self._begin(fragment, reply)
        piece = progress.pieces.popleft()
        phonemes = tuple(phonemes for phonemes, _ in piece)
        wave, times = self._speak(
            reply.voice, phonemes, _speed(reply), progress.goes_on or bool(progress.pieces)
        )
        wave *= self.gain
        first, last = _audible_range(wave, self.quiet)
        if times:  # the silence before the first word is not its own
            end_ms = times[0][1]
            times[0] = (min(end_ms, duration_ms(first, MODEL_HZ) + BEFORE_MS), end_ms)
        pause = samples_in(progress.pause_ms, MODEL_HZ)
        shift_ms = progress.clause_ms + duration_ms(pause - first, MODEL_HZ)
        end_ms = progress.clause_ms + duration_ms(pause + last - first, MODEL_HZ)
        heard_ms = max(progress.clause_ms, end_ms - AFTER_MS)
        spans = [
            WordSpan(word, *(min(heard_ms, max(0.0, at + shift_ms)) for at in span))
            for (_, word), span in zip(piece, times, strict=True)
            if word is not None
        ]
        audio = np.concatenate((np.zeros(pause, np.float32), _faded(wave[first:last])))
        progress.said_ms += end_ms - progress.clause_ms
        progress.clause_ms = end_ms
        progress.pause_ms = 0.0 if progress.pieces else progress.clause_pause_ms
        return reply.say(audio, spans)

    def _speak(
        self, voice: str, phonemes: tuple[str, ...], speed: float, goes_on: bool
    ) -> tuple[Waveform, list[tuple[float, float]]]:
        """As `PhonemeModel.speak`, which gives the same samples for the same words every time."""
        key = (voice, phonemes, speed, goes_on)
        kept = self._spoken.get(key)
        if kept is None:
            wave, times = self._model.speak(phonemes, speed, voice=voice, goes_on=goes_on)
            self._spoken.put(key, wave, list(times))
            return wave, times
        return kept.wave.copy(), list(kept.times)

    def _begin(self, fragment: Fragment, reply: Reply) -> list[Event]:
        """Read the clause's phonemes and cut it into pieces that a step has time for."""
        progress = self._progress[reply.stream_id]
        told = iter(fragment.words)
        words: list[_Word] = [
            (phonemes, next(told) if is_spoken(text) else None)
            for text, phonemes in zip(
                fragment.text.split(), self._model.phonemes(fragment.text), strict=True
            )
        ]
        pause_ms = PAUSE_MS.get(fragment.ending, UNMARKED_PAUSE_MS)
        more_comes = reply.has_fragment or not reply.is_finished
        progress.goes_on = more_comes and fragment.ending not in SENTENCE_MARKS
        progress.clause_pause_ms = max(0.0, pause_ms / _speed(reply) - BEFORE_MS - AFTER_MS)
        progress.clause_ms = 0.0
        progress.pieces.extend(_pieces(words, self.most_phonemes))
        return []


def _pieces(words: Sequence[_Word], most: int) -> list[list[_Word]]:
    """words in runs of at most so many phonemes, the spaces between them counted."""
    pieces: list[list[_Word]] = []
    room = 0
    for word in words:
        length = len(word[0]) + 1
        if not pieces or length > room:
            pieces.append([])
            room = most
        pieces[-1].append(word)
        room -= length
    return pieces


def _speed(reply: Reply) -> float:
    return min(FASTEST, max(SLOWEST, reply.speed))


def _audible_range(wave: Waveform, quiet: float) -> tuple[int, int]:
    """Return what to keep of a clause, for a wave float32 [n]: (first, last), 0 0 where all is
    silent.
    """
    audible = np.flatnonzero(np.abs(wave) > quiet)
    if len(audible) == 0:
        return 0, 0
    first = int(audible[0]) - samples_in(BEFORE_MS, MODEL_HZ)
    return max(0, first), min(len(wave), int(audible[-1]) + 1 + samples_in(AFTER_MS, MODEL_HZ))


def _faded(wave: Waveform) -> Waveform:
    """wave from zero and to zero within what was kept around its sound: no click at a join."""
    n_before, n_after = samples_in(BEFORE_MS, MODEL_HZ), samples_in(AFTER_MS, MODEL_HZ)
    if len(wave) > n_before + n_after:
        wave[:n_before] *= np.linspace(0.0, 1.0, n_before, dtype=np.float32)
        wave[-n_after:] *= np.linspace(1.0, 0.0, n_after, dtype=np.float32)
    return wave
