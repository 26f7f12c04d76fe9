"""What is known about a pause: the words before it, the voice, the question, the caller's habit.

Owns the evidence from which `voiceloop.listening.endpointing` tells whether the caller has
finished, and its reading as `terms`, the numbers that the fitted weights are for. Pure; times in
ms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

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
DEEPEST_FALL = 3.0  # semitones: beyond it the octave was misheard as often as the voice fell
HABIT_CENTER_MS = 300.0  # a pause that says nothing of its caller
HABIT_FLOOR_MS = 100.0
P_END_CLAMP = 5.0  # logits: a very sure model is still one voice among several


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about the pause.

    words: lower case, the fullest hypothesis so far. tail_level_db: of the last syllable, relative
    to the speaker's loud parts. tail_semitones: its pitch, relative to the turn's median. question:
    what the agent asked for last. habit_ms: the longest pause within a turn of this caller, a mean
    over the last turns of more than two words; None where there was none.
    """

    words: tuple[str, ...] = ()
    words_are_full: bool = False
    p_end: float | None = None
    speech_ms: float = 0.0
    tail_level_db: float | None = None
    question: Question | None = None
    tail_semitones: float | None = None
    habit_ms: float | None = None


def terms(evidence: Evidence) -> dict[str, float]:
    """The evidence as the names of `Weights` and values: 0 or 1 where no unit is named.

    p_end: its logit, clamped. fallen_voice: dB that the tail lies below -10 dB. fallen_pitch:
    semitones that it lies below the turn. words_so_far: ln(1 + their number). answers: a short
    answer to a yes-no question. habit: ln of the caller's habitual pause against one of 300 ms.
    A term that is absent is 0.
    """
    found: dict[str, float] = {}
    if not evidence.words_are_full:
        found["words_pending"] = 1.0
    if evidence.tail_level_db is not None:
        below_db = TAIL_CENTER_DB - evidence.tail_level_db
        found["fallen_voice"] = min(max(below_db, -TAIL_CLAMP_DB), TAIL_CLAMP_DB)
    if evidence.tail_semitones is not None:
        # A rise says nothing: questions rise, and a voice that creaks is heard as one that does.
        found["fallen_pitch"] = min(max(-evidence.tail_semitones, 0.0), DEEPEST_FALL)
    if evidence.habit_ms is not None:
        usual_ms = HABIT_CENTER_MS + HABIT_FLOOR_MS
        found["habit"] = math.log((evidence.habit_ms + HABIT_FLOOR_MS) / usual_ms)
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


def normalize(word: str) -> str:
    return word.lower().strip(".,!?;:\"'")
