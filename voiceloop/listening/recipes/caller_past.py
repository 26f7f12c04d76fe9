"""Turns put into calls, so that a caller has a past: what the caller's pause prior is fitted on.

The set has no calls, only single turns. Owns the stand-in. Half of the turns are first in their
call; each of the others follows one to four turns of the same speaker, or of other callers where
the set has no more of that one. Turns of one or two words are no past, as in calls: they have
nowhere to pause. Natural pauses are the speaker's own, so their evidence is true. Whether a caller
who has hesitated hesitates again the set cannot tell, since its hesitations are spliced in: they
are dealt so that a past of them tells nothing, and the weight `pause_prior` is that of natural
pauses.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from voiceloop.listening.evidence import LEAST_WORDS, REMEMBERED_TURNS, pause_prior_ms
from voiceloop.listening.recipes.pause_evidence import HeardPause, HeardTurn

FIRST = 0.5  # turns that are first in their call
SAME = 0.5  # an earlier turn hesitates as this one does: as often as not, so that it tells nothing


def longest_pause_ms(heard: HeardTurn) -> float:
    """The longest pause after which the caller went on."""
    found = [p.resumed_ms - p.since_ms for p in heard.pauses if p.resumed_ms is not None]
    return max(found, default=0.0)


def in_calls(heard: Sequence[HeardTurn], same: float = SAME) -> list[HeardTurn]:
    """The turns, half of them with a pause prior of turns before. Deterministic, by their names."""
    telling = [turn for turn in heard if _n_words(turn) >= LEAST_WORDS]
    return [_with_past(turn, telling, same) for turn in heard]


def _n_words(heard: HeardTurn) -> int:
    """As many as the listener knows of at the end."""
    steps = heard.pauses[-1].steps if heard.pauses else ()
    return len(steps[-1].evidence.words) if steps else 0


def _with_past(turn: HeardTurn, others: Sequence[HeardTurn], same: float) -> HeardTurn:
    # The seed's words are part of the fit: others would deal other pasts.
    chance = random.Random(f"habit {turn.turn.name} {turn.turn.speaker}")
    if chance.random() < FIRST or not others:
        return turn
    n_past = chance.randint(1, REMEMBERED_TURNS)
    past = [_earlier(turn, others, same, chance) for _ in range(n_past)]
    return with_prior(turn, pause_prior_ms([longest_pause_ms(one) for one in past]))


def _earlier(
    turn: HeardTurn, others: Sequence[HeardTurn], same: float, chance: random.Random
) -> HeardTurn:
    """A turn of the same speaker where there is another, hesitating like this one or not."""
    hesitates = ("hesitation" in turn.turn.slices) == (chance.random() < same)
    alike = [o for o in others if ("hesitation" in o.turn.slices) == hesitates and o is not turn]
    of_speaker = [one for one in alike if one.turn.speaker == turn.turn.speaker]
    return chance.choice(of_speaker or alike or others)


def with_prior(turn: HeardTurn, prior_ms: float) -> HeardTurn:
    """The turn as heard of a caller with this pause prior."""

    def told(pause: HeardPause) -> HeardPause:
        steps = tuple(
            replace(step, evidence=replace(step.evidence, pause_prior_ms=prior_ms))
            for step in pause.steps
        )
        return replace(pause, steps=steps)

    return replace(turn, pauses=tuple(told(pause) for pause in turn.pauses))
