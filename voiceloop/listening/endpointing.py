"""When the caller has finished: a pure state machine on the audio clock.

Owns how long to wait after the caller falls silent. The wait comes from a calibrated hazard: the
logit that the turn is over is a weighted sum of what is known about the pause
(`voiceloop.listening.evidence.terms`) and of the silence so far, and the turn ends where it reaches
a threshold. Weights and, for each eagerness, the threshold and the least waits come from `python -m
benchmarks.endpointing --fit`, which writes `endpointing_weights.toml`; there are two sets, with
P(end of turn) of the language model and without. Times are milliseconds on the audio clock (samples
received / rate).
"""

from __future__ import annotations

import tomllib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from voiceloop.listening.evidence import (
    HABIT_CENTER_MS,
    Evidence,
    Question,
    normalize,
    question_in,
    terms,
)
from voiceloop.realtime.settings import SemanticVad, ServerVad, TurnDetection

Eagerness = Literal["high", "auto", "medium", "low"]

CONFIDENT_MS = 300.0  # waits below this are reported as confident
LONGEST_WAIT_MS: dict[Eagerness, float] = {
    "high": 2000.0, "auto": 2000.0, "medium": 4000.0, "low": 8000.0,
}  # fmt: skip
HABIT_TURNS = 4  # of the caller, the latest
# Turns of nobody in particular that each caller's are averaged with: one turn without a pause is
# little reason to cut the next at its first.
HABIT_PRIOR_TURNS = 2
# Of fewer words a turn has nowhere to pause: that it does not tells nothing of its caller.
HABIT_WORDS = 3
# Speech so soon after the last sound of a turn that was taken for finished: it had not been.
GOES_ON_MS = 1000.0


@dataclass(frozen=True, slots=True)
class Weights:
    """Logits that the turn is over, per unit of each of `terms`; see there for the units.

    silence: per second of it.
    """

    bias: float
    silence: float
    p_end: float = 0.0
    words_pending: float = 0.0
    no_words: float = 0.0
    open_word: float = 0.0
    filler: float = 0.0
    digits_under_way: float = 0.0
    digits_complete: float = 0.0
    short_answer: float = 0.0
    answers: float = 0.0
    closing: float = 0.0
    words_so_far: float = 0.0
    brief_speech: float = 0.0
    fallen_voice: float = 0.0
    fallen_pitch: float = 0.0
    habit: float = 0.0
    asked_yes_no: float = 0.0
    asked_number: float = 0.0
    asked_open: float = 0.0


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Where a turn ends.

    threshold: the logit that ends it. least_wait_ms: silence below which it never ends, since the
    commas of one breath last so long; it holds where the logit before any silence is at least
    `sure`. unsure_wait_ms: the same where it is `unsure` or less; in between, in between.
    """

    threshold: float
    least_wait_ms: float = 0.0
    unsure_wait_ms: float = 0.0
    sure: float = 0.0
    unsure: float = 0.0

    def wait_ms(self, score: float, silence: float) -> float:
        """Silence to wait for at this logit, which rises by `silence` a second."""
        return max(self._floor_ms(score), 1000.0 * (self.threshold - score) / silence)

    def _floor_ms(self, score: float) -> float:
        if score >= self.sure:
            return self.least_wait_ms
        more_ms = max(0.0, self.unsure_wait_ms - self.least_wait_ms)
        if score <= self.unsure:
            return self.least_wait_ms + more_ms
        return self.least_wait_ms + more_ms * (self.sure - score) / (self.sure - self.unsure)


@dataclass(frozen=True, slots=True)
class Hazard:
    """One set of weights, and where each eagerness ends a turn by it."""

    weights: Weights
    settings: Mapping[Eagerness, OperatingPoint]

    def wait_ms(self, evidence: Evidence, eagerness: Eagerness) -> float:
        """Silence to wait for: where the logit reaches the threshold."""
        score = end_score(evidence, self.weights)
        return self.settings[eagerness].wait_ms(score, self.weights.silence)


@dataclass(frozen=True, slots=True)
class WeightSets:
    """What to weigh where P(end of turn) is known, and where it is not.

    draft_needed_ms: the wait up to which a pause earns a reply drafted ahead; fitted as well.
    """

    with_p_end: Hazard
    without_p_end: Hazard
    draft_needed_ms: float = 0.0

    def of(self, evidence: Evidence) -> Hazard:
        return self.without_p_end if evidence.p_end is None else self.with_p_end


def read_weights(toml: str) -> WeightSets:
    """The text of a weights file. Raises: KeyError, TypeError where it is not one."""
    table = tomllib.loads(toml)
    sets = (_hazard(table["with_p_end"]), _hazard(table["without_p_end"]))
    return WeightSets(*sets, draft_needed_ms=table["draft_needed_ms"])


def _hazard(table: dict[str, Any]) -> Hazard:
    settings = {
        eagerness: OperatingPoint(**table["settings"][eagerness]) for eagerness in LONGEST_WAIT_MS
    }
    return Hazard(Weights(**table["weights"]), settings)


def end_score(evidence: Evidence, weights: Weights) -> float:
    """Logit that the caller has finished, before any silence."""
    score = weights.bias
    for name, value in terms(evidence).items():
        score += getattr(weights, name) * value
    return score


def wait_ms(
    evidence: Evidence, sets: WeightSets | None = None, eagerness: Eagerness = "auto"
) -> float:
    """Silence to wait for on this evidence, at most the eagerness's longest."""
    needed_ms = (sets or FITTED).of(evidence).wait_ms(evidence, eagerness)
    return min(needed_ms, LONGEST_WAIT_MS[eagerness])


def habit_ms(pauses_ms: Sequence[float]) -> float:
    """What the longest pauses of a caller's last turns come to, not trusted while they are few."""
    prior_ms = HABIT_PRIOR_TURNS * HABIT_CENTER_MS
    return (sum(pauses_ms) + prior_ms) / (len(pauses_ms) + HABIT_PRIOR_TURNS)


FITTED = read_weights((files(__package__) / "endpointing_weights.toml").read_text("utf-8"))


@dataclass(frozen=True, slots=True)
class Continue:
    """Not yet. `wait_ms`: how much more silence the decision needs; None while speech runs."""

    wait_ms: float | None


@dataclass(frozen=True, slots=True)
class End:
    """The turn is over. `silence_ms`: silence waited for; `reason`: what set the wait."""

    reason: Literal["confident", "unsure", "timeout", "server_vad"]
    silence_ms: float


Decision = Continue | End


class Endpointing:
    """One caller's turn detection, for a whole call; `end_turn` or `reset` between turns.

    `observe_*` take what happened, `decide(now_ms)` says whether the turn is over at that point of
    the audio clock. No state keeps a turn open for ever: the longest wait always ends it.
    """

    def __init__(self, settings: TurnDetection, weights: WeightSets = FITTED) -> None:
        self._weights = weights
        self._question: Question | None = None
        self._pauses_ms: deque[float] = deque(maxlen=HABIT_TURNS)  # the longest of each turn
        self._longest_pause_ms = 0.0
        self._silent_since_ms: float | None = None
        self._ended_ms: float | None = None  # the last sound of the turn before
        self._words: tuple[str, ...] = ()
        self.configure(settings)
        self.reset()

    def configure(self, settings: TurnDetection) -> None:
        self._settings = settings

    def end_turn(self) -> None:
        """The caller's turn is over; of what it told of its caller the habit stays."""
        if self._words and self._silent_since_ms is not None:
            if self._went_on_ms:
                self._pauses_ms[-1] = max(self._pauses_ms[-1], self._went_on_ms)
            if len(self._words) >= HABIT_WORDS:
                self._pauses_ms.append(self._longest_pause_ms)
                self._ended_ms = self._silent_since_ms
        self.reset()

    def reset(self) -> None:
        """What was heard was no turn: a sound over the agent, or noise. It says nothing."""
        self._longest_pause_ms = 0.0
        self._went_on_ms = 0.0  # the pause since the turn before, where that one had not been over
        self._silent_since_ms = None
        self._in_speech = False
        self._words = ()
        self._words_are_full = False
        self._p_end: float | None = None
        self._tail_level_db: float | None = None
        self._tail_semitones: float | None = None
        self._speech_ms = 0.0
        self._speech_from_ms = 0.0

    def observe_speech(self, at_ms: float) -> None:
        """Speech began or went on after a pause at this point."""
        if self._silent_since_ms is not None:
            paused_ms = at_ms - self._silent_since_ms
            self._longest_pause_ms = max(self._longest_pause_ms, paused_ms)
        elif self._ended_ms is not None and at_ms - self._ended_ms < GOES_ON_MS:
            self._went_on_ms = at_ms - self._ended_ms
        self._ended_ms = None
        if not self._in_speech:
            self._in_speech = True
            self._speech_from_ms = at_ms
        self._silent_since_ms = None
        self._words_are_full = False
        self._p_end = None

    def observe_reply(self, text: str) -> None:
        """The agent said this last; what it asks for tells what kind of answer to expect."""
        self._question = question_in(text)

    def observe_silence(
        self,
        since_ms: float,
        tail_level_db: float | None = None,
        tail_semitones: float | None = None,
    ) -> None:
        """The caller fell silent; the last sound was at `since_ms`. For the rest see `Evidence`."""
        self._tail_level_db = tail_level_db
        self._tail_semitones = tail_semitones
        if self._in_speech:
            self._in_speech = False
            self._speech_ms += max(0.0, since_ms - self._speech_from_ms)
        self._silent_since_ms = since_ms

    def observe_words(self, words: tuple[str, ...], *, full: bool) -> None:
        """The hypothesis changed; `full`: it covers everything said before the pause."""
        normalized = tuple(normalize(word) for word in words)
        if normalized != self._words:
            self._p_end = None  # it was read after other words
        self._words = normalized
        self._words_are_full = full and not self._in_speech

    def observe_p_end(self, p_end: float | None) -> None:
        """P(end of turn) after the words observed last."""
        self._p_end = p_end

    @property
    def evidence(self) -> Evidence:
        return Evidence(
            self._words,
            self._words_are_full,
            self._p_end,
            self._speech_ms,
            self._tail_level_db,
            self._question,
            self._tail_semitones,
            self._habit_ms(),
        )

    def _habit_ms(self) -> float | None:
        if not self._pauses_ms:
            return None
        *earlier_ms, last_ms = self._pauses_ms
        return habit_ms((*earlier_ms, max(last_ms, self._went_on_ms)))

    def needed_ms(self) -> float:
        """Silence that ends this turn on the present evidence."""
        match self._settings:
            case ServerVad(silence_duration_ms=silence_ms):
                return float(silence_ms)
            case SemanticVad(eagerness=eagerness):
                return wait_ms(self.evidence, self._weights, eagerness)

    def auto_wait_ms(self) -> float:
        """What eagerness auto would wait for, whatever the settings: how sure the end is."""
        return wait_ms(self.evidence, self._weights)

    def decide(self, now_ms: float) -> Decision:
        if self._silent_since_ms is None:
            return Continue(None)
        silence_ms = now_ms - self._silent_since_ms
        needed_ms = self.needed_ms()
        if silence_ms < needed_ms:
            return Continue(needed_ms - silence_ms)
        return End(self._reason(needed_ms), silence_ms)

    def _reason(self, needed_ms: float) -> Literal["confident", "unsure", "timeout", "server_vad"]:
        if isinstance(self._settings, ServerVad):
            return "server_vad"
        if needed_ms >= LONGEST_WAIT_MS[self._settings.eagerness]:
            return "timeout"
        return "confident" if needed_ms < CONFIDENT_MS else "unsure"
