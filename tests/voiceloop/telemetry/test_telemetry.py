"""A turn's stages sum exactly, whatever is missing or early."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voiceloop.backends import Usage
from voiceloop.operation import Slo
from voiceloop.telemetry.metrics import Metrics
from voiceloop.telemetry.timeline import STAGES, TurnTimeline, anticipation_facts

MARKS = [mark for mark, _ in STAGES]


@given(st.dictionaries(st.sampled_from(MARKS[1:-1]), st.floats(10.0, 20.0)))
def test_stages_sum_to_the_gap_whatever_was_marked(middle: dict[str, float]) -> None:
    timeline = TurnTimeline("t")
    timeline.mark("speech_end", 10.0)
    timeline.mark("first_byte_on_wire", 20.0)
    for name, at_s in middle.items():
        timeline.mark(name, at_s)
    stages = timeline.stages()
    assert sum(ms for _, ms in stages) == pytest.approx(10_000.0)
    assert timeline.gap_ms == pytest.approx(10_000.0)
    assert all(ms >= 0 and name for name, ms in stages)


def test_what_was_done_ahead_of_the_decision_costs_nothing() -> None:
    timeline = TurnTimeline("t")
    for mark, at_s in [("speech_end", 1.0), ("first_token", 1.1), ("endpoint_decision", 1.3),
                       ("first_byte_on_wire", 1.31)]:  # fmt: skip
        timeline.mark(mark, at_s)
    stages = dict(timeline.stages())
    assert stages["first token"] == 0.0
    assert stages["silence wait"] == pytest.approx(300)


def test_a_mark_is_set_once_and_must_be_known() -> None:
    timeline = TurnTimeline("t")
    timeline.mark("first_token", 1.0)
    timeline.mark("first_token", 2.0)
    assert timeline.marks["first_token"] == 1.0
    with pytest.raises(ValueError, match="found 'other'"):
        timeline.mark("other", 1.0)


def test_a_turn_is_counted_with_its_stages() -> None:
    metrics = Metrics()
    timeline = TurnTimeline("t")
    timeline.mark("speech_end", 1.0)
    timeline.mark("endpoint_decision", 1.4)
    timeline.mark("first_byte_on_wire", 1.5)
    metrics.observe_turn(timeline, "completed")
    sample = metrics.registry.get_sample_value
    assert sample("voiceloop_turns_total", {"outcome": "completed"}) == 1
    assert sample("voiceloop_gap_seconds_sum") == pytest.approx(0.5)
    assert sample("voiceloop_stage_seconds_count", {"stage": "silence wait"}) == 1


def test_what_was_done_ahead_is_told_by_the_names_that_clients_read() -> None:
    usage = Usage(40, 36, 12, 5, 3, n_turn_tokens=9, n_turn_resident=8,
                  n_drafted_tokens=6, n_accepted_tokens=4)  # fmt: skip
    assert anticipation_facts(usage, 31.26, "salvaged") == {
        "draft": "salvaged",
        "n_turn_tokens": 9,
        "n_turn_resident": 8,
        "n_left_to_prefill": 4,
        "n_reply_tokens": 12,
        "n_discarded_tokens": 5,
        "n_unheard_tokens": 3,
        "n_drafted_tokens": 6,
        "n_accepted_tokens": 4,
        "wasted_audio_ms": 31.3,
    }


def timeline_of(gap_s: float, *, decided_s: float = 0.25) -> TurnTimeline:
    timeline = TurnTimeline("t")
    timeline.mark("speech_end", 0.0)
    timeline.mark("endpoint_decision", decided_s)
    timeline.mark("first_byte_on_wire", gap_s)
    return timeline


def test_turns_are_counted_against_what_is_promised() -> None:
    metrics = Metrics(promised=Slo(gap_ms=500))
    metrics.observe_turn(timeline_of(0.4), "completed")
    metrics.observe_turn(timeline_of(0.6), "cancelled")
    metrics.observe_turn(timeline_of(0.4), "failed")
    metrics.observe_turn(TurnTimeline("a greeting"), "completed")
    silent = TurnTimeline("the caller went on")
    silent.mark("speech_end", 0.0)
    metrics.observe_turn(silent, "cancelled")
    counted = {
        outcome: metrics.registry.get_sample_value(
            "voiceloop_promises_total", {"promise": "gap", "outcome": outcome}
        )
        for outcome in ("kept", "late", "failed")
    }
    assert counted == {"kept": 1, "late": 1, "failed": 1}


def test_a_barge_in_is_counted_against_its_promise_once_the_agent_is_silent() -> None:
    metrics = Metrics(promised=Slo(barge_in_ms=200))
    for action, delay_s in (("duck", 0.9), ("hold", 0.15), ("stop", 0.4), ("resume", 0.9)):
        metrics.observe_barge_in(action, delay_s)
    value = metrics.registry.get_sample_value
    labels = {"promise": "barge_in"}
    assert value("voiceloop_promises_total", {**labels, "outcome": "kept"}) == 1
    assert value("voiceloop_promises_total", {**labels, "outcome": "late"}) == 1


def test_the_time_of_an_answer_counts_from_the_decision_and_is_taken_once() -> None:
    metrics = Metrics()
    metrics.observe_turn(timeline_of(2.4, decided_s=2.1), "completed")
    assert metrics.take_answers_s() == [pytest.approx(0.3)]
    assert not metrics.take_answers_s()


def test_guesses_are_counted_by_whether_they_stood() -> None:
    metrics = Metrics()
    metrics.observe_work(Usage(n_drafted_tokens=6, n_accepted_tokens=4), 0.0)
    for fate, n_tokens in (("accepted", 4), ("rejected", 2)):
        name, labels = "voiceloop_draft_tokens_total", {"fate": fate}
        assert metrics.registry.get_sample_value(name, labels) == n_tokens
