"""How many processes follow from how much of each is used."""

from __future__ import annotations

import pytest

from voiceloop.cluster.control.scaling import (
    TOO_LITTLE_FOR_S,
    TOO_MUCH_FOR_S,
    Scaler,
    headroom,
    n_for,
)

STEP_S = 5.0


class Group:
    """A group under a load, in processes fully used, that follows what the scaler says at once."""

    def __init__(self, least: int = 2, most: int = 10, spare: int = 1) -> None:
        self.scaler = Scaler()
        self.bounds = {"least": least, "most": most, "n_spare": spare}
        self.n = self.scaler.observe([], STEP_S, **self.bounds)

    def run(self, load: float, seconds: float) -> int:
        for _ in range(int(seconds / STEP_S)):
            used = [min(1.0, load / self.n)] * self.n
            self.n = self.scaler.observe(used, STEP_S, **self.bounds)
        return self.n


def test_headroom_is_counted_as_if_the_spare_had_gone() -> None:
    assert headroom([0.5, 0.5], 0) == 0.5
    assert headroom([0.5, 0.5], 1) == 0.0
    assert headroom([0.1, 0.1, 0.1], 1) == pytest.approx(0.85)


def test_a_load_needs_as_many_as_leave_a_quarter_free_and_the_spare() -> None:
    assert n_for(0.0, 1) == 2
    assert n_for(0.75, 1) == 2
    assert n_for(0.76, 1) == 3
    assert n_for(3.0, 0) == 4


def test_a_group_begins_with_its_least() -> None:
    assert Group(least=3).n == 3


def test_the_spare_ones_are_there_before_any_load_as_far_as_there_may_be_so_many() -> None:
    assert Group(least=1, most=4, spare=2).n == 3
    assert Group(least=1, most=2, spare=2).n == 2
    assert Group(least=1, most=1, spare=1).n == 1


def test_too_little_room_for_half_a_minute_brings_what_the_load_needs_at_once() -> None:
    group = Group()
    assert group.run(1.9, TOO_LITTLE_FOR_S - STEP_S) == 2
    assert group.run(1.9, 2 * STEP_S) == n_for(1.9, 1)


def test_a_short_burst_brings_nothing() -> None:
    group = Group()
    group.run(1.9, 20.0)
    group.run(0.2, 10.0)
    assert group.run(1.9, 20.0) == 2


def test_it_never_leaves_its_bounds() -> None:
    group = Group(least=2, most=4)
    assert group.run(50.0, 600.0) == 4
    assert group.run(0.0, 10 * TOO_MUCH_FOR_S) == 2


def test_it_shrinks_by_one_in_ten_minutes() -> None:
    group = Group()
    group.run(4.0, 120.0)
    assert group.n == n_for(4.0, 1) == 7
    assert group.run(0.5, TOO_MUCH_FOR_S + STEP_S) == 6
    assert group.run(0.5, TOO_MUCH_FOR_S) == 5


@pytest.mark.parametrize("load", [0.3, 0.74, 1.0, 1.49, 2.2, 3.0, 5.5])
def test_a_steady_load_has_it_come_to_rest(load: float) -> None:
    group = Group()
    group.run(load, 20 * TOO_MUCH_FOR_S)
    seen = {group.run(load, STEP_S) for _ in range(1000)}
    assert len(seen) == 1


def test_a_directory_that_is_started_anew_takes_nothing_down_at_once() -> None:
    scaler = Scaler(5)
    assert scaler.observe([0.1] * 5, STEP_S, least=2, most=8, n_spare=1) == 5


def test_nobody_to_ask_changes_nothing() -> None:
    group = Group()
    for _ in range(100):
        group.n = group.scaler.observe([], STEP_S, **group.bounds)
    assert group.n == 2
