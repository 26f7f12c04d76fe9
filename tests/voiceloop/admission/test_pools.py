"""Workers of one role are looked at as one."""

from __future__ import annotations

import pytest

from voiceloop.admission.pools import pools_of
from voiceloop.operation import WorkerLoad


def engine(name: str, **told: object) -> WorkerLoad:
    return WorkerLoad(name, ("engine",), "ready", **told)  # type: ignore[arg-type]


def test_a_pool_is_as_busy_as_its_workers_are_on_average() -> None:
    [pool] = pools_of([engine("one", busy=0.9), engine("two", busy=0.1)])
    assert (pool.name, pool.busy) == ("engine", 0.5)


def test_what_other_gateways_take_is_told_apart_by_streams() -> None:
    shared = engine("one", busy=0.8, n_streams=10, n_streams_of_all=40)
    [pool] = pools_of([shared, engine("two", busy=0.4, n_streams=10, n_streams_of_all=10)])
    assert pool.own_busy == pytest.approx((0.2 + 0.4) / 2)
    assert pool.others_busy == pytest.approx((0.6 + 0.0) / 2)
    [alone] = pools_of([engine("one", busy=0.8, n_streams=3, n_streams_of_all=2)])
    assert (alone.own_busy, alone.others_busy) == (0.8, 0.0)  # its count is a moment old


def test_roles_in_one_process_are_one_pool_and_others_are_their_own() -> None:
    speech = WorkerLoad("speech", ("recognizer", "voice"), "ready", busy=0.5)
    voice = WorkerLoad("voice", ("voice",), "ready", busy=0.1)
    assert [pool.name for pool in pools_of([speech, engine("e")])] == [
        "recognizer and voice",
        "engine",
    ]
    assert {pool.name: pool.busy for pool in pools_of([speech, voice])} == {
        "recognizer": 0.5, "voice": 0.3,
    }  # fmt: skip


def test_kv_is_what_all_of_them_have() -> None:
    full = engine("one", totals={"kv_blocks": 100.0, "kv_blocks_held": 90.0})
    empty = engine("two", totals={"kv_blocks": 300.0, "kv_blocks_held": 10.0})
    [pool] = pools_of([full, empty])
    assert pool.kv_used == 0.25
