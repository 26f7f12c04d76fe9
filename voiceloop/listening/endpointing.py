"""Endpointing: when silence ends the caller's turn. Pure; times in ms of the audio clock.

Owns what is known of the open pause and how long to wait after the caller falls silent. The logit
that the turn is over is a weighted sum of the evidence on the pause
(`voiceloop.listening.evidence.terms`); the silence adds to it, and `voiceloop.listening.release`
says what wait costs least. Weights are fitted by `python -m benchmarks.endpointing --fit`, which
writes `endpointing_weights.toml`: a set for each combination of witnesses (the language model's
end-of-turn probability, the voice), since without one of them the others weigh more.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from voiceloop.agent import AgentSlot
from voiceloop.backends import is_english, normalize
from voiceloop.listening import release
from voiceloop.listening.evidence import (
    REMEMBERED_PAUSES,
    Evidence,
    PausePrior,
    terms,
)
from voiceloop.listening.release import (
    DICTATED_PRICE,
    PATIENCE,
    SOFT_PRICE,
    Eagerness,
    Patience,
    Rise,
)
from voiceloop.listening.wait_reason import reason_of
from voiceloop.realtime.settings import SemanticVad, ServerVad, TurnDetection
from voiceloop.slots.question import SlotKind, asked_last
from voiceloop.telemetry.record import Endpoint

Reason = Literal["confident", "unsure", "timeout", "server_vad", "longest_turn"]

# Waits below this are reported as "confident"; it names a reason and decides nothing.
CONFIDENT_MS = 300.0
USUAL_EAGERNESS = SemanticVad().eagerness
UNKNOWN_WORD = "\N{HORIZONTAL ELLIPSIS}"  # stands for each word of another language than English
# An end before the words of the pause are there is a guess, and saves nothing: no answer begins
# without them. A recognizer that serves four calls on two cores has them 300 ms (p95) after the
# detector's first low window; one that has not answered by then is not waited for.
WORDS_BY_MS = 700.0
# The sets of weights, by the witnesses they were fitted with.
P_END, P_VOICE = "p_end", "p_voice"
SETS: dict[str, frozenset[str]] = {
    "words": frozenset(),
    "words_p_end": frozenset({P_END}),
    "words_p_voice": frozenset({P_VOICE}),
    "words_p_end_p_voice": frozenset({P_END, P_VOICE}),
}
# The sets of another language: the sound alone, and how many words there were; and with what a
# model that answers and has no head makes of these (LOG.md, 2026-11-28, "a model's own P(end)").
UNREAD, UNREAD_P_END = "unread", "unread_p_end"
# What a cut is worth there of one in English talk: nobody can tell that a number or an address is
# under way. Of the test's people, heard as if their words were of such a language, 1.2 cut 13.8 %
# of dictated turns and had the others wait 436 ms; 1.5 cuts 10.0 % and has them wait 488 (LOG.md,
# 2026-11-28, "what a language that no list knows pays").
UNREAD_PRICE = 1.5


# Logits that the turn is over: the bias, and per unit of each of `terms` (see there for the units).
Weights = Mapping[str, float]
TERMS = tuple(
    "p_end p_end_dictated p_voice words_pending no_words open_word filler short_answer answers "
    "closing words_so_far dictated_so_far brief_speech fallen_voice fallen_pitch paused "
    "pause_prior asked_yes_no asked_open asked_detail asked_dictation number_under_way "
    "number_plausible number_complete number_unasked spelling_under_way spelling_plausible "
    "spelling_complete address_under_way address_plausible address_complete "
    "answer_plausible answer_complete".split()
)


@dataclass(frozen=True, slots=True)
class Hazard:
    """One set of weights, and what silence adds: where the caller talks, and dictates."""

    weights: Weights
    talk: Rise
    dictation: Rise

    def score(self, evidence: Evidence) -> float:
        """Logit that the caller has finished, before any silence."""
        score = self.weights["bias"]
        for name, value in terms(evidence).items():
            score += self.weights.get(name, 0.0) * value
        return score

    def rise(self, evidence: Evidence) -> Rise:
        """Return what silence adds, at the pace of this turn."""
        rise = self.dictation if evidence.is_dictation else self.talk
        return replace(rise, pace=evidence.pace)

    def wait_ms(
        self,
        evidence: Evidence,
        patience: Patience,
        passed_ms: float = 0.0,
        soft_price: float = SOFT_PRICE,
    ) -> float:
        """The silence that costs least on this evidence; for the rest see `release.wait_ms`.

        patience: with what a cut in talk is worth.
        """
        score, cut_cost_s = self.score(evidence), cut_price(evidence) * patience.cut_cost_s
        here = replace(patience, cut_cost_s=cut_cost_s)
        return release.wait_ms(score, self.rise(evidence), here, passed_ms, soft_price)


def cut_price(evidence: Evidence) -> float:
    """Return what a cut here is worth of one in talk."""
    if not evidence.reads_words:
        return UNREAD_PRICE
    return DICTATED_PRICE if evidence.is_dictation else 1.0


@dataclass(frozen=True, slots=True)
class WeightSets:
    """A hazard for each combination of witnesses; "words", which needs none, is always there.

    preemptive_needed_ms: the longest wait at which a pause earns a preemptive reply; fitted too.
    unread: where no list knows the words; unread_p_end: and the model that answers tells P(end).
    """

    hazards: Mapping[frozenset[str], Hazard]
    preemptive_needed_ms: float = 0.0
    unread: Hazard | None = None
    unread_p_end: Hazard | None = None

    def of(self, evidence: Evidence) -> Hazard:
        """The hazard that uses the most of what is known."""
        if not evidence.reads_words and self.unread is not None:
            own = self.unread_p_end if evidence.p_end is not None else None
            return own or self.unread
        p_voice = None if evidence.answers_yes_or_no else evidence.p_voice
        known = {P_END: evidence.p_end, P_VOICE: p_voice}
        told = frozenset(name for name, value in known.items() if value is not None)
        for witnesses in (told, told - {P_VOICE}, told - {P_END}):
            if witnesses in self.hazards:
                return self.hazards[witnesses]
        return self.hazards[frozenset()]


def read_weights(toml: str) -> WeightSets:
    """The text of a weights file.

    Raises: tomllib.TOMLDecodeError, KeyError, TypeError or ValueError where it is not one.
    """
    table = tomllib.loads(toml)
    hazards = {SETS["words"]: _hazard(table["words"])}
    hazards |= {SETS[name]: _hazard(table[name]) for name in SETS if name in table}
    others = (_hazard(table[name]) if name in table else None for name in (UNREAD, UNREAD_P_END))
    return WeightSets(hazards, table["preemptive_needed_ms"], *others)


def _hazard(table: dict[str, Any]) -> Hazard:
    talk, dictation = (Rise(tuple(table["rise"][kind])) for kind in ("talk", "dictation"))
    weights: dict[str, float] = table["weights"]
    unknown = weights.keys() - {"bias", *TERMS}
    if unknown or "bias" not in weights:
        found = ", ".join(sorted(unknown)) or "no bias"
        raise ValueError(f"expected a bias and weights of known terms, found {found}")
    return Hazard(weights, talk, dictation)


FITTED = read_weights((files(__package__) / "endpointing_weights.toml").read_text("utf-8"))


def wait_ms(
    evidence: Evidence,
    sets: WeightSets = FITTED,
    eagerness: Eagerness = USUAL_EAGERNESS,
    passed_ms: float = 0.0,
    soft_price: float = SOFT_PRICE,
) -> float:
    """Silence to wait for on this evidence, at most the eagerness's longest.

    passed_ms: how much there was when the evidence came.
    """
    return sets.of(evidence).wait_ms(evidence, PATIENCE[eagerness], passed_ms, soft_price)


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
        self._slots: Sequence[AgentSlot] = ()
        self._weights = weights
        self._pauses = PausePrior()
        self._evidence = Evidence()  # on the open turn, without the prior
        self._has_p_end = False  # the model told one in this call: it will again
        self._has_p_voice = False  # the same of the head on the voice
        self._reads_words = True
        self.configure(settings)
        self.reset()

    def take(self, slots: Sequence[AgentSlot]) -> None:
        """The agent asks for these."""
        self._slots = slots

    def configure(self, settings: TurnDetection, *, takes_back: bool = True) -> None:
        """Take up other settings; they hold for the open turn too.

        takes_back: an answer is taken back where the caller goes on at once.
        """
        self._settings = settings
        self._soft_price = SOFT_PRICE if takes_back else 1.0
        self._weighed: tuple[Any, float] = (None, 0.0)  # on what, and the wait

    def observe_language(self, language: str) -> None:
        """Take in the caller's language: word lists and heads know English alone ("" stands for
        it).

        In another language every word weighs as one that no list holds, and voice activity,
        silence and pace judge.
        """
        self._reads_words = is_english(language)
        self._evidence = replace(self._evidence, reads_words=self._reads_words)

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
        self._evidence = Evidence(slot=self._evidence.slot, reads_words=self._reads_words)

    def observe_speech(self, at_ms: float) -> None:
        """Speech began, or resumed after a pause, at this point."""
        self._pauses.observe_speech(at_ms, self._silent_since_ms)
        if self._speech_from_ms is None:
            self._speech_from_ms = at_ms
        pauses_ms = self._evidence.turn_pauses_ms
        if self._silent_since_ms is not None:
            pauses_ms = (*pauses_ms, at_ms - self._silent_since_ms)[-REMEMBERED_PAUSES:]
        self._silent_since_ms = None
        self._evidence = replace(
            self._evidence,
            words_are_full=False,
            p_end=None,
            p_voice=None,
            turn_pauses_ms=pauses_ms,
        )

    def observe_replies(self, *texts: str) -> None:
        """Take in what the agent has said, the newest last: its question tells what answer to
        expect.
        """
        slot = asked_last(texts, self._slots) if self._reads_words else None
        self._evidence = replace(self._evidence, slot=slot)

    @property
    def n_digits_asked(self) -> int:
        """Return how many digits the number has that the agent asked for; 0: it asked for none."""
        slot = self._evidence.slot
        return (slot.n_digits or 0) if slot is not None and slot.kind is SlotKind.NUMBER else 0

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
        words = tuple(normalize(word) if self._reads_words else UNKNOWN_WORD for word in words)
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

    def observe_voice(self, p_voice: float | None) -> None:
        """The logit that the turn is over by the voice before this pause; the latest counts."""
        if self._silent_since_ms is not None:
            self._evidence = replace(self._evidence, p_voice=p_voice)
            self._has_p_voice = self._has_p_voice or p_voice is not None

    @property
    def awaits_p_end(self) -> bool:
        """Whether the EOT probability of the present words counts and is still to come."""
        is_weighed = self._has_p_end and isinstance(self._settings, SemanticVad)
        return is_weighed and self._evidence.words_are_full and self._evidence.p_end is None

    @property
    def evidence(self) -> Evidence:
        return replace(self._evidence, pause_prior_ms=self._pauses.pause_ms)

    def needed_ms(self, passed_ms: float = 0.0) -> float:
        """Silence that ends this turn on the present evidence, so much of which has passed."""
        if isinstance(self._settings, ServerVad):
            return float(self._settings.silence_duration_ms)
        return self.wait_ms(self._settings.eagerness, passed_ms)

    def wait_ms(self, eagerness: Eagerness, passed_ms: float = 0.0) -> float:
        """Silence that this eagerness would wait for, whatever the settings.

        Weighed once for each evidence, when it comes: what of the silence is over is no choice.

        It is asked for with every chunk of a pause.
        """
        key = self.evidence, eagerness
        if key != self._weighed[0]:
            needed_ms = wait_ms(key[0], self._weights, eagerness, passed_ms, self._soft_price)
            self._weighed = key, needed_ms
        return self._weighed[1]

    def decide(self, now_ms: float) -> Decision:
        if self._silent_since_ms is None:
            return Continue(None)
        silence_ms = now_ms - self._silent_since_ms
        needed_ms = self.needed_ms(silence_ms)
        if isinstance(self._settings, SemanticVad) and not self._evidence.words_are_full:
            needed_ms = max(needed_ms, WORDS_BY_MS)
        if silence_ms < needed_ms:
            return Continue(needed_ms - silence_ms)
        return End(self._reason(needed_ms), silence_ms, needed_ms)

    def unsure_ms(self, end: End) -> float:
        """How much more silence would end the turn if every cut were a hard one; 0: it is sure."""
        if not isinstance(self._settings, SemanticVad):
            return 0.0
        hard_ms = wait_ms(self.evidence, self._weights, self._settings.eagerness, soft_price=1.0)
        return max(0.0, hard_ms - end.silence_ms)

    @property
    def late(self) -> tuple[str, ...]:
        """Judges that have told something in this call, and nothing yet of the present pause."""
        evidence = self._evidence
        if not evidence.words:
            return ()
        judged = {"words": evidence.p_end, "voice": evidence.p_voice}
        has_told = {"words": self._has_p_end, "voice": self._has_p_voice}
        return tuple(name for name, p in judged.items() if p is None and has_told[name])

    def told(self, end: End) -> Endpoint:
        """Return what decided the end, for the turn's record."""
        evidence, settings = self._evidence, self._settings
        late: tuple[str, ...] | UnsetType = UNSET
        why: str | UnsetType = UNSET
        if isinstance(settings, SemanticVad) and end.reason != "longest_turn":
            late = self.late or UNSET
            known, eagerness = self.evidence, settings.eagerness
            weights = self._weights.of(known).weights
            cut_cost_s = cut_price(known) * PATIENCE[eagerness].cut_cost_s
            why = reason_of(known, weights, cut_cost_s, eagerness, self.late)
        return Endpoint(
            reason=end.reason,
            needed_ms=round(end.needed_ms, 1),
            silence_ms=round(end.silence_ms, 1),
            p_end=evidence.p_end,
            p_voice=evidence.p_voice,
            asked=None if evidence.slot is None else evidence.slot.kind.value,
            words_are_full=evidence.words_are_full,
            tail_level_db=evidence.tail_level_db,
            late=late,
            why=why,
        )

    def _reason(self, needed_ms: float) -> Reason:
        if isinstance(self._settings, ServerVad):
            return "server_vad"
        if needed_ms >= PATIENCE[self._settings.eagerness].longest_ms:
            return "timeout"
        return "confident" if needed_ms < CONFIDENT_MS else "unsure"
