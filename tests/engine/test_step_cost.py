"""What a step costs is a line through the sizes that were seen."""

import pytest

from engine.step_cost import StepCost


def test_nothing_is_known_before_a_step_ran() -> None:
    assert StepCost().rows_within(10.0) is None


def test_the_fixed_part_is_told_from_the_rows() -> None:
    cost = StepCost()
    for rows in (1, 4, 32, 128, 500) * 3:
        cost.observe(rows, 2.5 + 0.02 * rows)
    assert cost.fixed_ms == pytest.approx(2.5)
    assert cost.ms_per_row == pytest.approx(0.02)
    assert cost.rows_within(10.0) == 375
    assert cost.rows_within(2.0) == 0


def test_one_size_of_step_tells_of_rows_alone() -> None:
    cost = StepCost()
    for _ in range(5):
        cost.observe(128, 25.6)
    assert (cost.fixed_ms, cost.ms_per_row) == (0.0, pytest.approx(0.2))


def test_sizes_that_tell_no_line_do_not_make_rows_free() -> None:
    cost = StepCost()
    cost.observe(64, 9.0)  # held up by somebody else
    cost.observe(256, 8.0)
    assert cost.rows_within(8.0) == 256
    for _ in range(30):  # and it is forgotten
        cost.observe(64, 2.0)
    assert cost.ms_per_row == pytest.approx((8.0 - 2.0) / 192, rel=0.05)
