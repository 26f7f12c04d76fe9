"""A canary that is worse is found out soon, and one that is no different is left alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from benchmarks.canary_trials import (
    NO_MARGINS,
    PLAIN,
    WORSE,
    SimulatedTrial,
    n_given_up,
    turns_until,
)
from voiceloop.canary.judge import (
    LEAST_CALLS,
    LEAST_TURNS,
    MARGINS,
    Difference,
    Worse,
    compare,
    judge,
)
from voiceloop.canary.trial import Canary, Trial
from voiceloop.canary.turns import Measure, TurnFigures, Variant, added
from voiceloop.operation import CanarySettings

TRIED = CanarySettings(version="v2", share=0.5)


def feed(
    trial: Trial, version: str, n_calls: int, turns_of_call: int, *figures: TurnFigures
) -> None:
    for number in range(n_calls):
        trial.assign(f"{version} {number}", version)
        for turn in range(turns_of_call):
            trial.observe_turn(f"{version} {number}", figures[turn % len(figures)])


def test_of_200_canaries_that_are_no_different_at_most_5_percent_are_given_up() -> None:
    """Looked at after every turn, and with no margin: by luck alone."""
    n_false = n_given_up(TRIED, 200, 120, seed=0, margins=NO_MARGINS)
    assert n_false <= 10


def test_200_ms_more_are_given_up_within_100_turns() -> None:
    found = sorted(turns_until(replace(TRIED, share=0.2), WORSE["200 ms later"], 40, seed=0))
    assert min(found) >= LEAST_TURNS and found[int(0.95 * len(found)) - 1] <= 100
    assert found[20] <= 60


@pytest.mark.parametrize("name", WORSE)
def test_whatever_a_canary_is_worse_in_it_is_given_up_for(name: str) -> None:
    assert max(turns_until(TRIED, WORSE[name], 3, seed=7)) < 2000


def test_a_canary_within_its_margins_stays() -> None:
    later = replace(PLAIN, gap_ms=PLAIN.gap_ms + 30.0)
    assert not any(SimulatedTrial(TRIED, later, seed).run(400) for seed in range(5))


def test_nothing_is_decided_before_50_turns_nor_of_a_few_calls() -> None:
    good, bad = TurnFigures(gap_ms=250.0), TurnFigures(gap_ms=1250.0)
    trial = Trial(TRIED)
    feed(trial, "v1", 50, 10, good)
    feed(trial, "v2", LEAST_TURNS - 1, 1, bad)
    assert trial.worse is None
    feed(trial, "v2", LEAST_TURNS, 1, bad)
    assert trial.worse is not None and trial.worse.measure is Measure.GAP
    of_few = Trial(TRIED)
    feed(of_few, "v1", 50, 10, good)
    feed(of_few, "v2", LEAST_CALLS - 1, 100, bad)
    assert of_few.worse is None


def test_many_turns_of_few_slow_callers_say_less_than_as_many_of_many() -> None:
    """Calls differ by more than their turns do: what counts is how many calls there were."""
    draw = random.Random(3)
    reach_ms = {}
    for turns_of_call in (1, 20):
        trial = Trial(TRIED, margins=MARGINS | {Measure.GAP: 10_000.0})
        for version in ("v1", "v2"):
            for call in range(400 // turns_of_call):
                trial.assign(f"{version} {call}", version)
                gap_ms = 300.0 + 100.0 * (version == "v2") + draw.gauss(0.0, 80.0)
                for _ in range(turns_of_call):
                    figures = TurnFigures(gap_ms=gap_ms + draw.gauss(0.0, 10.0))
                    trial.observe_turn(f"{version} {call}", figures)
        report = trial.report()
        assert report is not None
        [gap] = [one for one in compare(report.turns) if one.measure is Measure.GAP]
        assert gap.low is not None and gap.high is not None
        reach_ms[turns_of_call] = gap.high - gap.low
    assert reach_ms[20] > 3.0 * reach_ms[1]


def test_the_sums_of_two_servers_are_judged_as_those_of_one() -> None:
    whole, one, other = Trial(), Trial(), Trial()
    for trial in (whole, one, other):
        trial.begin(Canary(4, ("v2",)))
    draw = random.Random(1)
    for number in range(60):
        version = "v2" if number % 3 == 0 else "v1"
        for trial in (whole, one if number % 2 else other):
            trial.assign(f"call {number}", version)
        for _ in range(5):
            figures = TurnFigures(gap_ms=draw.uniform(200, 900), n_tokens=draw.randrange(5, 40))
            for trial in (whole, one if number % 2 else other):
                trial.observe_turn(f"call {number}", figures)
    reports = [trial.report() for trial in (whole, one, other)]
    assert all(report is not None for report in reports)
    alone, *parts = (report.turns for report in reports if report is not None)
    together = added(parts)
    for measure, sums in alone[Variant.CANARY].items():
        found = together[Variant.CANARY][measure]
        assert (found.n_calls, found.n) == (sums.n_calls, sums.n)
        assert found.total_total == pytest.approx(sums.total_total)
    assert str(judge(together)) == str(judge(alone))


def test_why_it_was_given_up_is_told_with_what_was_allowed() -> None:
    later = Worse(Measure.GAP, Difference(180.0, 120.5, 240.0), 50.0)
    assert str(later) == "gap_ms +180 (at least +120, +50 allowed)"
    much = Worse(Measure.GAP, Difference(1200.0, 1030.4, 1500.0), 0.0)
    assert str(much) == "gap_ms +1200 (at least +1030, +0 allowed)"
    short = Worse(Measure.TOKENS, Difference(-12.0, -16.0, -8.0), -6.0)
    assert str(short) == "tokens -12 (at most -8, -6 allowed)"
