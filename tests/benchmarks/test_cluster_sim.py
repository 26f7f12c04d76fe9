"""The simulator: a queue's known answers, the product's own doors, and what befalls a cell."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.simulated.calls import Outcome
from benchmarks.simulated.cell import Cell, Size
from benchmarks.simulated.costs import H200, Caller, Costs, Stage, one_machine
from benchmarks.simulated.faults import (
    Crash,
    Deploy,
    DirectoryLost,
    Fault,
    GatewayKilled,
    Gray,
    ZoneLost,
)
from benchmarks.simulated.fit import Point, compare, fit, simulated
from benchmarks.simulated.plan import CELL_CALLS, fleet_for, size_for, traffic_for
from benchmarks.simulated.report import figures, recovered_s
from benchmarks.simulated.traffic import Crowd, Traffic

N_CALLS = 40
CALLER = Caller(call_p50_s=60.0, call_sigma=0.5)
SMALL = replace(H200, caller=CALLER)
SECONDS = 240.0


def run(*faults: Fault, seed: int = 0, n_calls: int = N_CALLS, crowd: bool = False) -> Outcome:
    traffic = traffic_for(SMALL, n_calls)
    if crowd:
        traffic = replace(traffic, crowds=(Crowd(100.0),))
    size = size_for(SMALL, n_calls)
    return Cell(SMALL, size, traffic, faults=faults, seed=seed).run(SECONDS)


def p95_ms(found: Outcome, since_s: float = 0.0) -> float:
    gaps = sorted(gap_s for at_s, gap_s in found.gaps if at_s >= since_s)
    return 1000.0 * gaps[int(0.95 * len(gaps))]


def test_the_same_seed_is_the_same_day() -> None:
    assert run(seed=3).gaps == run(seed=3).gaps
    assert run(seed=3).gaps != run(seed=4).gaps


def test_a_calm_cell_lets_everybody_in_and_carries_what_little_law_says() -> None:
    found = run()
    assert found.n_blocked == found.n_dropped == found.n_failed_turns == 0
    expected = SECONDS * traffic_for(SMALL, N_CALLS).per_s
    assert found.n_offered == pytest.approx(expected, rel=0.25)
    assert 0.6 * N_CALLS < found.most_at_once < 1.8 * N_CALLS
    assert p95_ms(found) < 500.0


def test_a_killed_engine_loses_no_call_and_its_turns_are_done_again() -> None:
    calm, found = run(), run(Crash(100.0, "engine"))
    assert found.n_dropped == found.n_failed_turns == 0
    assert found.n_prefix_asked > calm.n_prefix_asked  # its calls are read anew elsewhere


def test_calls_of_a_killed_gateway_are_resumed_at_others() -> None:
    found = run(GatewayKilled(100.0))
    assert found.n_resumed > 0 and found.n_dropped == 0


def test_where_no_worker_is_left_the_fallback_is_said_and_calls_go_on() -> None:
    found = run(Crash(100.0, "engine", n_workers=99, back_s=20.0))
    assert found.n_failed_turns > 0 and found.n_dropped == 0
    assert p95_ms(found, since_s=160.0) < 500.0


def test_a_lost_zone_costs_no_call() -> None:
    found = run(ZoneLost(100.0, back_s=60.0))
    assert found.n_resumed > 0 and found.n_dropped == 0


def test_a_gray_worker_is_heard() -> None:
    slow = run(Gray(60.0, "speech", times=12.0, lasts_s=180.0))
    assert p95_ms(slow, since_s=70.0) > 1.2 * p95_ms(run(), since_s=70.0)


def test_a_deploy_drops_nothing() -> None:
    found = run(Deploy(60.0, "engine", each_s=20.0, drain_s=40.0))
    assert found.n_dropped == found.n_failed_turns == 0
    assert p95_ms(found) < 1.2 * p95_ms(run())


def test_without_a_directory_a_lost_machine_is_made_up_for_later_and_a_deploy_waits() -> None:
    def n_alive(at_s: float, *faults: Fault) -> int:
        cell = Cell(SMALL, size_for(SMALL, N_CALLS), traffic_for(SMALL, N_CALLS), faults=faults)
        cell.run(at_s)
        return sum(one.is_alive for one in cell.workers["engine"])

    lost = DirectoryLost(99.0, back_s=20.0)
    own, machine = Crash(100.0, "engine"), Crash(100.0, "engine", with_machine=True)
    n_all = n_alive(90.0)
    assert n_alive(103.0, lost, own) == n_alive(103.0, machine) == n_all
    assert n_alive(103.0, lost, machine) == n_alive(118.0, lost, machine) == n_all - 1
    assert n_alive(122.0, lost, machine) == n_all
    deploy = Deploy(100.0, "engine", each_s=1.0, drain_s=40.0)
    assert n_alive(118.0, lost, deploy) == n_all
    assert n_alive(125.0, lost, deploy) > n_all
    found = run(lost, machine, deploy)
    assert found.n_dropped == found.n_failed_turns == 0


def test_a_version_gets_no_more_new_calls_than_it_has_workers_that_live() -> None:
    deploy = Deploy(50.0, "engine", each_s=500.0, drain_s=500.0)
    cell = Cell(SMALL, size_for(SMALL, N_CALLS), traffic_for(SMALL, N_CALLS), faults=(deploy,))
    n_all, seen = len(cell.workers["engine"]), list[dict[str, float]]()

    def look() -> None:
        seen.append(dict(cell.gateways[0].shares))

    def kill() -> None:
        [new] = [one for one in cell.workers["engine"] if one.version]
        cell._kill(new, 10.0)

    for at_s, act in ((55.0, look), (60.0, kill), (61.0, look), (71.0, look)):
        cell.at(at_s, act)
    cell.run(72.0)
    among = {"v2": 1 / n_all, "": 1 - 1 / n_all}
    assert seen == [among, {}, among]


def test_a_crowd_is_refused_at_the_door_and_not_served_badly() -> None:
    found = run(crowd=True)
    assert found.n_blocked > 0
    assert p95_ms(found) < 800.0


def test_what_is_broken_by_load_is_let_in_where_nobody_asks() -> None:
    costs = one_machine(0.2, 0.1, CALLER)
    asked = simulated(costs, 32, 6, admits_by_load=True, repeats=2)
    unasked = simulated(costs, 32, 6, admits_by_load=False, repeats=2)
    assert asked.n_let_in < 32 == unasked.n_let_in
    assert asked.p95_ms < unasked.p95_ms


def test_a_stage_slows_down_by_those_beside_and_by_what_calls_take() -> None:
    stage = Stage("s", lanes=2.0, turn_s=0.1, call_share=0.1)
    assert stage.latency_s(0, 0, 1.0) == stage.latency_s(1, 0, 1.0) == 0.1
    assert stage.latency_s(3, 0, 1.0) == pytest.approx(0.2)
    assert stage.latency_s(1, 10, 1.0) == pytest.approx(0.2)  # half of it is taken
    assert stage.latency_s(0, 0, 0.5) == pytest.approx(0.2)
    assert stage.latency_s(0, 1000, 1.0) == pytest.approx(1.0)  # never nothing
    draw = random.Random(0)
    drawn = [stage.drawn_s(0.1, draw) for _ in range(4000)]
    assert sum(drawn) / len(drawn) == pytest.approx(0.1, rel=0.05)


def test_costs_are_found_again_from_two_points_that_they_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, values in {
        "TURN_S": (0.08, 0.2),
        "CALL_SHARES": (0.05, 0.12),
        "MISSED": (0.04,),
    }.items():
        monkeypatch.setattr(f"benchmarks.simulated.fit.{name}", values)
    monkeypatch.setattr("benchmarks.simulated.fit.STEPS", (1.2,))
    true = one_machine(0.12, 0.1, Caller(missed=0.05))
    few, many = (simulated(true, n, 8, admits_by_load=False) for n in (1, 10))
    levels = [
        {"n_calls": 6, "n_turns": 48, "calls": 6, "gap_ms": {"p50": p.p50_ms, "p95": p.p95_ms}}
        for p in [simulated(true, 6, 8, admits_by_load=False)]
    ]
    [between] = compare(fit(few, many), levels)
    assert between.p95_apart < 0.15


def test_a_level_of_a_ramp_is_a_point() -> None:
    gap = {"p50": 300.0, "p95": 500.0}
    level = {"n_calls": 8, "n_turns": 28, "calls": 7, "gap_ms": gap}
    assert Point.of_level(level) == Point(8, 4, 300.0, 500.0, 7)


def test_calls_come_at_their_rate_and_in_a_crowd() -> None:
    traffic = Traffic(1.0, crowds=(Crowd(1000.0),))
    assert traffic.rate(0.0) == 1.0
    assert traffic.rate(1030.0) > 9.9
    came = list(traffic.arrivals(2000.0, random.Random(0)))
    assert 480 < sum(1000.0 <= at_s < 1060.0 for at_s in came) < 720
    assert len(came) == pytest.approx(2000 + 540, rel=0.1)
    tenants, draw = traffic.tenants(), random.Random(0)
    drawn = Counter(tenants.one(draw) for _ in range(2000))
    assert 0.15 < drawn[b"tenant 0"] / 2000 < 0.3


def test_recovery_is_the_first_of_two_windows_that_are_as_before() -> None:
    def turns(from_s: float, to_s: float, gap_s: float) -> list[tuple[float, float]]:
        n_turns = int(3 * (to_s - from_s))
        return [(from_s + n / 3, gap_s) for n in range(n_turns)]

    gaps = turns(0, 100, 0.3) + turns(100, 130, 0.9) + turns(130, 200, 0.31)
    assert recovered_s(gaps, 100.0) == 40.0
    assert recovered_s(turns(0, 100, 0.3) + turns(100, 200, 0.9), 100.0) is None


@pytest.mark.parametrize("n_calls", [100, 10_000, 1_000_000])
def test_fleets_are_cells_of_a_thousand_with_room_to_lose_some(n_calls: int) -> None:
    fleet = fleet_for(H200, n_calls)
    assert fleet.cell_calls <= CELL_CALLS
    assert fleet.n_cells * fleet.cell_calls >= n_calls
    for name, count in size_for(H200, fleet.cell_calls).n_workers.items():
        assert fleet.n_workers[name] == fleet.n_cells * count


def test_money_is_counted_for_what_was_served() -> None:
    costs: Costs = replace(SMALL, price_hour=3.6)
    size = Size(1, {"speech": 1, "engine": 10})
    found = Outcome(n_offered=110, n_blocked=10, gaps=[(1.0, 0.3)] * 500, most_at_once=50)
    told = figures(costs, size, 100.0, found)
    assert told.cost_per_1000_calls == pytest.approx(10.0)
    assert told.cost_per_1000_turns == pytest.approx(2.0)
    assert told.units_per_1000_calls == 200
