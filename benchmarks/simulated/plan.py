"""From a number of calls to machines: cells of about a thousand, each with what it may lose."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.simulated.cell import Size
from benchmarks.simulated.costs import Costs
from benchmarks.simulated.faults import (
    COLD_GPU_S,
    Crash,
    Deploy,
    DirectoryLost,
    Fault,
    GatewayKilled,
    Gray,
    ZoneLost,
)
from benchmarks.simulated.traffic import Crowd, Traffic
from voiceloop.admission.room import BUSY_MOST, RESERVED

CELL_CALLS = 1000
SPARE_WORKERS, SPARE_GATEWAYS = 1, 2  # N+1 and N+2
# Of the cells of a million calls so many stand beside, for a region that is lost: one of ten.
SPARE_CELLS = 0.1


def calls_per_worker(costs: Costs) -> dict[str, float]:
    """By stage: how many calls one carries at the share of its time that admission fills."""
    return {
        stage.name: BUSY_MOST
        * stage.lanes
        / (stage.call_share + stage.turn_s / costs.caller.turn_s)
        for stage in costs.stages
    }


def size_for(costs: Costs, n_calls: int) -> Size:
    """A cell of so many calls at once, a tenth of its places left for callers who come back."""
    places = n_calls / (1.0 - RESERVED)
    workers = {
        name: math.ceil(places / each) + SPARE_WORKERS
        for name, each in calls_per_worker(costs).items()
    }
    return Size(math.ceil(places / costs.gateway_calls) + SPARE_GATEWAYS, workers)


def traffic_for(costs: Costs, n_calls: int, *, crowd: bool = False) -> Traffic:
    """So many calls at once on average in the busiest hour (Little's law)."""
    crowds = (Crowd(600.0),) if crowd else ()
    return Traffic(n_calls / costs.caller.mean_call_s, crowds=crowds)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What befalls a cell. at_s: the moment from which its recovery is counted."""

    name: str
    told: str
    faults: tuple[Fault, ...] = ()
    crowd: bool = False
    at_s: float | None = 600.0


def scenarios(costs: Costs) -> list[Scenario]:
    stage, n_s = costs.stages[-1].name, 600.0
    first = costs.stages[0].name
    return [
        Scenario("calm", "nothing", at_s=None),
        Scenario("crowd", "ten times the calls for 60 s", crowd=True),
        Scenario("crash", f"one {stage} killed, back after 2 s", (Crash(n_s, stage),)),
        Scenario("machine", f"one {stage} and its machine, 90 s", (_machine(n_s, stage),)),
        Scenario(
            "directory",
            f"the directory lost in a deploy, and then one {stage} and its machine",
            (Deploy(n_s - 60.0, stage), DirectoryLost(n_s), _machine(n_s + 1.0, stage)),
        ),
        Scenario("gray", f"one {first} three times slow, 300 s", (Gray(n_s, first),)),
        Scenario("gateway", "one gateway killed", (GatewayKilled(n_s),)),
        Scenario("zone", "one zone of three lost for 300 s", (ZoneLost(n_s),)),
        Scenario("deploy", f"every {stage} replaced, one in 30 s", (Deploy(n_s, stage),)),
    ]


def _machine(at_s: float, stage: str) -> Crash:
    return Crash(at_s, stage, back_s=COLD_GPU_S, with_machine=True)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All of it for so many calls at once."""

    n_calls: int
    n_cells: int
    cell_calls: int
    n_gateways: int
    n_workers: dict[str, int]
    price_hour: float


def fleet_for(costs: Costs, n_calls: int) -> Fleet:
    n_cells = math.ceil(n_calls / CELL_CALLS)
    cell_calls = math.ceil(n_calls / n_cells)
    n_all = n_cells + (math.ceil(SPARE_CELLS * n_cells) if n_cells >= 10 else 0)
    size = size_for(costs, cell_calls)
    workers = {name: n_all * count for name, count in size.n_workers.items()}
    price = costs.price_hour * workers[costs.priced]
    return Fleet(n_calls, n_all, cell_calls, n_all * size.n_gateways, workers, price)
