"""How many calls fit is learnt from what they cost, and from when the gap broke."""

from __future__ import annotations

from dataclasses import dataclass, field

from voiceloop.admission.room import (
    BUSY_MOST,
    COST_PRIOR,
    LEAST_CALLS,
    LEAST_TURNS,
    Room,
    for_new_callers,
)

TICK_S = 0.25
COLD_CALLS = int(BUSY_MOST / COST_PRIOR)
LATE_S = 0.5


@dataclass
class Machine:
    """One worker; a call costs `cost` of it, and answers are late beyond `carries` calls."""

    cost: float = 0.05
    carries: int = 1000
    has_slow_model: bool = False
    room: Room = field(default_factory=lambda: Room(64, LATE_S))
    now_s: float = 0.0

    def serve(self, n_calls: int, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            is_late = n_calls > self.carries or self.has_slow_model
            for _ in range(max(1, n_calls // 4)):  # a call is answered every few seconds
                self.room.observe_answer(self.now_s, 1.2 if is_late else 0.2)
            busy = {"speech": min(1.0, self.cost * n_calls)}
            is_calm = n_calls <= self.carries
            self.room.observe(TICK_S, self.now_s, n_calls, busy, is_calm=is_calm)


def test_what_other_gateways_take_of_shared_workers_is_no_room_and_no_cost_of_ours() -> None:
    alone, beside = Room(64, LATE_S), Room(64, LATE_S)
    for tick in range(1200):
        for room, others in ((alone, 0.0), (beside, 0.45)):
            room.observe(
                TICK_S, TICK_S * tick, 10, {"engine": 0.2}, is_calm=True,
                others_busy={"engine": others},
            )  # fmt: skip
    assert beside.costs == alone.costs
    assert alone.n_calls == int(BUSY_MOST / alone.costs["engine"]) == 35
    assert beside.n_calls == int((BUSY_MOST - 0.45) / alone.costs["engine"]) == 14
    beside.observe(TICK_S, 301.0, 10, {"engine": 0.2}, is_calm=True, others_busy={"engine": 0.9})
    assert beside.n_calls == 11  # what has held, and a little more


def test_a_server_that_has_measured_nothing_takes_a_few_calls() -> None:
    assert Room(64, LATE_S).n_calls == COLD_CALLS
    assert Room(3, LATE_S).n_calls == 3


def test_a_large_cold_machine_is_filled_as_fast_as_its_calls_show_that_they_cost_little() -> None:
    machine = Machine(cost=0.005)
    machine.serve(COLD_CALLS, 3.0)
    assert machine.room.n_calls > 1.5 * COLD_CALLS
    for _ in range(8):
        machine.serve(machine.room.n_calls, 1.0)
    assert machine.room.n_calls == 64


def test_calls_that_cost_little_make_room_until_their_cost_bounds_it() -> None:
    machine = Machine(cost=0.02)
    machine.serve(COLD_CALLS, 120.0)
    assert 33 <= machine.room.n_calls <= 37  # 0.75 / 0.02 = 37


def test_a_calm_machine_takes_four_calls_however_busy_they_keep_it() -> None:
    machine = Machine(cost=0.9)  # what one call costs where much is done ahead
    machine.serve(1, 300.0)
    assert machine.room.n_calls == LEAST_CALLS >= 4


def test_past_its_cost_a_machine_is_filled_step_by_step_while_it_stays_calm() -> None:
    machine, rooms = Machine(cost=0.2, carries=7), []
    for _ in range(3):
        machine.serve(machine.room.n_calls, 10.0)
        rooms.append(machine.room.n_calls)
    assert rooms == [COLD_CALLS - 1, COLD_CALLS - 1, COLD_CALLS - 1] or rooms == sorted(rooms)


def test_quiet_calls_teach_nothing() -> None:
    machine = Machine()
    machine.serve(0, 600.0)
    assert machine.room.n_calls == COLD_CALLS and not machine.room.costs


def test_where_the_gap_breaks_fewer_calls_are_let_in_than_it_broke_at() -> None:
    machine = Machine(cost=0.01, carries=8)
    machine.serve(6, 20.0)
    assert machine.room.n_calls >= 12
    machine.serve(12, 5.0)
    assert machine.room.n_calls <= 10
    for _ in range(40):
        machine.serve(machine.room.n_calls, 10.0)
    assert 7 <= machine.room.n_calls <= 9  # it tries one more now and then, and takes it back


def test_a_model_that_is_always_late_does_not_close_the_door() -> None:
    machine = Machine(cost=0.01, has_slow_model=True)
    machine.serve(4, 120.0)
    assert machine.room.n_calls >= COLD_CALLS


def test_a_few_late_turns_prove_nothing() -> None:
    room = Room(64, LATE_S)
    for number in range(LEAST_TURNS - 1):
        room.observe_answer(float(number) / 10, 3.0)
    room.observe(TICK_S, 1.0, 2, {"speech": 0.9}, is_calm=False)
    assert room.n_calls == LEAST_CALLS


def test_a_tenth_of_the_places_is_for_callers_who_come_back() -> None:
    assert [for_new_callers(n) for n in (1, 9, 10, 64)] == [1, 9, 9, 58]
