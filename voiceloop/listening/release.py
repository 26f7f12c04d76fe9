"""Release: how much silence ends a turn, by what waiting costs and what a cut costs. Pure.

A pause is an end with probability P(over), known from the evidence before any silence. A caller who
has not finished stays silent past t with probability S(t); so the silence itself is evidence, and
after it the logit that the turn is over has risen by -ln S(t). A cut is soft where the caller goes
on within TAKEN_BACK_MS of it: the answer is taken back, and nothing is lost but the sound of its
beginning. The turn ends at the t, of those still to come, that costs least:

    cost(t) = P(over) * t  +  (1 - P(over)) * cut_cost_s * (soft * S(t) + (1 - soft) * S(t + taken))

seconds that a caller who has finished waits, and seconds that a cut is worth; `soft` is the price
of a soft cut against a hard one. Most early cuts are soft, since most who pause go on soon: so a
moderate certainty starts early, and what is not sure by then waits for the rest. What a cut is
worth, and the least and the longest wait, are an eagerness. S is fitted, once for talk and once for
dictation, whose pauses are longer. Times are ms of silence since the last sound.

Source: optimal stopping; a recognizer's end of turn by expected cost is in A. Raux and M. Eskenazi,
"A Finite-State Turn-Taking Model for Spoken Dialog Systems" (NAACL 2009). A start that corrects
itself: G. Skantze and A. Hjalmarsson, "Towards incremental speech generation" (2013).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Eagerness = Literal["high", "auto", "medium", "low"]


@dataclass(frozen=True, slots=True)
class Patience:
    """cut_cost_s: what one caller cut off is worth in seconds that callers wait; least_ms: no
    evidence ends a turn sooner; longest_ms: nor later.
    """

    cut_cost_s: float
    least_ms: float
    longest_ms: float


# No turn can end sooner: stops within a word are silent for as long.
LEAST_WAIT_MS = 120.0
# People leave each other 200 ms (Stivers et al., "Universals and cultural variation in turn-taking
# in conversation", 2009): who answers sooner wins little, and takes commas for ends, which last as
# long; ten more are a caller's sound on its way, who is back by then. It allows half the price of a
# cut, at which the unsure ends wait for a third less and fewer are cut (LOG.md, 2026-11-23, "a
# least wait instead of a dear cut", and "who is back before the detector hears it").
PEOPLES_GAP_MS = 210.0
# The costs were chosen on the frontier of the fit's speakers (`python -m benchmarks.endpointing
# --fit` writes what each comes to). The longest waits are those of semantic_vad of the Realtime
# protocol, but for auto, which is medium there and waits no longer than high here.
PATIENCE: dict[Eagerness, Patience] = {
    "high": Patience(2.0, LEAST_WAIT_MS, 2000.0),
    "auto": Patience(3.0, PEOPLES_GAP_MS, 2000.0),
    "medium": Patience(12.0, PEOPLES_GAP_MS, 4000.0),
    "low": Patience(32.0, PEOPLES_GAP_MS, 8000.0),
}
# What a cut within dictation is worth of one in talk: what was heard of a number stays heard, and
# the caller goes on with its next digit. Chosen between the halves of the speakers, which differ:
# no price meets both bars on either (LOG.md, 2026-11-23, "what dictation ... have left").
DICTATED_PRICE = 0.5
# Where the slope of the rise may change: as fine as pauses are told apart, dense where most end.
KNOTS_MS = (60.0, 100.0, 150.0, 200.0, 300.0, 450.0, 700.0, 1000.0, 2000.0)
MAX_LOGIT = 30.0  # beyond it exp is 0 or 1 for all that follows
STEP_MS = 10.0  # as finely as waits are told apart: half of what a client sends at once
# From an answer's first sound to the caller's next: the caller had not finished, and the answer is
# taken back. People who were interrupted mid-sentence go on within this; who comes later may mean
# what was said: 200 ms are a word, and in 200 more people react. With 300 ms five of nine cuts were
# hard ones, with 450 three (LOG.md, 2026-11-23, "who is back before the detector hears it").
TAKEN_BACK_MS = 450.0
# What a soft cut is worth of a hard one: set by hand, when auto was 5 s and 120 ms. Of the bundled
# call's answers 0.3 began 8 of 48 too early, and 0.6 2 to 3 of 24 (LOG.md, 2026-11-22).
SOFT_PRICE = 0.8


@dataclass(frozen=True, slots=True)
class Rise:
    """How much the logit that the turn is over has risen at each of KNOTS_MS: -ln S.

    logits: one a knot, the first 0, none below the one before. Linear between the knots, and
    beyond the last as before it. pace: how long the caller's pauses are against those it was fitted
    to; twice as long, and the same rise takes twice the silence.
    """

    logits: tuple[float, ...]
    pace: float = 1.0

    def __post_init__(self) -> None:
        rises = all(a <= b for a, b in itertools.pairwise(self.logits))
        if len(self.logits) != len(KNOTS_MS) or self.logits[0] != 0.0 or not rises:
            raise ValueError(
                f"expected {len(KNOTS_MS)} logits that rise from 0, found {self.logits}"
            )

    def at(self, silence_ms: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """The rise after so much silence, of each of [n]."""
        paced_ms = np.divide(silence_ms, self.pace)
        inside = np.interp(paced_ms, KNOTS_MS, self.logits)
        last_slope = (self.logits[-1] - self.logits[-2]) / (KNOTS_MS[-1] - KNOTS_MS[-2])
        beyond = last_slope * np.maximum(np.subtract(paced_ms, KNOTS_MS[-1]), 0.0)
        return np.asarray(inside + beyond)

    def still_silent(self, silence_ms: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """The share of callers who have not finished that is silent for longer, of each of [n]."""
        return np.exp(-self.at(silence_ms))


def wait_ms(
    score: float,
    rise: Rise,
    patience: Patience,
    passed_ms: float = 0.0,
    soft_price: float = SOFT_PRICE,
) -> float:
    """The silence that costs least, from least_ms and passed_ms to longest_ms, to STEP_MS.

    score: logit that the turn is over, before any silence. passed_ms: silence that there was when
    this came to be known. soft_price: of a soft cut against a hard one; 1 where no answer is taken
    back.
    """
    score = min(max(score, -MAX_LOGIT), MAX_LOGIT)
    p_over = 1.0 / (1.0 + math.exp(-score))
    first_ms = max(patience.least_ms, passed_ms)
    if first_ms >= patience.longest_ms:
        return patience.longest_ms
    waits_ms = np.append(np.arange(first_ms, patience.longest_ms, STEP_MS), patience.longest_ms)
    cut = soft_price * rise.still_silent(waits_ms)
    cut += (1.0 - soft_price) * rise.still_silent(waits_ms + TAKEN_BACK_MS)
    costs = p_over * waits_ms / 1000.0 + (1.0 - p_over) * patience.cut_cost_s * cut
    return float(waits_ms[costs.argmin()])
