"""A turn as the listener hears it, on the audio clock: pauses, and the words as they come.

Owns the replay of `voiceloop.listening.listener`'s hysteresis, offline and much faster than real
time, with the real voice detector, loudness and pitch. Both transcript sources give the same
`HeardWords`: the embedded recognizer (decoded here) and `reference_replay`. Nothing looks ahead;
what a recognizer or an engine needs to compute is charged as a fixed lag, named below.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from audio.stream import Partial, RecognizerOptions
from audio.vad import Vad
from voiceloop.listening.prosody import Prosody
from voiceloop.listening.recipes.disk_cache import cached, digest
from voiceloop.listening.recipes.endpointing_set import MS, CallerTurn
from voiceloop.listening.recipes.recognizers import DEFAULT, OFFLINE
from voiceloop.listening.segment import (
    HYSTERESIS,
    LONGEST_VAD_LAG_MS,
    ONSET_MS,
    ONSET_WINDOWS,
    PRE_ROLL_MS,
    SPEECH_THRESHOLD,
    Heard,
    Onset,
)

WINDOW = 512
WINDOW_MS = WINDOW / MS
CHUNK_MS = 20.0  # of what clients send at once
CHUNK = int(CHUNK_MS * MS)
AFTER_END_MS = 900.0  # of room that the recognizer still hears: hypotheses rarely change later
PAUSES_VERSION = "4"  # of the records
WORDS_VERSION = "6"
RETURNS_VERSION = "1"  # to be raised with what `Onset` takes for a caller who is back


@dataclass(frozen=True, slots=True)
class Pause:
    """Silence as the detector hears it. Times in ms; resumed_ms: None at the end of the audio.

    detected_ms: first low window. since_ms: last sound, found by loudness. speech_ms: spoken so
    far in the turn.
    """

    detected_ms: float
    since_ms: float
    resumed_ms: float | None
    speech_ms: float
    tail_level_db: float | None
    tail_semitones: float | None


@dataclass(frozen=True, slots=True)
class HeardWords:
    """From at_ms on this is the hypothesis; flushed: it answers a flush and covers the pause."""

    at_ms: float
    words: tuple[str, ...]
    flushed: bool


@dataclass(slots=True)
class Listening:
    """The listener's state for one segment."""

    onset: Onset = field(default_factory=Onset)
    onset_ms: float | None = None
    last_sound_ms: float = 0.0
    paused: bool = False
    speech_ms: float = 0.0
    speech_from_ms: float = 0.0

    def window(self, end_ms: float, probability: float) -> Heard | Literal["paused", "resumed"]:
        """Return what one window of the detector changes: the beginning as `Onset` tells it, then
        "paused" at the first low window and "resumed" at the first loud one after it.
        """
        if self.onset_ms is None:
            heard = self.onset.observe(probability >= SPEECH_THRESHOLD)
            if heard == "speech":
                self.onset_ms = self.speech_from_ms = end_ms - ONSET_MS
                self.last_sound_ms = end_ms
            return heard
        low = SPEECH_THRESHOLD - (0.0 if self.paused else HYSTERESIS)
        if probability >= low:
            self.last_sound_ms = end_ms
            if self.paused:
                self.paused, self.speech_from_ms = False, end_ms - WINDOW_MS
                return "resumed"
        elif not self.paused:
            self.paused = True
            return "paused"
        return "nothing"


def pauses_of(turn: CallerTurn) -> tuple[Pause, ...]:
    """The pauses that the voice detector finds; the last one reaches the end of the audio."""
    key = digest(PAUSES_VERSION, turn.samples.tobytes())
    return tuple(Pause(**pause) for pause in cached("pauses", key, lambda: _pauses(turn)))


def _pauses(turn: CallerTurn) -> list[dict[str, Any]]:
    vad, prosody, listening = Vad(), Prosody(), Listening()
    pre_roll: deque[Any] = deque(maxlen=int(PRE_ROLL_MS / WINDOW_MS) + ONSET_WINDOWS)
    found: list[Pause] = []
    for start in range(0, len(turn.samples) - WINDOW + 1, WINDOW):
        window = turn.samples[start : start + WINDOW]
        end_ms = (start + WINDOW) / MS
        if listening.onset_ms is None:
            pre_roll.append(window)
        else:
            prosody.feed(window)
        match listening.window(end_ms, vad.feed(window)[0].probability):
            case "speech":
                prosody.feed(np.concatenate(pre_roll))
            case "paused":
                found.append(_paused(listening, prosody, end_ms))
            case "resumed":
                found[-1] = Pause(**{**asdict(found[-1]), "resumed_ms": end_ms - WINDOW_MS})
    return [asdict(pause) for pause in found]


def _paused(listening: Listening, prosody: Prosody, now_ms: float) -> Pause:
    assert listening.onset_ms is not None
    quiet_since_ms = max(now_ms - prosody.loudness.quiet_ms(), listening.onset_ms)
    earliest_ms = listening.last_sound_ms - LONGEST_VAD_LAG_MS
    since_ms = min(max(quiet_since_ms, earliest_ms), listening.last_sound_ms)
    listening.last_sound_ms = since_ms
    listening.speech_ms += max(0.0, since_ms - listening.speech_from_ms)
    return Pause(
        now_ms, since_ms, None, listening.speech_ms,
        prosody.loudness.tail_level_db(), prosody.pitch.tail_semitones(),
    )  # fmt: skip


def returns_of(turn: CallerTurn) -> dict[float, float]:
    """For how long, ms, a sound that has just begun may be the caller again: at the ends of those
    of the client's chunks at which there is one, as the listener's own `Onset` hears it.
    """
    key = digest(RETURNS_VERSION, turn.samples.tobytes())
    return dict(cached("returns", key, lambda: _returns(turn)))


def _returns(turn: CallerTurn) -> list[tuple[float, float]]:
    vad, onset, found = Vad(), Onset(), list[tuple[float, float]]()
    for start in range(0, len(turn.samples) - CHUNK + 1, CHUNK):
        chunk = turn.samples[start : start + CHUNK]
        onset.feed(chunk)
        for window in vad.feed(chunk):
            onset.observe_likeness(window.probability)
        if longest_ms := onset.may_be_back_ms:
            found.append(((start + CHUNK) / MS, longest_ms))
    return found


class EmbeddedRecognizer:
    """Turns to the words that a recognizer of the embedded preset reports, and when."""

    def __init__(self, name: str = DEFAULT, context: str = "") -> None:
        offline = OFFLINE[name]
        self._options = RecognizerOptions(context=context)
        self._model = offline.build()
        self._lag_ms = offline.lag_ms
        self._fingerprint = offline.fingerprint()

    def hear(self, turn: CallerTurn) -> tuple[HeardWords, ...]:
        key = digest(
            WORDS_VERSION, self._fingerprint, self._options.context, turn.samples.tobytes()
        )
        found = cached("heard", key, lambda: [asdict(w) for w in self._decode(turn)])
        return tuple(HeardWords(**{**w, "words": tuple(w["words"])}) for w in found)

    def _decode(self, turn: CallerTurn) -> list[HeardWords]:
        pauses = pauses_of(turn)
        if not pauses:
            return []
        flush_at = {pause.detected_ms for pause in pauses}
        onset_ms = max(0.0, turn.words[0].start_ms if turn.words else 500.0)
        first = int(max(0.0, onset_ms - PRE_ROLL_MS) / WINDOW_MS) * WINDOW
        last = min(len(turn.samples), int((turn.end_ms + AFTER_END_MS) * MS))
        model, stream = self._model, turn.name
        model.open(stream, self._options)
        heard: list[HeardWords] = []
        for start in range(first, last - WINDOW + 1, WINDOW):
            end_ms = (start + WINDOW) / MS
            model.feed(stream, turn.samples[start : start + WINDOW])
            if end_ms in flush_at:
                model.flush(stream)
            while model.has_work():
                heard += [
                    HeardWords(
                        end_ms + self._lag_ms,
                        event.stable_words + event.unstable_words,
                        event.flushed,
                    )
                    for event in model.step()
                    if isinstance(event, Partial)
                ]
        model.close(stream)
        return heard
