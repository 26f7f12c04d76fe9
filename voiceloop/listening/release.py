"""Release: how much silence ends a turn, by what waiting costs and what a cut costs. Pure.

A pause is an end with probability P(over), known from the evidence before any silence. A caller who
has not finished stays silent past t with probability S(t); so the silence itself is evidence, and
after it the logit that the turn is over has risen by -ln S(t). The turn ends at the t that costs
least:

    cost(t) = P(over) * t  +  (1 - P(over)) * S(t) * cut_cost_s

seconds that a caller who has finished waits, and seconds that a cut is worth. `cut_cost_s` is the
one number of an eagerness. S is fitted, once for talk and once for dictation, whose pauses are
longer. Times are ms of silence since the last sound.

Source: optimal stopping; a recognizer's end of turn by expected cost is in A. Raux and M. Eskenazi,
"A Finite-State Turn-Taking Model for Spoken Dialog Systems" (NAACL 2009).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Eagerness = Literal["high", "auto", "medium", "low"]

# What one caller cut off is worth in seconds that callers wait. Chosen on the frontier of the fit's
# speakers (`python -m benchmarks.endpointing --fit` writes what each comes to).
CUT_COST_S: dict[Eagerness, float] = {"high": 1.2, "auto": 4.0, "medium": 6.0, "low": 16.0}
# Source: semantic_vad of the Realtime protocol, but for auto, which is medium there and waits no
# longer than high here.
LONGEST_WAIT_MS: dict[Eagerness, float] = {
    "high": 2000.0, "auto": 2000.0, "medium": 4000.0, "low": 8000.0,
}  # fmt: skip
# No evidence ends a turn sooner: stops within a word are silent for as long.
LEAST_WAIT_MS = 120.0
# Where the slope of the rise may change: as fine as pauses are told apart, dense where most end.
KNOTS_MS = (60.0, 100.0, 150.0, 200.0, 300.0, 450.0, 700.0, 1000.0, 2000.0)
MAX_LOGIT = 30.0  # beyond it exp is 0 or 1 for all that follows


@dataclass(frozen=True, slots=True)
class Rise:
    """How much the logit that the turn is over has risen at each of KNOTS_MS: -ln S.

    logits: one a knot, the first 0, none below the one before. Linear between the knots, and
    beyond the last as before it.
    """

    logits: tuple[float, ...]

    def __post_init__(self) -> None:
        rises = all(a <= b for a, b in itertools.pairwise(self.logits))
        if len(self.logits) != len(KNOTS_MS) or self.logits[0] != 0.0 or not rises:
            raise ValueError(
                f"expected {len(KNOTS_MS)} logits that rise from 0, found {self.logits}"
            )

    @property
    def stretches(self) -> Iterator[Stretch]:
        """The straight pieces in order; the last has no end."""
        knots = zip(KNOTS_MS, self.logits, strict=True)
        for (from_ms, low), (to_ms, high) in itertools.pairwise(knots):
            is_last = to_ms == KNOTS_MS[-1]
            slope = 1000.0 * (high - low) / (to_ms - from_ms)
            yield Stretch(from_ms, math.inf if is_last else to_ms, low, slope)

    def at(self, silence_ms: float) -> float:
        """The rise after so much silence."""
        reached = [piece for piece in self.stretches if piece.from_ms <= silence_ms]
        return reached[-1].at(silence_ms) if reached else 0.0


class Stretch(NamedTuple):
    """A straight piece of a rise: from its logit at from_ms, by slope a second."""

    from_ms: float
    to_ms: float
    logit: float
    slope: float

    def at(self, silence_ms: float) -> float:
        return self.logit + self.slope * (silence_ms - self.from_ms) / 1000.0


def wait_ms(score: float, rise: Rise, cut_cost_s: float, longest_ms: float) -> float:
    """The silence that costs least, from LEAST_WAIT_MS to longest_ms.

    score: logit that the turn is over, before any silence. Where the rise is straight the cost is
    convex, so that each stretch has one point to be tried: where the odds that the turn is over
    have reached cut_cost_s times the slope of the rise, or the nearer of its ends.
    """
    score = min(max(score, -MAX_LOGIT), MAX_LOGIT)
    p_over = 1.0 / (1.0 + math.exp(-score))
    least_cost, best_ms = math.inf, longest_ms
    for stretch in rise.stretches:
        low_ms, high_ms = max(stretch.from_ms, LEAST_WAIT_MS), min(stretch.to_ms, longest_ms)
        if low_ms > high_ms:
            continue
        tried_ms = low_ms
        if stretch.slope > 0.0:
            missing = math.log(cut_cost_s * stretch.slope) - score - stretch.logit
            reached_ms = stretch.from_ms + 1000.0 * missing / stretch.slope
            tried_ms = min(max(reached_ms, low_ms), high_ms)
        still_silent = math.exp(-stretch.at(tried_ms))
        cost = p_over * tried_ms / 1000.0 + (1.0 - p_over) * still_silent * cut_cost_s
        if cost < least_cost:
            least_cost, best_ms = cost, tried_ms
    return best_ms
