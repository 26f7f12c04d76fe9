"""What wait costs least."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from voiceloop.listening.release import (
    KNOTS_MS,
    LEAST_WAIT_MS,
    PATIENCE,
    SOFT_PRICE,
    STEP_MS,
    TAKEN_BACK_MS,
    Patience,
    Rise,
    wait_ms,
)

STEADY = Rise(tuple(2.0 * (knot - KNOTS_MS[0]) / 1000.0 for knot in KNOTS_MS))
FLAT = Rise((0.0,) * len(KNOTS_MS))
RISES = st.lists(st.floats(0.0, 4.0), min_size=len(KNOTS_MS) - 1, max_size=len(KNOTS_MS) - 1).map(
    lambda steps: Rise((0.0, *(sum(steps[: n + 1]) for n in range(len(steps)))))
)
SCORES = st.floats(-20.0, 20.0)
CUT_COSTS = st.floats(0.05, 100.0)
AT_4_S = Patience(4.0, LEAST_WAIT_MS, 2000.0)


PRICES = st.sampled_from([SOFT_PRICE, 1.0])


def costs_s(
    score: float,
    rise: Rise,
    cut_cost_s: float,
    silence_ms: NDArray[np.float64],
    soft_price: float,
) -> NDArray[np.float64]:
    """What ending there costs: a caller's wait, or a cut, which is soft for who goes on soon."""
    p_over = 1.0 / (1.0 + math.exp(-score))
    is_cut = np.exp(-rise.at(silence_ms))
    is_hard = np.exp(-rise.at(silence_ms + TAKEN_BACK_MS))
    cut_s = cut_cost_s * (soft_price * (is_cut - is_hard) + is_hard)
    return p_over * silence_ms / 1000.0 + (1.0 - p_over) * cut_s


@given(SCORES, RISES, CUT_COSTS, st.sampled_from(list(PATIENCE.values())), PRICES,
       st.sampled_from([0.0, 130.0, 700.0]))  # fmt: skip
def test_no_other_wait_that_is_still_to_come_costs_less(
    score: float,
    rise: Rise,
    cut_cost_s: float,
    patience: Patience,
    soft_price: float,
    passed_ms: float,
) -> None:
    patience = replace(patience, cut_cost_s=cut_cost_s)
    chosen_ms = wait_ms(score, rise, patience, passed_ms, soft_price)
    first_ms, longest_ms = max(patience.least_ms, passed_ms), patience.longest_ms
    assert first_ms <= chosen_ms <= longest_ms
    tried_ms = np.array([chosen_ms, *np.arange(int(first_ms), longest_ms + 1.0, STEP_MS)])
    least_s, *tried_s = costs_s(score, rise, cut_cost_s, tried_ms, soft_price)
    assert least_s <= min(tried_s) + 1e-9


def test_a_sure_end_is_released_at_the_least_wait_and_a_hopeless_one_at_the_longest() -> None:
    assert wait_ms(9.0, STEADY, AT_4_S) == LEAST_WAIT_MS
    assert wait_ms(-9.0, STEADY, AT_4_S) == 2000.0


def test_between_them_the_odds_reach_what_a_cut_costs() -> None:
    needed_ms = wait_ms(1.0, STEADY, AT_4_S, soft_price=1.0)
    reached = 1.0 + float(STEADY.at(needed_ms))
    assert reached == pytest.approx(math.log(4.0 * 2.0), abs=2.0 * STEP_MS / 1000.0)


def test_a_cut_that_is_taken_back_costs_less_and_starts_earlier() -> None:
    """Of callers who have not finished half go on before 450 ms, all before 700."""
    soon = Rise((0.0, 0.0, 0.1, 0.2, 0.4, 0.7, 9.0, 9.0, 9.0))
    held_ms, soft_ms = (wait_ms(1.5, soon, AT_4_S, soft_price=p) for p in (1.0, 0.3))
    assert soft_ms < 450.0 < held_ms <= 700.0
    assert soft_ms < wait_ms(1.5, soon, AT_4_S, soft_price=SOFT_PRICE) < held_ms
    never = Rise((0.0, *[0.0] * 7, 9.0))  # all go on late: no cut is soft
    waits_ms = [wait_ms(0.0, never, AT_4_S, soft_price=p) for p in (1.0, 0.3)]
    assert waits_ms[0] - waits_ms[1] <= TAKEN_BACK_MS


def test_silence_that_has_passed_is_no_choice() -> None:
    """Most who go on have done so by 200 ms, the rest between 450 and 700."""
    two_ways = Rise((0.0, 2.0, 4.0, 5.0, 5.0, 5.0, 8.0, 8.0, 8.0))
    at_once_ms = wait_ms(0.0, two_ways, AT_4_S)
    assert at_once_ms < 250.0
    assert wait_ms(0.0, two_ways, AT_4_S, passed_ms=300.0) == 300.0
    assert wait_ms(0.0, two_ways, AT_4_S, passed_ms=2500.0) == 2000.0


def test_a_silence_that_tells_nothing_is_not_waited_for() -> None:
    assert wait_ms(-3.0, FLAT, AT_4_S) == LEAST_WAIT_MS


@given(RISES, st.floats(0.6, 2.5), st.floats(0.0, 3000.0))
def test_at_half_the_pace_the_same_rise_takes_twice_the_silence(
    rise: Rise, pace: float, silence_ms: float
) -> None:
    paced = replace(rise, pace=pace)
    assert float(paced.at(pace * silence_ms)) == pytest.approx(float(rise.at(silence_ms)))


@pytest.mark.parametrize(
    "logits", [(0.0,), (0.1, *[1.0] * (len(KNOTS_MS) - 1)), (0.0, 2.0, *[1.0] * 7)]
)
def test_a_rise_starts_at_0_and_does_not_fall(logits: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="expected 9 logits that rise from 0"):
        Rise(logits)


def test_each_eagerness_is_more_patient_than_the_one_before() -> None:
    assert list(PATIENCE) == ["high", "auto", "medium", "low"]
    waits = [(one.least_ms, one.longest_ms, one.cut_cost_s) for one in PATIENCE.values()]
    assert all(a <= b for one, other in zip(waits, waits[1:], strict=False)
               for a, b in zip(one, other, strict=True))  # fmt: skip
    assert PATIENCE["high"].least_ms == LEAST_WAIT_MS
