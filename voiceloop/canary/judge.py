"""Whether a canary is worse than what it is tried beside, looked at after every turn. Pure.

A difference of two means is held against a bound that is valid at all times at once, so looking at
every turn costs no more than it allows for: the mixture bound of Robbins on a score that grows with
the information there is, as a Brownian motion does. Each of the six questions that are asked (five
measures, and of the tokens both sides) has its part of the 5 % in which a canary that is no worse
may be given up.

Sources: Robbins, Statistical methods related to the law of the iterated logarithm (1970); Howard,
Ramdas, McAuliffe and Sekhon, Time-uniform, nonparametric, nonasymptotic confidence sequences
(2021), the one-sided normal mixture; Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, Time-uniform
central limit theory and asymptotic confidence sequences (2024), for estimated variances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from voiceloop.canary.turns import Measure, Sums, Turns, Variant

ALPHA = 0.05
JUDGED = tuple(measure for measure in Measure if measure is not Measure.TOKEN_MS)
N_QUESTIONS = len(JUDGED) + 1
# Of the canary, before which nothing is decided; the bound is tightest there. Fewer calls say too
# little of how calls differ.
LEAST_TURNS = 50
LEAST_CALLS = 5
# By how much the canary's mean of each measure may be worse than the baseline's.
MARGINS: Mapping[Measure, float] = {
    Measure.GAP: 50.0,
    Measure.CUT_INS: 0.02,
    Measure.FAILURES: 0.01,
    Measure.TOOL_CALLS: 0.02,
    Measure.TOKENS: 0.25,  # as a share of the baseline's, longer or shorter
}


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of the canary's mean less the baseline's; `low` and `high` hold at all times
    at once.
    """

    estimate: float
    low: float
    high: float


class Comparison(msgspec.Struct, frozen=True):
    """One measure of both: means of so many values, and how far they are apart.

    baseline, canary: None where there is no value; low, high: bounds of the difference.
    """

    measure: Measure
    baseline: float | None
    canary: float | None
    n_baseline: int
    n_canary: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Worse:
    """The measure by which a canary is surely worse than its margin allows."""

    measure: Measure
    difference: Difference
    margin: float

    def __str__(self) -> str:
        found = self.difference
        is_more = found.estimate > 0
        low, high = figure(found.low, "+"), figure(found.high, "+")
        bound = f"at least {low}" if is_more else f"at most {high}"
        told = f"{self.measure.value} {figure(found.estimate, '+')} ({bound}"
        return f"{told}, {figure(self.margin, '+')} allowed)"


def figure(value: float, sign: str = "") -> str:
    """Three figures of it, and never "1e+03"; sign: "+" for one also where it is not negative."""
    return f"{value:{sign}.0f}" if abs(value) >= 999.5 else f"{value:{sign}.3g}"


def judge(turns: Turns, margins: Mapping[Measure, float] = MARGINS) -> Worse | None:
    """Return what a canary is to be given up for; None while there is nothing."""
    canary, baseline = turns.get(Variant.CANARY, {}), turns.get(Variant.BASELINE, {})
    counted = canary.get(Measure.FAILURES, Sums())  # which every turn has
    if counted.n < LEAST_TURNS or counted.n_calls < LEAST_CALLS:
        return None
    for measure in JUDGED:
        found = difference(measure, canary, baseline)
        if found is None:
            continue
        most = _margin(measure, margins, baseline)
        if found.low > most:
            return Worse(measure, found, most)
        if measure is Measure.TOKENS and found.high < -most:  # short answers are quick ones
            return Worse(measure, found, -most)
    return None


def compare(turns: Turns) -> tuple[Comparison, ...]:
    """All measures, for an operator to read."""
    canary, baseline = turns.get(Variant.CANARY, {}), turns.get(Variant.BASELINE, {})
    found = []
    for measure in Measure:
        new, old = canary.get(measure, Sums()), baseline.get(measure, Sums())
        apart = difference(measure, canary, baseline)
        found.append(
            Comparison(
                measure,
                old.mean,
                new.mean,
                round(old.n),
                round(new.n),
                apart.low if apart is not None else None,
                apart.high if apart is not None else None,
            )
        )
    return tuple(found)


def difference(
    measure: Measure, canary: Mapping[Measure, Sums], baseline: Mapping[Measure, Sums]
) -> Difference | None:
    """None while one of them has no value of this measure."""
    new, old = canary.get(measure, Sums()), baseline.get(measure, Sums())
    if new.mean is None or old.mean is None:
        return None
    estimate = new.mean - old.mean
    information = 1.0 / (_variance(measure, new) + _variance(measure, old))
    turns = canary.get(Measure.FAILURES, Sums()).n
    reach = _boundary(information, information * LEAST_TURNS / max(1.0, turns)) / information
    return Difference(estimate, estimate - reach, estimate + reach)


def _margin(
    measure: Measure, margins: Mapping[Measure, float], baseline: Mapping[Measure, Sums]
) -> float:
    scale = (baseline.get(measure, Sums()).mean or 0.0) if measure is Measure.TOKENS else 1.0
    return margins[measure] * scale


def _variance(measure: Measure, sums: Sums) -> float:
    """Return the variance of the mean: over calls, and no less than if each value were a call of
    its own.

    A share that has never been anything but 0 or 1 is counted as if it had once been the other:
    else one bad turn of the first would be beyond doubt.
    """
    assert sums.mean is not None
    if measure.is_share:
        share = (min(sums.total, sums.n) + 1.0) / (sums.n + 2.0)
        single = share * (1.0 - share) / sums.n
    else:
        # In units of one millisecond or token: what never varies is not known without an error.
        single = max(1.0, sums.squares / sums.n - sums.mean**2) / sums.n
    if sums.n_calls < 2:
        return single
    mean = sums.mean
    spread = sums.total_total - 2.0 * mean * sums.n_total + mean**2 * sums.n_n
    # As of a mean of few that are normal: the variance of Student's t, for its own is estimated.
    few = sums.n_calls / max(1.0, sums.n_calls - 3.0)
    return max(single, few * spread / sums.n**2)


def _boundary(information: float, tightest: float) -> float:
    """Return what the score of no difference stays below at all times, but for its part of `ALPHA`.

    tightest: the information at which the bound is to be closest.
    """
    part = ALPHA / N_QUESTIONS
    spent = -2.0 * math.log(2.0 * part)
    prior = tightest / (spent + math.log(spent + 1.0))
    whole = information + prior
    return math.sqrt(2.0 * whole * math.log1p(math.sqrt(whole / prior) / (2.0 * part)))
