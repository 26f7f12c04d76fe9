"""The events of the listener: sounds, speech, words, pauses, and turns of the caller.

Owns these messages. They are immutable; whoever asked the listener (or, for what comes by itself,
whoever it delivers to) gets them in the order in which they happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from audio.frames import VAD_WINDOW_MS
from voiceloop.errors import BackendError
from voiceloop.telemetry.record import TurnRecord


@dataclass(frozen=True, slots=True)
class Activity:
    """One segment of the caller's speech, in ms of the audio clock.

    speech_ms: first to last sound so far; silence_ms: since the last sound, 0 while it lasts.
    onset_arrival_s: when the onset's sample came in. voice: mean probability of speech.
    led_in_ms: sound that led into it before the voice detector took it for speech ("st" in "stop").
    level_db: of its loud parts, as of `LoudnessTrack`; None in too little sound.
    """

    onset_ms: float
    speech_ms: float
    silence_ms: float
    onset_arrival_s: float
    voice: float = 1.0
    led_in_ms: float = 0.0
    level_db: float | None = None

    @property
    def goes_on_ms(self) -> float:
        """Return where its latest window of sound begins."""
        return self.onset_ms + max(0.0, self.speech_ms - VAD_WINDOW_MS)


@dataclass(frozen=True, slots=True)
class UserTurn:
    """The caller's words in one turn. `segment` is its number in all events.

    speech_end_s: when its last sound arrived; decided_s: when the turn was over; both on the
    session's clock. record: what is measured of it. sound: as of `ChatMessage`.
    """

    segment: int
    words: tuple[str, ...]
    onset_ms: float
    end_ms: float
    speech_end_s: float
    decided_s: float
    record: TurnRecord
    sound: tuple[bytes, ...] = ()

    @property
    def text(self) -> str:
        return " ".join(self.words)


class ListenEvent(msgspec.Struct, frozen=True):
    """Something that was heard."""


# Why a sound may be speech: it is louder than the room; and the voice detector does not rule a
# voice out; or takes one window of it for one.
Sign = Literal["back", "risen", "likely", "loud"]


class SoundHeard(ListenEvent, frozen=True):
    """A sound of which speech may come.

    lasting_ms: how long it has lasted by its loudness; 0 where that cannot tell. sign: why it may
    be; "back": the caller, whose turn is nearly over or has just ended, may go on.
    """

    lasting_ms: float
    sign: Sign = "loud"


class SoundLost(ListenEvent, frozen=True):
    """No speech came of the sound."""


class SpeechStarted(ListenEvent, frozen=True):
    """Two loud windows in a row: a segment of speech is open, perhaps a turn of the caller."""

    activity: Activity


class SpeechWindow(ListenEvent, frozen=True):
    """One more window of the open segment, speech or silence; also while the client stalls."""

    activity: Activity


class WordsHeard(ListenEvent, frozen=True):
    """The hypothesis of the open segment.

    is_full: it covers all that was said before the present pause. for_agent: as of
    `backends.Partial`.
    """

    stable: tuple[str, ...]
    unstable: tuple[str, ...]
    is_full: bool
    for_agent: float | None = None


class PauseWeighed(ListenEvent, frozen=True):
    """The caller pauses, and it is known how likely the turn ends after these words.

    p_end: None where no model reads that; the wait then rests on words, voice and silence.

    paused_ms: how long ago the pause was noticed. needed_ms: the silence that eagerness auto would
    wait for on what is known now. is_nearly_over: little of the silence that ends the turn is
    missing; told once a pause, of a short wait at once, of a long one when it has come to that,
    with what was known before.
    """

    words: tuple[str, ...]
    p_end: float | None
    paused_ms: float
    needed_ms: float
    is_nearly_over: bool = False


class EndIsLikely(ListenEvent, frozen=True):
    """The silence is long enough for an answer to begin that may be taken back: the segment stays
    open. Where none begins `EndOfTurn` follows at once.

    unsure_ms: so much more silence would end the turn for sure.
    """

    segment: int
    end_ms: float
    hypothesis: tuple[str, ...]
    unsure_ms: float


class GroupHeard(ListenEvent, frozen=True):
    """The caller has said a group of a value and pauses: more must follow. Once a pause."""


class EndOfTurn(ListenEvent, frozen=True):
    """The silence has lasted long enough: the open segment is over, whoever it was for.

    is_overlong: there was no silence; the segment has lasted for the longest turn.
    """

    segment: int
    end_ms: float
    hypothesis: tuple[str, ...]
    is_overlong: bool = False


class WordsLate(ListenEvent, frozen=True):
    """The final words of a segment that ended before are not there, though it is high time: the
    recognizer is busy, or is being started anew.
    """

    turn: UserTurn


class TurnTranscribed(ListenEvent, frozen=True):
    """The final words of a segment that ended before."""

    turn: UserTurn


class TranscriptionFailed(ListenEvent, frozen=True):
    """The failure of a segment's transcription: it will have no words."""

    turn: UserTurn
    error: BackendError
