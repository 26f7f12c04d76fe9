"""When the caller has finished: a pure state machine on the audio clock.

Owns how long to wait after the caller falls silent. The wait comes from a calibrated hazard: the
logit that the turn is over is a weighted sum of what is known about the pause (`terms`) and of the
silence so far, and the turn ends where it reaches a threshold. Every weight comes from
`python -m benchmarks.endpointing --fit`, which writes `endpointing_weights.toml`; there are two
sets, with P(end of turn) of the language model and without.
Times are milliseconds on the audio clock (samples received / rate).
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from importlib.resources import files
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


YES_NO_OPENERS = frozenset(
    "is are was were do does did can could would will should shall have has am may anything".split()
)
TAGS = frozenset("right correct okay yes no".split())  # "..., correct?" wants a yes or a no too
CLOSERS = frozenset("please thanks goodbye bye".split())  # at a sentence's end, hardly within it
NUMBER_WORDS = frozenset("number phone zip code digits many".split())

Question = Literal["yes_no", "number", "open"]

BRIEF_MS = 500.0
TAIL_CENTER_DB = -10.0  # between voices that die away (-15) and held ones (-4)
TAIL_CLAMP_DB = 10.0
P_END_CLAMP = 5.0  # logits: a very sure model is still one voice among several
CONFIDENT_MS = 300.0  # waits below this are reported as confident
LONGEST_WAIT_MS = {"auto": 2000.0, "high": 2000.0, "medium": 4000.0, "low": 8000.0}
PATIENCE = {"high": 0.85, "auto": 1.0, "medium": 1.4, "low": 2.0}  # factor on every wait


@dataclass(frozen=True, slots=True)
class Weights:
    """Logits that the turn is over, per unit of each of `terms`; see there for the units.

    silence: per second of it. threshold: logit at which the turn ends. least_wait_ms: silence
    below which it never does, since the commas of one breath last so long.
    """

    bias: float
    silence: float
    threshold: float
    least_wait_ms: float = 0.0
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
    asked_yes_no: float = 0.0
    asked_number: float = 0.0
    asked_open: float = 0.0


@dataclass(frozen=True, slots=True)
class WeightSets:
    """What to weigh where P(end of turn) is known, and where it is not.

    draft_needed_ms: the wait up to which a pause earns a reply drafted ahead; fitted as well.
    """

    with_p_end: Weights
    without_p_end: Weights
    draft_needed_ms: float = 0.0

    def of(self, evidence: Evidence) -> Weights:
        return self.without_p_end if evidence.p_end is None else self.with_p_end


def read_weights(toml: str) -> WeightSets:
    """The text of a weights file. Raises: KeyError, TypeError where it is not one."""
    table = tomllib.loads(toml)
    sets = (Weights(**table["with_p_end"]), Weights(**table["without_p_end"]))
    return WeightSets(*sets, draft_needed_ms=table.get("draft_needed_ms", 0.0))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about the pause.

    words: lower case, the fullest hypothesis so far. tail_level_db: of the last syllable, relative
    to the speaker's loud parts. question: what the agent asked for last.
    """

    words: tuple[str, ...] = ()
    words_are_full: bool = False
    p_end: float | None = None
    speech_ms: float = 0.0
    tail_level_db: float | None = None
    question: Question | None = None


def terms(evidence: Evidence) -> dict[str, float]:
    """The evidence as the names of `Weights` and values: 0 or 1 where no unit is named.

    p_end: its logit, clamped. fallen_voice: dB that the tail lies below -10 dB. words_so_far:
    ln(1 + their number). answers: a short answer to a yes-no question. A term that is absent is 0.
    """
    found: dict[str, float] = {}
    if not evidence.words_are_full:
        found["words_pending"] = 1.0
    if evidence.tail_level_db is not None:
        below_db = TAIL_CENTER_DB - evidence.tail_level_db
        found["fallen_voice"] = min(max(below_db, -TAIL_CLAMP_DB), TAIL_CLAMP_DB)
    found["words_so_far"] = math.log(1 + len(evidence.words))
    if evidence.question is not None:
        found[f"asked_{evidence.question}"] = 1.0
    if evidence.speech_ms < BRIEF_MS:
        found["brief_speech"] = 1.0
    if (kind := _kind_of_tail(evidence.words)) is not None:
        found[kind] = 1.0
        if kind == "short_answer" and evidence.question == "yes_no":
            found["answers"] = 1.0
    if evidence.p_end is not None:
        p = min(max(evidence.p_end, 1e-4), 1.0 - 1e-4)
        found["p_end"] = min(max(math.log(p / (1.0 - p)), -P_END_CLAMP), P_END_CLAMP)
    return found


def _kind_of_tail(words: tuple[str, ...]) -> str | None:
    """The term that the last words make true."""
    if not words:
        return "no_words"
    last = words[-1]
    if last in FILLERS:
        return "filler"
    if n_digits := n_last_digits(words):
        return "digits_complete" if is_whole_number(n_digits) else "digits_under_way"
    if last in OPEN_WORDS:
        return "open_word"
    if len(words) <= 2 and last in SHORT_ANSWERS:
        return "short_answer"
    if last in CLOSERS or words[-2:] == ("thank", "you"):
        return "closing"
    return None


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


def question_in(reply: str) -> Question | None:
    """What the agent's last sentence asks for; None where it asks nothing."""
    sentences = [part for part in reply.replace("!", ".").split(".") if part.strip()]
    if not sentences or not sentences[-1].rstrip().endswith("?"):
        return None
    words = [normalize(word) for word in sentences[-1].split("?")[-2].split()]
    if NUMBER_WORDS.intersection(words):
        return "number"
    if words and (words[0] in YES_NO_OPENERS or words[-1] in TAGS):
        return "yes_no"
    return "open"


def end_score(evidence: Evidence, weights: Weights) -> float:
    """Logit that the caller has finished, before any silence."""
    score = weights.bias
    for name, value in terms(evidence).items():
        score += getattr(weights, name) * value
    return score


def wait_ms(evidence: Evidence, weights: WeightSets | None = None) -> float:
    """Silence to wait for: where the logit reaches the threshold."""
    chosen = (weights or FITTED).of(evidence)
    lacking = chosen.threshold - end_score(evidence, chosen)
    return max(chosen.least_wait_ms, 1000.0 * lacking / chosen.silence)


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
    """One caller's turn detection; `reset` between turns.

    `observe_*` take what happened, `decide(now_ms)` says whether the turn is over at that point of
    the audio clock. No state keeps a turn open for ever: the longest wait always ends it.
    """

    def __init__(self, settings: TurnDetection, weights: WeightSets = FITTED) -> None:
        self._weights = weights
        self._question: Question | None = None
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

    def observe_reply(self, text: str) -> None:
        """The agent said this last; what it asks for tells what kind of answer to expect."""
        self._question = question_in(text)

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
            self._words,
            self._words_are_full,
            self._p_end,
            self._speech_ms,
            self._tail_level_db,
            self._question,
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
        return "confident" if needed_ms < CONFIDENT_MS else "unsure"


def normalize(word: str) -> str:
    return word.lower().strip(".,!?;:\"'")
