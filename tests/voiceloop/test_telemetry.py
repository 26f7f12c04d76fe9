"""A turn's stages sum exactly, whatever is missing or early."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voiceloop.backends import Usage
from voiceloop.telemetry import STAGES, Metrics, TurnTimeline, anticipation_facts, probe_loop_lag

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


@pytest.mark.virtual_time
async def test_the_loop_lag_is_measured(clock: Callable[[], float]) -> None:
    import asyncio

    metrics = Metrics()
    task = asyncio.create_task(probe_loop_lag(metrics, clock))
    await asyncio.sleep(1.05)
    task.cancel()
    await asyncio.wait([task])
    assert metrics.registry.get_sample_value("voiceloop_loop_lag_seconds_count") == 10


def test_what_was_done_ahead_is_told_by_the_names_that_clients_read() -> None:
    usage = Usage(40, 36, 12, 5, 3, n_turn_tokens=9, n_turn_resident=8)
    assert anticipation_facts(usage, 31.26, "salvaged") == {
        "draft": "salvaged",
        "n_turn_tokens": 9,
        "n_turn_resident": 8,
        "n_left_to_prefill": 4,
        "n_reply_tokens": 12,
        "n_discarded_tokens": 5,
        "n_unheard_tokens": 3,
        "wasted_audio_ms": 31.3,
    }
