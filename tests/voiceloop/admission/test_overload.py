"""The level rises as load lasts, falls step by step, and never flickers."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voiceloop.admission.overload import (
    BRINGS,
    EASED,
    ENTERED_AFTER_S,
    LEFT_AFTER_S,
    NEVER,
    Level,
    Load,
    Overload,
    called_for,
    causes,
)

TICK_S = 0.25
QUIET, BUSY = Load(), Load(busy=0.85)
STUCK = Load(overdue_s=4.0, second_overdue_s=4.0, busy=1.0)


def run(overload: Overload, load: Load, start_s: float, seconds: float) -> list[Level]:
    """The levels of so many seconds of this load, a tick apart."""
    n_ticks = round(seconds / TICK_S)
    return [overload.observe(load, start_s + TICK_S * (i + 1)) for i in range(n_ticks)]


def test_each_level_is_entered_when_its_load_has_lasted_and_the_cheapest_first() -> None:
    levels = run(Overload(0.0), STUCK, 0.0, 12.0)
    assert levels == sorted(levels) and set(levels) == set(Level)
    for level in list(Level)[1:]:
        first_s = TICK_S * (1 + levels.index(level))
        assert first_s - TICK_S >= ENTERED_AFTER_S[level] - 1e-9
        assert first_s - TICK_S <= ENTERED_AFTER_S[level] + TICK_S


@pytest.mark.parametrize("load", [Load(busy=1.0), Load(overdue_s=9.0)])
def test_a_busy_process_or_one_call_that_waits_alone_sends_no_caller_away(load: Load) -> None:
    assert max(run(Overload(0.0), load, 0.0, 60.0)) is Level.BUSY


def test_the_way_down_is_one_level_at_a_time_and_takes_under_ten_seconds() -> None:
    overload = Overload(0.0)
    run(overload, STUCK, 0.0, 12.0)
    levels = run(overload, QUIET, 12.0, 10.0)
    assert levels[-1] is Level.NORMAL
    assert all(before - after in (0, 1) for before, after in zip(levels, levels[1:], strict=False))


def test_a_load_about_a_bound_does_not_make_it_flicker() -> None:
    overload = Overload(0.0)
    run(overload, BUSY, 0.0, 2.0)
    assert overload.level is Level.BUSY
    just_below = Load(busy=BRINGS["busy"][0] * 0.95)
    above_and_below = [BUSY, just_below] * 100
    levels = [overload.observe(load, 2.0 + TICK_S * i) for i, load in enumerate(above_and_below, 1)]
    assert set(levels) == {Level.BUSY}


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 5), st.floats(0, 1)), max_size=200))
def test_no_sequence_of_loads_climbs_without_cause_or_leaves_early(
    samples: list[tuple[float, float, float]],
) -> None:
    overload, changed_s, level = Overload(0.0), 0.0, Level.NORMAL
    for number, (busy, overdue_s, lag_s) in enumerate(samples, 1):
        late_s = overdue_s, overdue_s / 2
        now_s, load = TICK_S * number, Load(min(1.0, busy), *late_s, lag_s)
        found = overload.observe(load, now_s)
        if found > level:
            assert called_for(load) >= found
        elif found < level:
            assert found == level - 1 and called_for(load, EASED) < level
            assert now_s - changed_s >= min(LEFT_AFTER_S[level], now_s)
        if found is not level:
            level, changed_s = found, now_s


@pytest.mark.parametrize("part", [part.name for part in fields(Load)])
def test_every_part_of_the_load_brings_levels_and_is_named(part: str) -> None:
    bounds = BRINGS[part]
    assert list(bounds) == sorted(bounds)
    for level, bound in zip(list(Level)[1:], bounds, strict=True):
        if bound == NEVER:
            continue
        load = replace(Load(), **{part: bound})
        assert called_for(load) >= level
        assert [part] == [cause.split()[0] for cause in causes(load, level)]
