"""A cluster planned by simulation: ``python -m benchmarks.cluster_sim cell | plan | canary | ...``.

The product's own admission and pool run under a virtual clock, with costs that are fitted
to two measured points of this machine (``fit``, from a result of ``benchmarks.capacity``) or
assumed, for GPUs that nobody has measured (``--costs h200``). ``cell`` runs one cell for an hour,
``check`` holds the fitted costs against a ramp that they were not fitted to, ``plan`` sizes fleets
of 100, 10,000 and 1,000,000 calls at once and runs a cell of each through what may befall it.
``canary`` tells what the judge of a canary lets pass: of one that is no different (with the margins
of the configuration, and with none, which is the hardest to tell), and of some that are worse.
"""

from __future__ import annotations

import json
import logging
import statistics
import sys
import time
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar, bar_table, results, write_results
from benchmarks.simulated.canary import MARGINS, NO_MARGINS, WORSE, n_given_up, turns_until
from benchmarks.simulated.cell import Cell
from benchmarks.simulated.costs import H200, Costs
from benchmarks.simulated.fit import Point, compare, fit
from benchmarks.simulated.plan import (
    CELL_CALLS,
    Scenario,
    fleet_for,
    scenarios,
    size_for,
    traffic_for,
)
from benchmarks.simulated.plots import plot_fleets, plot_recovery
from benchmarks.simulated.report import HOUR_S, Figures, figures, windows
from clients.arguments import number, whole_number
from clients.outputs import writing
from voiceloop.operation import CanarySettings

FLEETS = (100, 10_000, 1_000_000)
PLAN_S = 1200.0  # of each scenario
MOST_APART = 0.15
MOST_CELL_S = 60.0
MOST_FALSE, MOST_TURNS = 0.05, 100.0  # of canaries that are no different; until 200 ms are found
CANARY_SHARE = 0.2  # of the calls of a trial
COSTS_FILE = RESULTS / "cluster_costs.json"


def read_levels(path: Path) -> list[dict[str, Any]]:
    """The levels of a result of `benchmarks.capacity`."""
    return list(json.loads(path.read_text(encoding="utf-8"))["levels"])


def read_costs(name: str) -> Costs:
    """ "h200", or a file that `fit` has written."""
    if name == H200.name:
        return H200
    return msgspec.json.decode(Path(name).read_bytes(), type=Costs)


def run_fit(chosen: Namespace) -> list[Bar]:
    levels = {int(level["n_calls"]): level for level in read_levels(chosen.capacity)}
    few, many = (Point.of_level(levels[n]) for n in chosen.points)
    costs = fit(few, many)
    with writing(COSTS_FILE):
        COSTS_FILE.write_bytes(msgspec.json.format(msgspec.json.encode(costs)))
    print(f"fitted to {few.n_calls} and {many.n_calls} calls: {costs.stages[0]}, {costs.caller}")
    print(f"written: {COSTS_FILE}")
    return []


def run_check(chosen: Namespace) -> list[Bar]:
    found = compare(read_costs(chosen.costs), read_levels(chosen.capacity))
    print("calls  measured p95  simulated  apart   let in: measured  simulated")
    for one in found:
        print(
            f"{one.measured.n_calls:>5}  {one.measured.p95_ms:>12.0f}  {one.found.p95_ms:>9.0f}  "
            f"{100 * one.p95_apart:>4.0f} %  {one.measured.n_let_in:>16}  {one.found.n_let_in:>9}"
        )
    last = found[-1]
    return [Bar("gap p95 of the last level, apart", 100 * last.p95_apart, 100 * MOST_APART, "%")]


def simulate(
    costs: Costs, n_calls: int, seconds: float, scenario: Scenario, seed: int
) -> tuple[Figures, list[tuple[float, float]], float]:
    """The figures, the p95 of each ten seconds, and how long it took."""
    size = size_for(costs, n_calls)
    traffic = traffic_for(costs, n_calls, crowd=scenario.crowd)
    began_s = time.process_time()
    cell = Cell(costs, size, traffic, faults=scenario.faults, seed=seed)
    found = cell.run(seconds)
    took_s = time.process_time() - began_s
    return figures(costs, size, seconds, found, scenario.at_s), windows(found.gaps), took_s


def run_cell(chosen: Namespace) -> list[Bar]:
    costs = read_costs(chosen.costs)
    named = {one.name: one for one in scenarios(costs)}
    if chosen.scenario not in named:
        raise SystemExit(f"expected one of {', '.join(named)}, found {chosen.scenario}")
    seconds, scenario = HOUR_S * chosen.hours, named[chosen.scenario]
    told, _, took_s = simulate(costs, chosen.calls, seconds, scenario, chosen.seed)
    print(json.dumps({**told.to_json(), "took_s": round(took_s, 1)}, indent=1))
    return [Bar("processor time of the simulation", took_s, MOST_CELL_S, "s")]


def run_plan(chosen: Namespace) -> list[Bar]:
    costs = read_costs(chosen.costs)
    fleets = [fleet_for(costs, n) for n in FLEETS]
    print("calls      cells  of calls  gateways  workers                      an hour")
    for fleet in fleets:
        workers = ", ".join(f"{count} {name}" for name, count in fleet.n_workers.items())
        print(
            f"{fleet.n_calls:>9,}  {fleet.n_cells:>5}  {fleet.cell_calls:>8}  "
            f"{fleet.n_gateways:>8}  {workers:<27}  {fleet.price_hour:,.0f}"
        )
    rows, curves = [], {}
    for n_calls in dict.fromkeys(min(n, CELL_CALLS) for n in FLEETS):
        print(
            f"a cell of {n_calls}:  blocked  gap p50/p95/p99  failed  resumed  dropped  hit  back"
        )
        for scenario in scenarios(costs):
            told, curve, _ = simulate(costs, n_calls, PLAN_S, scenario, chosen.seed)
            rows.append({"cell": n_calls, "scenario": scenario.name, **told.to_json()})
            if n_calls == CELL_CALLS:
                curves[scenario.name] = curve
            show(scenario, told)
    data = results(
        "cluster_sim", chosen.seed, {"costs": asdict(costs), "seconds": PLAN_S}, [],
        fleets=[asdict(fleet) for fleet in fleets], scenarios=rows,
    )  # fmt: skip
    path = write_results(data)
    plot_fleets(costs, path.with_name(f"{path.stem}-fleets.png"))
    plot_recovery(curves, path.with_name(f"{path.stem}-recovery.png"))
    print(f"written: {path}, and two plots beside it")
    return []


def show(scenario: Scenario, told: Figures) -> None:
    gaps = "/".join(
        "-" if value is None else f"{value:.0f}"
        for value in (told.gap_p50_ms, told.gap_p95_ms, told.gap_p99_ms)
    )
    back = "-" if told.recovered_s is None else f"{told.recovered_s:.0f} s"
    print(
        f"{scenario.name:<10} {100 * told.blocked_share:>10.2f} %  {gaps:>15}  "
        f"{told.failed_turns:>6}  {told.resumed:>7}  {told.dropped:>7}  "
        f"{100 * told.prefix_hit_share:>3.0f} %  {back}",
        flush=True,
    )


def run_canary(chosen: Namespace) -> list[Bar]:
    logging.getLogger("voiceloop").setLevel(logging.CRITICAL)  # each trial tells of its end
    bars = []
    told = CanarySettings(share=CANARY_SHARE)
    for name, margins in (("its margins", MARGINS), ("no margins", NO_MARGINS)):
        n_false = n_given_up(told, chosen.trials, chosen.turns, chosen.seed, margins)
        title = f"no different, {name}: given up in {chosen.turns} turns"
        share = 100.0 * n_false / chosen.trials
        bars.append(Bar(title, share, 100.0 * MOST_FALSE, "%", n=chosen.trials))
    rows = {}
    for name, canary in WORSE.items():
        found = sorted(turns_until(told, canary, chosen.trials, chosen.seed))
        p95 = float(found[int(0.95 * (len(found) - 1))])
        rows[name] = {"p50": statistics.median(found), "p95": p95}
        print(f"{name:<32} given up after {rows[name]['p50']:.0f} turns (p50), {p95:.0f} (p95)")
    p95 = rows["200 ms later"]["p95"]
    bars.append(Bar("200 ms later: turns, p95", p95, MOST_TURNS, "", n=chosen.trials))
    asked = {"trials": chosen.trials, "turns": chosen.turns}
    print(f"written: {write_results(results('canary', chosen.seed, asked, bars, until=rows))}")
    return bars


def main() -> int:
    command = Benchmark("cluster_sim", __doc__ or "", seed="the calls")
    acts = command.parser.add_subparsers(metavar="WHAT", required=True)
    fitting = acts.add_parser("fit", help="costs from two levels of a result of capacity")
    fitting.add_argument("capacity", type=Path)
    fitting.add_argument("--points", type=int, nargs=2, default=(1, 8), metavar="CALLS")
    fitting.set_defaults(act=run_fit)
    checking = acts.add_parser("check", help="hold fitted costs against another ramp")
    checking.add_argument("capacity", type=Path)
    checking.add_argument("--costs", default=str(COSTS_FILE))
    checking.set_defaults(act=run_check)
    one = acts.add_parser("cell", help="one cell")
    one.add_argument("--calls", type=whole_number(1), default=CELL_CALLS)
    one.add_argument("--hours", type=number("hours", above=0.0), default=1.0)
    one.add_argument("--costs", default=H200.name)
    one.add_argument("--scenario", default="calm")
    one.set_defaults(act=run_cell)
    planning = acts.add_parser("plan", help="fleets, and what may befall a cell of each")
    planning.add_argument("--costs", default=H200.name)
    planning.set_defaults(act=run_plan)
    trying = acts.add_parser("canary", help="trials of canaries, no different and worse")
    trying.add_argument("--trials", type=whole_number(1, 100_000), default=200)
    trying.add_argument("--turns", type=whole_number(50, 1_000_000), default=1000)
    trying.set_defaults(act=run_canary)
    chosen = command.parse()
    logging.getLogger("voiceloop").setLevel(logging.ERROR)  # each gateway tells of each level
    bars: list[Bar] = chosen.act(chosen)
    if bars:
        print(bar_table(bars))
    return command.exit_code(bars)


if __name__ == "__main__":
    sys.exit(run(main))
