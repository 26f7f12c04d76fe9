"""One segment of the caller's speech, from its onset to the end of the turn.

Owns what the listener knows of the open segment on the audio clock: where it began, the last sound,
whether it pauses, and the hypothesis so far. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from voiceloop.listening.events import Activity, UserTurn
from voiceloop.telemetry import TurnTimeline

LONGEST_VAD_LAG_MS = 96.0  # three windows: beyond that the loudness is more likely wrong


@dataclass(slots=True)
class SpeechSegment:
    """Times in ms of the audio clock; `_s` in seconds of the wall's."""

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
    end: dict[str, Any] = field(default_factory=dict)  # what decided that it is over
    p_end_by_ms: float = 0.0  # P(end) of the present words is on its way until then

    def sound(self, end_ms: float, probability: float) -> bool:
        """A loud window of the detector, of this probability of speech; whether it ends a pause."""
        resumes, self.is_paused = self.is_paused, False
        self.last_sound_ms = end_ms
        self.n_windows += 1
        self.sum_of_probabilities += probability
        return resumes

    def pause(self, first_low_s: float, quiet_since_ms: float) -> None:
        """The first low window came in then, and the loudness tells when the sound had ended.

        The detector answers some 50 ms after that.
        """
        self.is_paused, self.is_flushed, self.first_low_s = True, False, first_low_s
        earliest_ms = max(self.onset_ms, self.last_sound_ms - LONGEST_VAD_LAG_MS)
        self.last_sound_ms = min(max(quiet_since_ms, earliest_ms), self.last_sound_ms)

    def activity(self, now_ms: float) -> Activity:
        silence_ms = max(0.0, now_ms - self.last_sound_ms) if self.is_paused else 0.0
        speech_ms = self.last_sound_ms - self.onset_ms
        # Mean probability of the windows that were sound.
        voice = self.sum_of_probabilities / self.n_windows if self.n_windows else 1.0
        return Activity(
            self.onset_ms, speech_ms, silence_ms, self.onset_arrival_s, voice, self.led_in_ms
        )

    def user_turn(self, segment: int, timeline: TurnTimeline) -> UserTurn:
        return UserTurn(segment, self.hypothesis, self.onset_ms, self.last_sound_ms, timeline)
