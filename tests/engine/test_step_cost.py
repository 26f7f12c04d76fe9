"""What a step costs is a line through the sizes that were seen."""

import pytest

from engine.step_cost import StepCost
from tests.tables import each_row


def test_nothing_is_known_before_a_step_ran() -> None:
    assert StepCost().rows_within(10.0) is None


def test_the_fixed_part_is_told_from_the_rows() -> None:
    cost = StepCost()
    for rows in (1, 4, 32, 128, 500) * 3:
        cost.observe(rows, 2.5 + 0.02 * rows)
    assert cost.fixed_ms == pytest.approx(2.5)
    assert cost.ms_per_row == pytest.approx(0.02)
    assert cost.rows_within(10.0) == pytest.approx(375, abs=1)
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


@each_row("held_up", [1.5, 3.0, 10.0])
@each_row(("fixed_ms", "ms_per_row"), [(0.0, 0.05), (2.0, 0.04), (6.0, 0.01)])
def test_a_large_step_that_was_held_up_once_does_not_keep_chunks_small(
    fixed_ms: float, ms_per_row: float, held_up: float
) -> None:
    """No step of its size is run while chunks are small, so none tells that it costs less."""
    cost, right = StepCost(), (10.0 - fixed_ms) / ms_per_row
    for rows in (64, 200, 512):
        cost.observe(rows, (fixed_ms + ms_per_row * rows) * (held_up if rows == 512 else 1.0))
    assert (cost.rows_within(10.0) or 0) < 0.9 * right
    for _ in range(2000):
        chunk = min(512, max(64, cost.rows_within(10.0) or 0))
        cost.observe(chunk, fixed_ms + ms_per_row * chunk)
    assert cost.rows_within(10.0) == pytest.approx(right, rel=0.05)


def test_replies_being_spoken_forget_nothing_of_prompts() -> None:
    cost = StepCost()
    for rows in (1, 8, 64, 500):
        cost.observe(rows, 5.0 + 0.01 * rows)
    for _ in range(5000):
        cost.observe(8, 5.1)  # not quite what the others say
    assert cost.rows_within(10.0) == pytest.approx(490, rel=0.05)
