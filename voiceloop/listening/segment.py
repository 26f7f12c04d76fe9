"""One segment of the caller's speech, from its onset to the end of the turn.

Owns what the listener knows of the open segment on the audio clock: where it began, the last sound,
whether it pauses, and the hypothesis so far. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from audio.frames import VAD_WINDOW_MS
from voiceloop.listening.events import Activity, ListenEvent, PauseWeighed, UserTurn
from voiceloop.listening.onset import HYSTERESIS
from voiceloop.telemetry.record import Endpoint, Mark, TurnRecord

# So little silence is missing that the reply is begun now, for who has been silent for so long has
# mostly finished. A first clause takes the embedded models 60 to 130 ms, quick services some 300.
# Chosen (LOG.md, 2026-11-23, "a reply to whoever waits longest").
NEARLY_OVER_MS = 400.0
# The detector answers some 50 ms after the last sound; beyond three windows the loudness is more
# likely wrong.
LONGEST_VAD_LAG_MS = 3 * VAD_WINDOW_MS


@dataclass(slots=True)
class SpeechSegment:
    """The open segment. `_ms`: on the audio clock; `_s`: seconds of the wall's."""

    onset_ms: float
    onset_arrival_s: float
    last_sound_ms: float
    led_in_ms: float = 0.0
    is_paused: bool = False
    first_low_s: float = 0.0
    is_flushed: bool = False  # the hypothesis covers all that was said before this pause
    hypothesis: tuple[str, ...] = ()
    n_windows: int = 0
    sum_of_probabilities: float = 0.0
    end: Endpoint = field(default_factory=Endpoint)  # what decided that it is over
    p_end_by_ms: float = 0.0  # the EOT probability of the present words is awaited until then
    weighed: PauseWeighed | None = None  # of this pause the latest; None once told as nearly over

    def holds_speech(self, probability: float, threshold: float) -> bool:
        """Whether a window of this probability is one of speech; a pause ends only above it."""
        return probability >= threshold - (0.0 if self.is_paused else HYSTERESIS)

    def sound(self, end_ms: float, probability: float) -> bool:
        """A window of speech, of this probability, ends here. Returns whether it ends a pause."""
        resumes, self.is_paused = self.is_paused, False
        self.last_sound_ms = end_ms
        self.n_windows += 1
        self.sum_of_probabilities += probability
        return resumes

    def pause(self, first_low_s: float, quiet_since_ms: float) -> None:
        """A pause begins: the detector's first low window has come in.

        quiet_since_ms: the last sound by its loudness, which is nearer than the detector's.
        """
        self.is_paused, self.is_flushed, self.first_low_s = True, False, first_low_s
        self.weighed = None
        earliest_ms = max(self.onset_ms, self.last_sound_ms - LONGEST_VAD_LAG_MS)
        self.last_sound_ms = min(max(quiet_since_ms, earliest_ms), self.last_sound_ms)

    def take_nearly_over(self, missing_ms: float | None) -> list[ListenEvent]:
        """What was weighed, where it stands and so little silence is missing; once a pause."""
        weighed, is_near = self.weighed, missing_ms is not None and missing_ms <= NEARLY_OVER_MS
        if weighed is None or not is_near or weighed.words != self.hypothesis:
            return []
        self.weighed = None
        return [msgspec.structs.replace(weighed, is_nearly_over=True)]

    @property
    def has_all_words(self) -> bool:
        """Whether there are words, and they are all that was said before this pause."""
        return self.is_flushed and bool(self.hypothesis)

    def activity(self, now_ms: float) -> Activity:
        """The segment as of now."""
        silence_ms = max(0.0, now_ms - self.last_sound_ms) if self.is_paused else 0.0
        speech_ms = self.last_sound_ms - self.onset_ms
        voice = self.sum_of_probabilities / self.n_windows if self.n_windows else 1.0
        return Activity(
            self.onset_ms, speech_ms, silence_ms, self.onset_arrival_s, voice, self.led_in_ms
        )

    def user_turn(self, segment: int, last_sound_s: float, decided_s: float) -> UserTurn:
        """The segment as a turn of the caller, which ends here, with the hypothesis for its words.

        last_sound_s: when its last sound arrived.
        """
        record = TurnRecord("", self.last_sound_ms)
        record.mark(Mark.SPEECH_END, last_sound_s)
        record.mark(Mark.ENDPOINT_DECISION, decided_s)
        record.facts.endpoint = self.end
        return UserTurn(
            segment, self.hypothesis, self.onset_ms, self.last_sound_ms,
            last_sound_s, decided_s, record,
        )  # fmt: skip
