"""What wait costs least."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voiceloop.listening.release import (
    CUT_COST_S,
    KNOTS_MS,
    LEAST_WAIT_MS,
    LONGEST_WAIT_MS,
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


def cost_s(score: float, rise: Rise, cut_cost_s: float, silence_ms: float) -> float:
    p_over = 1.0 / (1.0 + math.exp(-score))
    still_silent = math.exp(-rise.at(silence_ms))
    return p_over * silence_ms / 1000.0 + (1.0 - p_over) * still_silent * cut_cost_s


@given(SCORES, RISES, CUT_COSTS, st.sampled_from(sorted(LONGEST_WAIT_MS.values())))
def test_no_other_wait_costs_less(
    score: float, rise: Rise, cut_cost_s: float, longest_ms: float
) -> None:
    chosen_ms = wait_ms(score, rise, cut_cost_s, longest_ms)
    assert LEAST_WAIT_MS <= chosen_ms <= longest_ms
    least_s = cost_s(score, rise, cut_cost_s, chosen_ms)
    for tried_ms in range(int(LEAST_WAIT_MS), int(longest_ms) + 1, 20):
        assert least_s <= cost_s(score, rise, cut_cost_s, float(tried_ms)) + 1e-9


@given(st.lists(SCORES, min_size=2, max_size=8), RISES, CUT_COSTS)
def test_the_surer_the_shorter(scores: list[float], rise: Rise, cut_cost_s: float) -> None:
    waits = [wait_ms(score, rise, cut_cost_s, 2000.0) for score in sorted(scores)]
    assert all(a >= b - 1e-6 for a, b in zip(waits, waits[1:], strict=False))


@given(SCORES, RISES, st.lists(CUT_COSTS, min_size=2, max_size=8))
def test_the_dearer_a_cut_the_longer(score: float, rise: Rise, costs: list[float]) -> None:
    waits = [wait_ms(score, rise, cost, 2000.0) for cost in sorted(costs)]
    assert all(a <= b + 1e-6 for a, b in zip(waits, waits[1:], strict=False))


def test_a_sure_end_is_released_at_the_least_wait_and_a_hopeless_one_at_the_longest() -> None:
    assert wait_ms(9.0, STEADY, 4.0, 2000.0) == LEAST_WAIT_MS
    assert wait_ms(-9.0, STEADY, 4.0, 2000.0) == 2000.0


def test_between_them_the_odds_reach_what_a_cut_costs() -> None:
    needed_ms = wait_ms(1.0, STEADY, 4.0, 2000.0)
    assert 1.0 + STEADY.at(needed_ms) == pytest.approx(math.log(4.0 * 2.0))


def test_a_silence_that_tells_nothing_is_not_waited_for() -> None:
    assert wait_ms(-3.0, FLAT, 4.0, 2000.0) == LEAST_WAIT_MS


def test_where_callers_go_on_after_a_while_it_is_waited_for_that() -> None:
    goes_on_at_700 = Rise((0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 6.0, 6.0, 6.0))  # between 450 and 700
    assert 450.0 < wait_ms(0.0, goes_on_at_700, 4.0, 2000.0) <= 700.0


@pytest.mark.parametrize(
    "logits", [(0.0,), (0.1, *[1.0] * (len(KNOTS_MS) - 1)), (0.0, 2.0, *[1.0] * 7)]
)
def test_a_rise_starts_at_0_and_does_not_fall(logits: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="expected 9 logits that rise from 0"):
        Rise(logits)


def test_each_eagerness_has_a_cost_and_a_longest_wait() -> None:
    assert list(CUT_COST_S) == list(LONGEST_WAIT_MS) == ["high", "auto", "medium", "low"]
    assert list(CUT_COST_S.values()) == sorted(CUT_COST_S.values())
