"""Merging the server's marks with the client's: stages that add up to the measured gap."""

from __future__ import annotations

import pytest

from clients.report.stage_colors import COLORS
from clients.report.waterfall import REQUIRED_MARKS, STAGES, stage_names, waterfall_of
from clients.report.waterfall_svg import shared_scale_ms, ticks

END, FIRST, AUDIBLE = 100.0, 100.400, 100.420
MARKS = {mark: 100.030 + 0.028 * index for index, (mark, _) in enumerate(STAGES)}


def test_stages_add_up_to_the_gap_and_follow_each_other() -> None:
    waterfall = waterfall_of({"marks": MARKS}, END, FIRST, AUDIBLE)
    assert waterfall is not None
    assert waterfall.total_ms == pytest.approx(420)
    assert waterfall.sum_error_ms == pytest.approx(0, abs=1e-6)
    assert waterfall.missing_marks == ()
    at = 0.0
    for stage in waterfall.stages:
        assert stage.start_ms == pytest.approx(at)
        at += stage.ms
    assert [s.name for s in waterfall.stages][-2:] == ["downlink", "lead-in silence"]


def test_no_stage_is_called_other_and_each_has_its_color() -> None:
    assert "other" not in stage_names()
    assert set(COLORS) == set(stage_names())
    assert len(set(COLORS.values())) == len(COLORS)


def test_what_was_done_before_the_caller_ended_costs_nothing() -> None:
    early = {**MARKS, "speech_end": END - 0.020, "first_token": END - 0.5}
    waterfall = waterfall_of({"marks": early}, END, FIRST, AUDIBLE)
    assert waterfall is not None
    names = [stage.name for stage in waterfall.stages]
    assert "speech tail" not in names
    assert "first token" not in names
    assert waterfall.total_ms == pytest.approx(420)


def test_a_mark_after_the_first_sound_shows_as_an_error() -> None:
    late = {**MARKS, "first_byte_on_wire": AUDIBLE + 0.050}
    waterfall = waterfall_of({"marks": late}, END, FIRST, AUDIBLE)
    assert waterfall is not None
    assert waterfall.sum_error_ms == pytest.approx(50)


def test_a_mark_the_server_left_out_is_named() -> None:
    partial = {mark: at for mark, at in MARKS.items() if mark != "first_token"}
    waterfall = waterfall_of({"marks": partial}, END, FIRST, AUDIBLE)
    assert waterfall is not None
    assert waterfall.missing_marks == ("first_token",)
    assert "first_token" in REQUIRED_MARKS


def test_without_a_timeline_there_is_no_waterfall() -> None:
    assert waterfall_of(None, END, FIRST, AUDIBLE) is None


def test_the_scale_is_round_and_holds_the_longest() -> None:
    waterfall = waterfall_of({"marks": MARKS}, END, FIRST, AUDIBLE)
    assert waterfall is not None
    assert shared_scale_ms([waterfall]) == 450
    assert shared_scale_ms([]) == 100
    for scale in (50.0, 450.0, 1234.0, 30_000.0):
        assert 2 <= len(ticks(scale)) <= 16


def test_of_two_models_each_part_of_the_reply_says_who_made_it() -> None:
    timeline = {
        "marks": MARKS,
        "opener": "Let me look.",
        "speakers": [
            {"model": "big", "part": "large", "reason": "default", "from_char": 0},
            {"model": "", "part": "small", "reason": "failed", "from_char": 34},
        ],
        "draft": {"n_tokens": 12, "n_kept": 9},
    }
    waterfall = waterfall_of(timeline, END, FIRST, AUDIBLE)
    assert waterfall is not None and waterfall.speakers == (
        "opener: Let me look.",
        "large model big: default",
        "small model main from character 34: failed",
        "drafted ahead: 9 of 12 tokens kept",
    )
