"""What the listener tells, and to whom.

Owns the messages between hearing and deciding: a stretch of speech, a turn of the caller, and the
callbacks of whoever acts on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from voiceloop.errors import BackendError
from voiceloop.telemetry import TurnTimeline


@dataclass(frozen=True, slots=True)
class Activity:
    """One stretch of the caller's speech, in ms of the audio clock.

    speech_ms: first to last sound so far; silence_ms: since the last sound, 0 while it lasts.
    onset_arrival_s: when the onset's sample came in. voice: mean probability of speech.
    led_in_ms: sound that led into it before the voice detector took it for speech ("st" in "stop").
    """

    onset_ms: float
    speech_ms: float
    silence_ms: float
    onset_arrival_s: float
    voice: float = 1.0
    led_in_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class UserTurn:
    """What the caller said in one turn. `segment` names it in all callbacks."""

    segment: int
    words: tuple[str, ...]
    onset_ms: float
    end_ms: float
    timeline: TurnTimeline

    @property
    def text(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True, slots=True)
class Awaited:
    """A turn of the caller whose words are still to come; no item yet where none were heard."""

    item_id: str | None
    respond: bool


class Ear(Protocol):
    """Who acts on what was heard (the session). No callback may block."""

    def on_sound(self, lasting_ms: float | None) -> None:
        """A first loud window, of which speech may come; None: it did not.

        lasting_ms: so long the sound has lasted already, by its loudness; 0 where that cannot tell.
        """

    def on_speech_onset(self, activity: Activity) -> None: ...

    def on_activity(self, activity: Activity) -> None:
        """After each window of an open stretch of speech, and while the client stalls."""

    def on_words(self, stable: tuple[str, ...], unstable: tuple[str, ...], *, full: bool) -> None:
        """The open turn's hypothesis; `full`: it covers all that was said before this pause."""

    def on_turn_ending(self, segment: int, end_ms: float, hypothesis: tuple[str, ...]) -> bool:
        """The turn is over; its final words follow in `on_turn` or `on_turn_failed`.

        False: it was no turn but a sound over the agent, and nobody's.
        """

    def on_turn(self, turn: UserTurn) -> None: ...

    def on_turn_failed(self, turn: UserTurn, error: BackendError) -> None: ...
