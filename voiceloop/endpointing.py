"""When the caller has finished: a pure state machine on the audio clock.

Owns how long to wait after the caller falls silent. The wait comes from a small, explicit fusion of
what is known (`end_score`): the last words, P(end of turn) of the language model, how long the
caller spoke. All weights stand in `Weights`, so that a fit can replace them and nothing else.
Times are milliseconds on the audio clock (samples received / rate).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from voiceloop.settings import SemanticVad, ServerVad, TurnDetection

# After these a sentence goes on: articles, prepositions, conjunctions, possessives, auxiliaries.
# "to", "on", "in" and "up" end many spoken questions, yet far more often they do not.
OPEN_WORDS = frozenset(
    "a an the my your his her its our their this these those and or but so because if when while "
    "that which who with for from of to in on at by about into than as like plus also maybe is are "
    "was were am be been do does did can could would will should have has had i'd i'll i'm we'd "
    "i we they he she it's there's let's very really some any every each "
    "between until before after without under over".split()
)
FILLERS = frozenset("uh um er erm hmm hm ah eh well uhm mm".split())
# Whole turns by themselves. Greetings are not among them: a request mostly follows "hi".
SHORT_ANSWERS = frozenset(
    "yes no yeah yep nope sure okay ok right correct exactly thanks nothing never please "
    "definitely absolutely bye goodbye stop cancel perfect great".split()
)
DIGITS = frozenset(
    "zero oh one two three four five six seven eight nine ten double triple hundred".split()
)


@dataclass(frozen=True, slots=True)
class Weights:
    """Evidence in logits that the turn is over, and the waits between which it moves.

    Set by hand for the first version from the waits wanted for each kind of tail; a fit on
    recorded pauses may replace every number.
    """

    bias: float = 0.4  # most pauses after which words are known end a turn
    p_end_slope: float = 0.75  # of logit(p_end): calibrated would be 1, noisy words make it less
    p_end_center: float = -1.1  # logit of the P(end) at which the model says nothing: p = 0.25
    open_word: float = -3.0
    filler: float = -3.0
    digits_under_way: float = -2.0
    digits_complete: float = 1.5
    short_answer: float = 2.5
    no_words: float = -1.5
    words_pending: float = -0.8  # the flushed hypothesis has not come yet
    held_voice_slope: float = 0.1  # logits per dB that the tail lies below tail_center_db
    tail_center_db: float = -10.0  # between voices that die away (-15) and held ones (-4)
    brief_speech: float = -0.4  # under BRIEF_MS of speech and no short answer: likely a first word
    fast_ms: float = 250.0  # wait when sure that the turn is over
    slow_ms: float = 1700.0  # wait when sure that it is not


DEFAULT_WEIGHTS = Weights()
BRIEF_MS = 500.0
TAIL_CLAMP_DB = 10.0
P_END_CLAMP = 4.0  # logits: a very sure model is still one voice among several
LONGEST_WAIT_MS = {"auto": 2000.0, "high": 2000.0, "medium": 4000.0, "low": 8000.0}
PATIENCE = {"high": 0.85, "auto": 1.0, "medium": 1.4, "low": 2.0}  # factor on every wait


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about the pause.

    words: lower case, the fullest hypothesis so far. tail_level_db: of the last syllable, relative
    to the speaker's loud parts.
    """

    words: tuple[str, ...] = ()
    words_are_full: bool = False
    p_end: float | None = None
    speech_ms: float = 0.0
    tail_level_db: float | None = None


def end_score(evidence: Evidence, weights: Weights = DEFAULT_WEIGHTS) -> float:
    """Logit that the caller has finished."""
    score = weights.bias
    if not evidence.words_are_full:
        score += weights.words_pending
    if evidence.tail_level_db is not None:
        below_db = weights.tail_center_db - evidence.tail_level_db
        score += weights.held_voice_slope * min(max(below_db, -TAIL_CLAMP_DB), TAIL_CLAMP_DB)
    if not evidence.words:
        return score + weights.no_words
    last = evidence.words[-1]
    if last in FILLERS:
        score += weights.filler
    elif (n_digits := n_last_digits(evidence.words)) >= 2:
        score += weights.digits_complete if is_whole_number(n_digits) else weights.digits_under_way
    elif last in OPEN_WORDS:
        score += weights.open_word
    elif len(evidence.words) <= 2 and last in SHORT_ANSWERS:
        score += weights.short_answer
    elif evidence.speech_ms < BRIEF_MS:
        score += weights.brief_speech
    if evidence.p_end is not None:
        p = min(max(evidence.p_end, 1e-4), 1.0 - 1e-4)
        logit = math.log(p / (1.0 - p)) - weights.p_end_center
        score += weights.p_end_slope * min(max(logit, -P_END_CLAMP), P_END_CLAMP)
    return score


def n_last_digits(words: tuple[str, ...]) -> int:
    """Digits spoken one by one at the end."""
    count = 0
    for word in reversed(words):
        if word not in DIGITS:
            break
        count += 1
    return count


def is_whole_number(n_digits: int) -> bool:
    """A telephone number: local (7) or with its area and country codes."""
    return n_digits == 7 or n_digits >= 10


def wait_ms(evidence: Evidence, weights: Weights = DEFAULT_WEIGHTS) -> float:
    """Silence to wait for: between fast and slow on a log scale, by the probability of the end."""
    p_over = 1.0 / (1.0 + math.exp(-end_score(evidence, weights)))
    return math.exp(p_over * math.log(weights.fast_ms) + (1 - p_over) * math.log(weights.slow_ms))


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
    """One caller's turn detection; `reset` between turns.

    `observe_*` take what happened, `decide(now_ms)` says whether the turn is over at that point of
    the audio clock. No state keeps a turn open for ever: the longest wait always ends it.
    """

    def __init__(self, settings: TurnDetection, weights: Weights = DEFAULT_WEIGHTS) -> None:
        self._weights = weights
        self.configure(settings)
        self.reset()

    def configure(self, settings: TurnDetection) -> None:
        self._settings = settings

    def reset(self) -> None:
        self._silent_since_ms: float | None = None
        self._in_speech = False
        self._words: tuple[str, ...] = ()
        self._words_are_full = False
        self._p_end: float | None = None
        self._tail_level_db: float | None = None
        self._speech_ms = 0.0
        self._speech_from_ms = 0.0

    def observe_speech(self, at_ms: float) -> None:
        """Speech began or went on after a pause at this point."""
        if not self._in_speech:
            self._in_speech = True
            self._speech_from_ms = at_ms
        self._silent_since_ms = None
        self._words_are_full = False
        self._p_end = None

    def observe_silence(self, since_ms: float, tail_level_db: float | None = None) -> None:
        """The caller fell silent; the last sound was at `since_ms`."""
        self._tail_level_db = tail_level_db
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
            self._words, self._words_are_full, self._p_end, self._speech_ms, self._tail_level_db
        )

    def needed_ms(self) -> float:
        """Silence that ends this turn on the present evidence."""
        match self._settings:
            case ServerVad(silence_duration_ms=silence_ms):
                return float(silence_ms)
            case SemanticVad(eagerness=eagerness):
                needed_ms = PATIENCE[eagerness] * wait_ms(self.evidence, self._weights)
                return min(needed_ms, LONGEST_WAIT_MS[eagerness])

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
        return "confident" if needed_ms < 2 * self._weights.fast_ms else "unsure"


def normalize(word: str) -> str:
    return word.lower().strip(".,!?;:\"'")
