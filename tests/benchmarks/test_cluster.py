"""What the benchmark of a cluster tells of calls that go on, of loads, of what engines had read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response

from benchmarks.cluster.__main__ import Found, bars_of
from benchmarks.cluster.load import FaultResult, Load
from benchmarks.cluster.spread import prefix_hits
from benchmarks.cluster.text_call import MOST_PLACED_AGAIN, TypedCall
from clients.errors import ConnectionFailed
from clients.resuming import ResumingConnection

RESPONSE = Response(503, "Service Unavailable", Headers())
pytestmark = pytest.mark.virtual_time


def ended(*waits: tuple[float, float], lost: str = "", n_resumed: int = 0) -> TypedCall:
    call = TypedCall("ws://nowhere", "", 1, 0.0)
    call.waits, call.lost, call.n_resumed = list(waits), lost, n_resumed
    return call


async def test_a_fault_is_told_by_its_calls_and_by_how_long_the_cluster_took_to_rest() -> None:
    load = Load("ws://nowhere", 2)
    load.ended = [ended((1.0, 0.2), (2.0, 4.5), n_resumed=1), ended((1.0, 0.1), lost="broke")]
    told = load.result("gateway", 3, rests_s=[2.0, None, 6.0])
    assert (told.calls, told.lost, told.resumed, told.silent_s) == (2, 1, 1, 4.5)
    assert (told.rest_s, told.n_restless, told.why) == ((4.0, 6.0), 1, ("broke",))


@pytest.mark.parametrize("is_answered", [True, False])
async def test_who_is_refused_is_lost_and_whose_server_dies_at_the_door_calls_again(
    monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    n_dialled = 0

    async def opening(url: str, **options: object) -> None:
        nonlocal n_dialled
        n_dialled += 1
        raise ConnectionFailed("no") from (InvalidStatus(RESPONSE) if is_answered else OSError())

    monkeypatch.setattr(ResumingConnection, "open", opening)
    call = await TypedCall("ws://nowhere", "", 1, 0.0).run()
    assert call.lost == "not let in: no"
    assert n_dialled == (1 if is_answered else 1 + MOST_PLACED_AGAIN)


def test_one_engine_for_all_would_have_read_what_another_has(tmp_path: Path) -> None:
    for name, opened in (
        ("engine-1.jsonl", [(1.0, ["a", "ab"]), (3.0, ["a", "ab"])]),
        ("engine-2.jsonl", [(2.0, ["a", "ab"])]),
    ):
        lines = [json.dumps([at_s, "stream", chain]) for at_s, chain in opened]
        (tmp_path / name).write_text("\n".join(lines))
    assert prefix_hits(tmp_path) == (pytest.approx(2 / 6), pytest.approx(4 / 6))


def test_a_run_that_was_cut_short_is_judged_by_what_it_measured() -> None:
    lost = FaultResult("engine", 20, 40, 1, 0, 0, 0.1, 2.0, 60.0)
    bars = bars_of(Found(starts_s=[1.0, 1.5, 1.2], faults=[lost]))
    assert [(bar.name, bar.holds) for bar in bars] == [
        ("a gateway's start", True),
        ("engine: calls lost", False),
        ("engine: silent at most", True),
        ("engine: never at rest again", True),
    ]
