"""A turn's stages sum exactly, whatever is missing or early."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voiceloop.backends import Usage
from voiceloop.operation import Slo
from voiceloop.telemetry.metrics import Metrics
from voiceloop.telemetry.record import STAGES, Endpoint, Mark, Outcome, TurnEnd, TurnRecord, Work

MARKS = [mark for mark, _ in STAGES]


@given(st.dictionaries(st.sampled_from(MARKS[1:-1]), st.floats(10.0, 20.0)))
def test_stages_sum_to_the_gap_whatever_was_marked(middle: dict[Mark, float]) -> None:
    record = TurnRecord("t")
    record.mark(Mark.SPEECH_END, 10.0)
    record.mark(Mark.FIRST_BYTE_ON_WIRE, 20.0)
    for name, at_s in middle.items():
        record.mark(name, at_s)
    stages = record.stages()
    assert sum(ms for _, ms in stages) == pytest.approx(10_000.0)
    assert record.gap_ms == pytest.approx(10_000.0)
    assert all(ms >= 0 and name for name, ms in stages)


def test_a_mark_is_set_once() -> None:
    record = TurnRecord("t")
    record.mark(Mark.FIRST_TOKEN, 1.0)
    record.mark(Mark.FIRST_TOKEN, 2.0)
    assert record.marks[Mark.FIRST_TOKEN] == 1.0


def test_facts_are_told_in_the_order_in_which_they_were_noted() -> None:
    """A client that compares bytes sees no difference between two servers."""
    record = TurnRecord("t")
    record.facts.cut = "soft"
    record.facts.waiting_line = "One moment."
    record.finish(TurnEnd("cancelled"))
    names = list(record.payload())
    assert names[-4:] == ["cut", "waiting_line", "outcome", "anticipation"]


def test_a_turn_is_counted_with_its_stages() -> None:
    metrics = Metrics()
    record = TurnRecord("t")
    record.mark(Mark.SPEECH_END, 1.0)
    record.mark(Mark.ENDPOINT_DECISION, 1.4)
    record.mark(Mark.FIRST_BYTE_ON_WIRE, 1.5)
    record.finish(TurnEnd("completed"))
    metrics.observe_turn(record)
    sample = metrics.registry.get_sample_value
    assert sample("voiceloop_turns_total", {"outcome": "completed"}) == 1
    assert sample("voiceloop_gap_seconds_sum") == pytest.approx(0.5)
    assert sample("voiceloop_stage_seconds_count", {"stage": "silence wait"}) == 1


@pytest.mark.parametrize(
    ("p_end", "p_voice", "judges"),
    [(0.9, 2.0, "words and voice"), (0.9, None, "words"), (None, None, "silence alone")],
)
def test_a_turn_is_counted_by_what_judged_its_end(
    p_end: float | None, p_voice: float | None, judges: str
) -> None:
    metrics = Metrics()
    committed = TurnRecord("by hand")
    committed.facts.endpoint = Endpoint("commit")
    judged = TurnRecord("t")
    judged.facts.endpoint = Endpoint(p_end=p_end, p_voice=p_voice, why="both were sure")
    for record in (committed, judged):
        record.finish(TurnEnd("completed"))
        metrics.observe_turn(record)
    [family] = (one for one in metrics.registry.collect() if one.name == "voiceloop_judged_ends")
    counted = {one.labels["judges"]: one.value for one in family.samples if one.value == 1}
    assert judges in counted and set(counted) == {judges}


def test_what_was_done_ahead_is_told_by_the_names_that_clients_read() -> None:
    usage = Usage(40, 36, 12, 5, 3, n_turn_tokens=9, n_turn_resident=8,
                  n_drafted_tokens=6, n_accepted_tokens=4)  # fmt: skip
    assert msgspec.to_builtins(Work.of(usage, 31.26, "salvaged")) == {
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


def record_of(
    gap_s: float, outcome: Outcome = "completed", *, decided_s: float = 0.25
) -> TurnRecord:
    record = TurnRecord("t")
    record.mark(Mark.SPEECH_END, 0.0)
    record.mark(Mark.ENDPOINT_DECISION, decided_s)
    record.mark(Mark.FIRST_BYTE_ON_WIRE, gap_s)
    record.finish(TurnEnd(outcome))
    return record


def test_turns_are_counted_against_what_is_promised() -> None:
    metrics = Metrics(promised=Slo(gap_ms=500))
    greeting, silent = TurnRecord("a greeting"), TurnRecord("the caller went on")
    greeting.finish(TurnEnd("completed"))
    silent.mark(Mark.SPEECH_END, 0.0)
    silent.finish(TurnEnd("cancelled"))
    turns = (record_of(0.4), record_of(0.6, "cancelled"), record_of(0.4, "failed"))
    for record in (*turns, greeting, silent):
        metrics.observe_turn(record)
    counted = {
        outcome: metrics.registry.get_sample_value(
            "voiceloop_promises_total", {"promise": "gap", "outcome": outcome}
        )
        for outcome in ("kept", "late", "failed")
    }
    assert counted == {"kept": 1, "late": 1, "failed": 1}


def test_a_barge_in_is_counted_against_its_promise_once_the_agent_is_silent() -> None:
    metrics = Metrics()
    for action, delay_s in (("duck", 0.9), ("hold", 0.15), ("stop", 0.4), ("resume", 0.9)):
        metrics.observe_barge_in(action, delay_s)
    value = metrics.registry.get_sample_value
    labels = {"promise": "barge_in"}
    assert value("voiceloop_promises_total", {**labels, "outcome": "kept"}) == 1
    assert value("voiceloop_promises_total", {**labels, "outcome": "late"}) == 1


def test_the_time_of_an_answer_counts_from_the_decision_and_is_taken_once() -> None:
    metrics = Metrics()
    metrics.observe_turn(record_of(2.4, decided_s=2.1))
    assert metrics.take_answers_s() == [pytest.approx(0.3)]
    assert not metrics.take_answers_s()
