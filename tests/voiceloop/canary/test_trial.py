"""Which calls a trial counts, for which of the two, and who takes a canary's share away."""

from __future__ import annotations

import pytest

from voiceloop.canary import trial as module
from voiceloop.canary.trial import Canary, Trial, TrialState
from voiceloop.canary.turns import Measure, Sums, TurnFigures, Variant
from voiceloop.operation import CanarySettings
from voiceloop.telemetry.metrics import Metrics

OWN = CanarySettings(version="v2", share=0.1)
SLOW, QUICK = TurnFigures(gap_ms=900.0), TurnFigures(gap_ms=300.0)


def sums(trial: Trial, variant: Variant, measure: Measure) -> Sums:
    report = trial.report()
    assert report is not None
    return report.turns.get(variant, {}).get(measure, Sums())


def with_slow_canary(trial: Trial) -> Trial:
    for number in range(60):
        for version, figures in (("v1", QUICK), ("v2", SLOW)):
            trial.assign(f"{version} {number}", version)
            trial.observe_turn(f"{version} {number}", figures)
    return trial


def test_nothing_is_counted_where_nothing_is_tried() -> None:
    trial = with_slow_canary(Trial())
    assert (trial.state, trial.report(), trial.own_share) == (TrialState.NONE, None, None)


def test_a_worse_canary_of_its_own_gets_no_new_call(caplog: pytest.LogCaptureFixture) -> None:
    assert Trial(OWN).own_share == 0.1
    trial = with_slow_canary(Trial(OWN))
    assert (trial.own_share, trial.state) == (0.0, TrialState.GIVEN_UP)
    assert "the canary v2 is given up" in caplog.text and "gap_ms +600" in caplog.text
    assert trial.status().given_up.startswith("gap_ms +600")


def test_a_canary_that_somebody_else_names_is_counted_and_not_judged() -> None:
    trial = Trial()
    trial.begin(Canary(7, ("v2",)))
    with_slow_canary(trial)
    assert (trial.state, trial.own_share) == (TrialState.TRYING, None)
    report = trial.report()
    assert report is not None and report.serial == 7
    assert sums(trial, Variant.CANARY, Measure.GAP).mean == 900.0


def test_another_trial_begins_from_nothing_even_of_the_same_version() -> None:
    trial = Trial()
    trial.begin(Canary(7, ("v2",)))
    with_slow_canary(trial)
    trial.begin(Canary(7, ("v2",)))  # told again, twice a second
    assert sums(trial, Variant.CANARY, Measure.GAP).n == 60
    trial.begin(Canary(8, ("v2",)))
    assert sums(trial, Variant.CANARY, Measure.GAP).n == 0
    trial.begin(None)
    assert trial.state is TrialState.NONE


def test_a_call_that_left_the_canary_counts_as_its_own() -> None:
    trial = Trial(OWN)
    trial.assign("call", "v2")
    trial.observe_turn("call", TurnFigures(has_failed=True))
    trial.assign("call", "v1")
    trial.observe_turn("call", QUICK)
    assert sums(trial, Variant.CANARY, Measure.FAILURES).n == 2
    assert sums(trial, Variant.BASELINE, Measure.FAILURES).n == 0


def test_a_call_whose_engine_alone_is_tried_has_the_canary() -> None:
    trial = Trial(OWN)
    trial.assign("call", "v1")  # its recognizer
    trial.assign("call", "v2")
    trial.observe_turn("call", QUICK)
    assert sums(trial, Variant.CANARY, Measure.GAP).n == 1


def test_one_answer_after_a_minute_counts_as_late_and_not_as_a_minute() -> None:
    trial = Trial(OWN)
    trial.assign("call", "v1")
    trial.observe_turn("call", TurnFigures(gap_ms=60_000.0))
    assert sums(trial, Variant.BASELINE, Measure.GAP).mean == 1000.0


def test_cuts_are_counted_of_turns_and_wrong_calls_of_calls() -> None:
    trial = Trial(OWN)
    trial.assign("call", "v1")
    trial.observe_cut("call")
    for _ in range(4):
        trial.observe_turn("call", TurnFigures(n_tool_calls=2, n_wrong_tool_calls=1))
    assert sums(trial, Variant.BASELINE, Measure.CUT_INS).mean == 0.25
    assert sums(trial, Variant.BASELINE, Measure.TOOL_CALLS).n == 8
    assert sums(trial, Variant.BASELINE, Measure.TOOL_CALLS).mean == 0.5


def test_calls_that_nobody_ends_are_forgotten_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CALLS", 3)
    trial = Trial(OWN)
    for number in range(10):
        trial.assign(f"call {number}", "v1")
    trial.observe_turn("call 0", QUICK)
    trial.observe_turn("call 9", QUICK)
    assert sums(trial, Variant.BASELINE, Measure.GAP).n == 1


def test_both_stand_side_by_side_in_the_metrics() -> None:
    metrics = Metrics(canary=OWN)
    with_slow_canary(metrics.trial)
    sample = metrics.registry.get_sample_value
    assert sample("voiceloop_canary_state", {"state": "given_up"}) == 1
    assert sample("voiceloop_canary_state", {"state": "trying"}) == 0
    for variant, gap_ms in (("baseline", 300.0), ("canary", 900.0)):
        of_gap = {"variant": variant, "measure": "gap_ms"}
        assert sample("voiceloop_canary_mean", of_gap) == gap_ms
        assert sample("voiceloop_canary_turns_total", {"variant": variant}) in (50, 60)
    low = sample("voiceloop_canary_difference", {"measure": "gap_ms", "bound": "low"})
    high = sample("voiceloop_canary_difference", {"measure": "gap_ms", "bound": "high"})
    assert low is not None and high is not None and 50.0 < low < 600.0 < high
