"""The evidence on whether the caller has finished: words, voice, question, and earlier pauses.

Owns `Evidence`, what is known in a pause of the caller; its reading as `terms`, the numbers that
the fitted weights of `voiceloop.listening.endpointing` multiply; and `PausePrior`, how long this
caller paused within earlier turns. Pure; times in ms of the audio clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from voiceloop.slots.numbers import FILLERS
from voiceloop.slots.progress import Answer, Progress, progress
from voiceloop.slots.question import DICTATED, Slot, SlotKind

# After these a sentence goes on: articles, prepositions, conjunctions, possessives, auxiliaries.
# "to", "on", "in" and "up" end many spoken questions, yet far more often they do not.
OPEN_WORDS = frozenset(
    "a an the my your his her its our their this these those and or but so because if when while "
    "that which who with for from of to in on at by about into than as like plus also maybe is are "
    "was were am be been do does did can could would will should have has had i'd i'll i'm we'd "
    "i we they he she it's there's let's very really some any every each "
    "between until before after without under over".split()
)
# Whole turns by themselves. Greetings are not among them: a request mostly follows "hi".
SHORT_ANSWERS = frozenset(
    "yes no yeah yep nope sure okay ok right correct exactly thanks nothing never please "
    "definitely absolutely bye goodbye stop cancel perfect great".split()
)
# Kinds of answers with terms of their own; the rest are too few to fit apart.
COUNTED_APART = frozenset({SlotKind.NUMBER, SlotKind.SPELLING, SlotKind.ADDRESS})
CLOSERS = frozenset("please thanks goodbye bye".split())  # at a sentence's end, hardly within it
# Where a term is centred or clamped. The weights are fitted with these values, so that a change of
# one needs another fit; where nothing else is said they were set by hand and never swept.
BRIEF_MS = 500.0  # less speech is likely a first word
TAIL_CENTER_DB = -10.0  # between voices that die away (-15) and held ones (-4)
TAIL_CLAMP_DB = 10.0  # around the center: from as loud as the loud parts to 20 dB below
# Semitones: beyond it the octave was misheard as often as the voice fell (LOG.md, 2026-11-21,
# "endpointing, a point for each eagerness").
DEEPEST_FALL = 3.0
P_END_CLAMP = 5.0  # logits (0.007 or 0.993): a very sure model is one witness among several
P_VOICE_CLAMP = 5.0  # the same of the voice
# The most that a sure voice says of talk whose words a model has read: a list's item falls like an
# end. With it strangers' orders and sentences are cut and wait as without, hesitations are cut in
# 6.0 % for 7.2; dictation needs the whole voice (LOG.md, "what the recognizer's decoder knows").
P_VOICE_IN_TALK = 1.5
P_END_LEAST = 1e-4  # probability: keeps its logit finite, at 9.2 beyond the clamp

# The prior of a caller's longest pause in a turn: PRIOR_TURNS turns with a pause of PRIOR_PAUSE_MS.
# Without it one turn that had no pause cut the next at its first (LOG.md, 2026-11-21, "endpointing,
# refitted to the agent of 21.9M tokens").
PRIOR_TURNS = 2
PRIOR_PAUSE_MS = 300.0
PAUSE_OFFSET_MS = 100.0  # added to both before the logarithm of their ratio: keeps it finite at 0
REMEMBERED_TURNS = 4  # the caller's latest; set by hand, as are the next two
LEAST_WORDS = 3  # a shorter turn has nowhere to pause: that it does not says nothing of the caller
CONTINUES_MS = 1000.0  # speech sooner after a turn's last sound continues it: it ended too early

# The pace of a turn: its pauses so far and N_USUAL_PAUSES of USUAL_PAUSE_MS, which stand for all
# callers. Who says digits one by one stops for as long after each. Chosen on the fit's speakers,
# each judged by weights fitted without them (LOG.md, 2026-11-22, "the pace of a turn").
USUAL_PAUSE_MS = 250.0
N_USUAL_PAUSES = 1.5
CLOSURE_MS = 100.0  # a shorter silence is the closure of a stop, and tells nothing of the pace
SLOWEST, FASTEST = 1.6, 0.6  # beyond them one odd pause would rule the wait
REMEMBERED_PAUSES = 16  # of a turn, the latest


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence about the open pause of the caller.

    words: lower case, the fullest hypothesis so far; words_are_full: it covers all that was said
    before the pause. p_end: end-of-turn (EOT) probability after these words, by the language model.
    p_voice: logit that the turn is over by the sound of the voice. speech_ms: spoken so far in the
    turn. tail_level_db: level of the last syllable relative to the speaker's loud parts.
    tail_semitones: its pitch relative to the turn's median. slot: what the agent asked for last.
    turn_pauses_ms: the pauses of this turn before this one, the latest REMEMBERED_PAUSES.
    pause_prior_ms: see `PausePrior`. None: not known. reads_words: False in a language of which no
    list knows a word.
    """

    words: tuple[str, ...] = ()
    words_are_full: bool = False
    p_end: float | None = None
    speech_ms: float = 0.0
    tail_level_db: float | None = None
    slot: Slot | None = None
    tail_semitones: float | None = None
    turn_pauses_ms: tuple[float, ...] = ()
    pause_prior_ms: float | None = None
    p_voice: float | None = None
    reads_words: bool = True

    @property
    def pace(self) -> float:
        """How long this turn's pauses are against USUAL_PAUSE_MS: their geometric mean."""
        told = [math.log(ms / USUAL_PAUSE_MS) for ms in self.turn_pauses_ms if ms >= CLOSURE_MS]
        pace = math.exp(sum(told) / (len(told) + N_USUAL_PAUSES))
        return min(max(pace, FASTEST), SLOWEST)

    @property
    def progress(self) -> Progress | None:
        """How far an answer has come whose end can be counted."""
        return progress(self.slot, self.words) if self.reads_words else None

    @property
    def is_dictation(self) -> bool:
        """Whether the words are dictated: a number, letters, an address, a date in its parts."""
        counted = self.progress
        if counted is None:
            return False
        is_part_of_date = counted.kind is SlotKind.DATE and counted.answer is Answer.UNDER_WAY
        return counted.kind in DICTATED or is_part_of_date

    @property
    def is_under_way(self) -> bool:
        """Whether the words, all of them, are dictated and more must follow."""
        counted = self.progress
        has_more = counted is not None and counted.answer is Answer.UNDER_WAY
        return has_more and self.is_dictation and self.words_are_full

    @property
    def is_short_answer(self) -> bool:
        """Whether all that was said is a word or two like "yes"."""
        return 0 < len(self.words) <= 2 and self.words[-1] in SHORT_ANSWERS

    @property
    def answers_yes_or_no(self) -> bool:
        """Whether a yes or no was asked for, and a short answer is all that was said.

        The voice head is no witness of it: in what the head learned from nobody was asked for one,
        and who paused so soon mostly went on.
        """
        is_asked = self.slot is not None and self.slot.kind is SlotKind.YES_NO
        return is_asked and self.is_short_answer


def pause_prior_ms(longest_ms: Sequence[float]) -> float:
    """Expected longest pause of a caller, from the longest pause of each of some turns.

    The mean of these and of the PRIOR_TURNS turns that stand for callers in general.
    """
    return (sum(longest_ms) + PRIOR_TURNS * PRIOR_PAUSE_MS) / (len(longest_ms) + PRIOR_TURNS)


class PausePrior:
    """How long one caller pauses within a turn, learned over the turns of a call.

    `observe_speech` notes the pauses of the open turn; `end_turn` learns from it, `discard_turn`
    does not.
    """

    def __init__(self) -> None:
        self._longest_ms: deque[float] = deque(maxlen=REMEMBERED_TURNS)  # of each earlier turn
        self._turn_end_ms: float | None = None  # last sound of the turn before
        self.discard_turn()

    def discard_turn(self) -> None:
        """Forget the open turn: it was a sound over the agent, or noise."""
        self._open_longest_ms = 0.0
        self._continued_after_ms = 0.0  # pause after a turn before that was ended too early

    def observe_speech(self, at_ms: float, silent_since_ms: float | None) -> None:
        """Speech was heard at this point, after a pause of the open turn (None: its first)."""
        if silent_since_ms is not None:
            self._open_longest_ms = max(self._open_longest_ms, at_ms - silent_since_ms)
        elif self._turn_end_ms is not None and at_ms - self._turn_end_ms < CONTINUES_MS:
            self._continued_after_ms = at_ms - self._turn_end_ms
        self._turn_end_ms = None

    def end_turn(self, n_words: int, last_sound_ms: float) -> None:
        """Learn from the open turn, which has ended and was a turn of the caller."""
        if self._continued_after_ms:
            self._longest_ms[-1] = max(self._longest_ms[-1], self._continued_after_ms)
        if n_words >= LEAST_WORDS:
            self._longest_ms.append(self._open_longest_ms)
            self._turn_end_ms = last_sound_ms
        self.discard_turn()

    @property
    def pause_ms(self) -> float | None:
        """The caller's expected longest pause; None where no turn has been learned from."""
        if not self._longest_ms:
            return None
        *earlier_ms, last_ms = self._longest_ms
        return pause_prior_ms((*earlier_ms, max(last_ms, self._continued_after_ms)))


def terms(evidence: Evidence) -> dict[str, float]:
    """The evidence as names of `Weights` and values: 0 or 1 where no unit is named.

    p_end: logit of the EOT probability, clamped; p_end_dictated: the same where the caller
    dictates. p_voice: that of the voice, at most P_VOICE_IN_TALK in talk that is read.
    fallen_voice: dB that the tail lies below TAIL_CENTER_DB. fallen_pitch: semitones that it lies
    below the turn. words_so_far: ln(1 + their number); dictated_so_far: the same where the caller
    dictates. paused: ln(1 + the turn's longest pause against PRIOR_PAUSE_MS). pause_prior: ln of
    the caller's pause prior against it. The rest is in `_of_answer` and `_kind_of_tail`. A term
    that is absent is 0.
    """
    counted, dictates = evidence.progress, evidence.is_dictation
    found: dict[str, float] = {}
    if not evidence.words_are_full:
        found["words_pending"] = 1.0
    if evidence.tail_level_db is not None:
        below_db = TAIL_CENTER_DB - evidence.tail_level_db
        found["fallen_voice"] = min(max(below_db, -TAIL_CLAMP_DB), TAIL_CLAMP_DB)
    if evidence.tail_semitones is not None:
        # A rise says nothing: questions rise, and a voice that creaks is heard as one that does.
        found["fallen_pitch"] = min(max(-evidence.tail_semitones, 0.0), DEEPEST_FALL)
    if evidence.pause_prior_ms is not None:
        usual_ms = PRIOR_PAUSE_MS + PAUSE_OFFSET_MS
        found["pause_prior"] = math.log((evidence.pause_prior_ms + PAUSE_OFFSET_MS) / usual_ms)
    found["paused"] = math.log(1.0 + max(evidence.turn_pauses_ms, default=0.0) / PRIOR_PAUSE_MS)
    found["dictated_so_far" if dictates else "words_so_far"] = math.log(1 + len(evidence.words))
    if evidence.speech_ms < BRIEF_MS:
        found["brief_speech"] = 1.0
    for name in (
        _asked(evidence.slot, dictates=dictates),
        _of_answer(counted),
        _kind_of_tail(evidence),
    ):
        if name is not None:
            found[name] = 1.0
    asked = evidence.slot.kind if evidence.slot is not None else None
    if counted is not None and counted.kind is SlotKind.NUMBER and asked is not SlotKind.NUMBER:
        found["number_unasked"] = 1.0
    if evidence.p_end is not None:
        p = min(max(evidence.p_end, P_END_LEAST), 1.0 - P_END_LEAST)
        logit = min(max(math.log(p / (1.0 - p)), -P_END_CLAMP), P_END_CLAMP)
        found["p_end_dictated" if dictates else "p_end"] = logit
    if evidence.p_voice is not None:
        most = P_VOICE_CLAMP if dictates or evidence.p_end is None else P_VOICE_IN_TALK
        found["p_voice"] = min(max(evidence.p_voice, -P_VOICE_CLAMP), most)
    return found


def _asked(slot: Slot | None, *, dictates: bool) -> str | None:
    """The term of what was asked for. dictates: the answer comes in parts."""
    if slot is None:
        return None
    if slot.kind in (SlotKind.YES_NO, SlotKind.OPEN):
        return f"asked_{slot.kind.value}"
    is_dictated = slot.kind in DICTATED or (dictates and slot.kind is SlotKind.DATE)
    return "asked_dictation" if is_dictated else "asked_detail"


def _of_answer(counted: Progress | None) -> str | None:
    """The term of how far an answer has come; kinds that are answered in a word have one.

    No recording of an e-mail address or a date of birth was there to fit weights by: their grammar
    says as surely as a count of digits does that more must follow, and weighs as much.
    """
    if counted is None:
        return None
    kind = counted.kind
    if kind is SlotKind.EMAIL or (kind is SlotKind.DATE and counted.answer is Answer.UNDER_WAY):
        kind = SlotKind.NUMBER
    return f"{kind.value if kind in COUNTED_APART else 'answer'}_{counted.answer.value}"


def _kind_of_tail(evidence: Evidence) -> str | None:
    """The term that the last words make true."""
    words = evidence.words
    if not words:
        return "no_words"
    last = words[-1]
    if last in FILLERS:
        return "filler"
    if last in OPEN_WORDS:
        return "open_word"
    if evidence.is_short_answer:
        return "answers" if evidence.answers_yes_or_no else "short_answer"
    if last in CLOSERS or words[-2:] == ("thank", "you"):
        return "closing"
    return None
