"""Endpointing: when silence ends the caller's turn. Pure; times in ms of the audio clock.

Owns how long to wait after the caller falls silent. The wait comes from a calibrated hazard: the
logit that the turn is over is a weighted sum of the evidence on the pause
(`voiceloop.listening.evidence.terms`) and of the silence so far, and the turn ends where it reaches
a threshold. Weights and, for each eagerness, threshold and min delay are fitted by `python -m
benchmarks.endpointing --fit`, which writes `endpointing_weights.toml`; there are two sets, with the
language model's end-of-turn (EOT) probability and without.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Literal

from voiceloop.listening.evidence import Evidence, PausePrior, normalize, question_in, terms
from voiceloop.realtime.settings import SemanticVad, ServerVad, TurnDetection

Eagerness = Literal["high", "auto", "medium", "low"]
Reason = Literal["confident", "unsure", "timeout", "server_vad"]

# Waits below this are reported as "confident"; it names a reason and decides nothing.
CONFIDENT_MS = 300.0
# An end before the words of the pause are there is a guess, and saves nothing: no answer begins
# without them. A recognizer that serves four calls on two cores has them 300 ms (p95) after the
# detector's first low window; one that has not answered by then is not waited for.
WORDS_BY_MS = 700.0
# Source: semantic_vad of the Realtime protocol, but for auto, which is medium there and waits no
# longer than high here.
LONGEST_WAIT_MS: dict[Eagerness, float] = {
    "high": 2000.0, "auto": 2000.0, "medium": 4000.0, "low": 8000.0,
}  # fmt: skip


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
    pause_prior: float = 0.0
    asked_yes_no: float = 0.0
    asked_number: float = 0.0
    asked_open: float = 0.0

    def score(self, evidence: Evidence) -> float:
        """Logit that the caller has finished, before any silence."""
        score = self.bias
        for name, value in terms(evidence).items():
            score += getattr(self, name) * value
        return score


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Where a turn ends, by the logit that it is over.

    threshold: the logit that ends it. min_delay_ms: silence below which it never ends, the pause at
    a comma within one breath; it holds where the logit before any silence is at least
    confident_logit. unconfident_delay_ms: the same where it is at most unconfident_logit. Between
    the two logits the delay is interpolated linearly.
    """

    threshold: float
    min_delay_ms: float = 0.0
    unconfident_delay_ms: float = 0.0
    confident_logit: float = 0.0
    unconfident_logit: float = 0.0

    def wait_ms(self, score: float, silence: float) -> float:
        """Silence to wait for at this logit, which rises by `silence` a second."""
        return max(self._min_delay_ms(score), 1000.0 * (self.threshold - score) / silence)

    def _min_delay_ms(self, score: float) -> float:
        if score >= self.confident_logit:
            return self.min_delay_ms
        more_ms = max(0.0, self.unconfident_delay_ms - self.min_delay_ms)
        if score <= self.unconfident_logit:
            return self.min_delay_ms + more_ms
        missing, width = self.confident_logit - score, self.confident_logit - self.unconfident_logit
        return self.min_delay_ms + more_ms * missing / width


@dataclass(frozen=True, slots=True)
class Hazard:
    """One set of weights, and where each eagerness ends a turn by it."""

    weights: Weights
    settings: Mapping[Eagerness, OperatingPoint]


@dataclass(frozen=True, slots=True)
class WeightSets:
    """The hazard where the EOT probability is known, and the one where it is not.

    preemptive_needed_ms: the longest wait at which a pause earns a preemptive reply; fitted too.
    """

    with_p_end: Hazard
    without_p_end: Hazard
    preemptive_needed_ms: float = 0.0

    def of(self, evidence: Evidence) -> Hazard:
        return self.without_p_end if evidence.p_end is None else self.with_p_end


def read_weights(toml: str) -> WeightSets:
    """The text of a weights file.

    Raises: tomllib.TOMLDecodeError, KeyError or TypeError where it is not one.
    """
    table = tomllib.loads(toml)
    hazards = _hazard(table["with_p_end"]), _hazard(table["without_p_end"])
    return WeightSets(*hazards, preemptive_needed_ms=table["preemptive_needed_ms"])


def _hazard(table: dict[str, Any]) -> Hazard:
    settings = {
        eagerness: OperatingPoint(**table["settings"][eagerness]) for eagerness in LONGEST_WAIT_MS
    }
    return Hazard(Weights(**table["weights"]), settings)


FITTED = read_weights((files(__package__) / "endpointing_weights.toml").read_text("utf-8"))


def wait_ms(evidence: Evidence, sets: WeightSets = FITTED, eagerness: Eagerness = "auto") -> float:
    """Silence to wait for on this evidence, at most the eagerness's longest."""
    hazard = sets.of(evidence)
    score = hazard.weights.score(evidence)
    needed_ms = hazard.settings[eagerness].wait_ms(score, hazard.weights.silence)
    return min(needed_ms, LONGEST_WAIT_MS[eagerness])


@dataclass(frozen=True, slots=True)
class Continue:
    """The turn is not over. wait_ms: silence that is still missing; None while speech runs."""

    wait_ms: float | None


@dataclass(frozen=True, slots=True)
class End:
    """The turn is over.

    reason: what set the wait; silence_ms: how much silence there was; needed_ms: how much ended the
    turn, the wait for words that were not there included.
    """

    reason: Reason
    silence_ms: float
    needed_ms: float


Decision = Continue | End


class Endpointing:
    """One caller's turn detection, for a whole call; `end_turn` or `reset` between turns.

    `observe_*` take what happened, `decide(now_ms)` says whether the turn is over at that point of
    the audio clock. No state keeps a turn open for ever: the longest wait always ends it.
    """

    def __init__(self, settings: TurnDetection, weights: WeightSets = FITTED) -> None:
        self._weights = weights
        self._pauses = PausePrior()
        self._evidence = Evidence()  # on the open turn, without the prior
        self._has_p_end = False  # the model told one in this call: it will again
        self.configure(settings)
        self.reset()

    def configure(self, settings: TurnDetection) -> None:
        """Take up other settings; they hold for the open turn too."""
        self._settings = settings

    def end_turn(self) -> None:
        """The caller's turn is over: learn from it how this caller pauses, and forget the rest."""
        if self._evidence.words and self._silent_since_ms is not None:
            self._pauses.end_turn(len(self._evidence.words), self._silent_since_ms)
        self.reset()

    def reset(self) -> None:
        """Forget the open turn: it was a sound over the agent, or noise."""
        self._pauses.discard_turn()
        self._silent_since_ms: float | None = None
        self._speech_from_ms: float | None = None  # onset of the speech that runs now
        self._evidence = Evidence(question=self._evidence.question)

    def observe_speech(self, at_ms: float) -> None:
        """Speech began, or resumed after a pause, at this point."""
        self._pauses.observe_speech(at_ms, self._silent_since_ms)
        if self._speech_from_ms is None:
            self._speech_from_ms = at_ms
        self._silent_since_ms = None
        self._evidence = replace(self._evidence, words_are_full=False, p_end=None)

    def observe_reply(self, text: str) -> None:
        """The agent said this last; what it asks for tells what kind of answer to expect."""
        self._evidence = replace(self._evidence, question=question_in(text))

    def observe_silence(
        self,
        since_ms: float,
        tail_level_db: float | None = None,
        tail_semitones: float | None = None,
    ) -> None:
        """The caller fell silent; the last sound was at `since_ms`. For the rest see `Evidence`."""
        speech_ms = self._evidence.speech_ms
        if self._speech_from_ms is not None:
            speech_ms += max(0.0, since_ms - self._speech_from_ms)
        self._speech_from_ms = None
        self._silent_since_ms = since_ms
        self._evidence = replace(
            self._evidence,
            speech_ms=speech_ms,
            tail_level_db=tail_level_db,
            tail_semitones=tail_semitones,
        )

    def observe_words(self, words: tuple[str, ...], *, full: bool) -> None:
        """The hypothesis changed; `full`: it covers everything said before the pause."""
        words = tuple(normalize(word) for word in words)
        is_same = words == self._evidence.words
        self._evidence = replace(
            self._evidence,
            words=words,
            words_are_full=full and self._speech_from_ms is None,
            p_end=self._evidence.p_end if is_same else None,  # it was that of other words
        )

    def observe_p_end(self, p_end: float | None) -> None:
        """The EOT probability after the words observed last; None: not known."""
        self._evidence = replace(self._evidence, p_end=p_end)
        self._has_p_end = self._has_p_end or p_end is not None

    @property
    def awaits_p_end(self) -> bool:
        """Whether the EOT probability of the present words counts and is still to come."""
        is_weighed = self._has_p_end and isinstance(self._settings, SemanticVad)
        return is_weighed and self._evidence.words_are_full and self._evidence.p_end is None

    @property
    def evidence(self) -> Evidence:
        """All that is known about the open pause."""
        return replace(self._evidence, pause_prior_ms=self._pauses.pause_ms)

    def needed_ms(self) -> float:
        """Silence that ends this turn on the present evidence."""
        match self._settings:
            case ServerVad(silence_duration_ms=silence_ms):
                return float(silence_ms)
            case SemanticVad(eagerness=eagerness):
                return wait_ms(self.evidence, self._weights, eagerness)

    def auto_wait_ms(self) -> float:
        """Silence that eagerness auto would wait for, whatever the settings."""
        return wait_ms(self.evidence, self._weights)

    def decide(self, now_ms: float) -> Decision:
        """Whether the open turn is over at this point of the audio clock."""
        if self._silent_since_ms is None:
            return Continue(None)
        silence_ms = now_ms - self._silent_since_ms
        needed_ms = self.needed_ms()
        if isinstance(self._settings, SemanticVad) and not self._evidence.words_are_full:
            needed_ms = max(needed_ms, WORDS_BY_MS)
        if silence_ms < needed_ms:
            return Continue(needed_ms - silence_ms)
        return End(self._reason(needed_ms), silence_ms, needed_ms)

    def _reason(self, needed_ms: float) -> Reason:
        if isinstance(self._settings, ServerVad):
            return "server_vad"
        if needed_ms >= LONGEST_WAIT_MS[self._settings.eagerness]:
            return "timeout"
        return "confident" if needed_ms < CONFIDENT_MS else "unsure"
