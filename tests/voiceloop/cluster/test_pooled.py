"""Which of the workers that are joined a gateway's calls go to, where one version is tried."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from voiceloop.canary.trial import Canary, Trial
from voiceloop.canary.turns import TurnFigures, Variant
from voiceloop.cluster.pooled import PooledWorkers
from voiceloop.cluster.remote_workers import RemoteWorkers
from voiceloop.errors import ConfigError
from voiceloop.operation import CanarySettings, WorkerAddresses
from voiceloop.workers.messages import Heartbeat, Ready


@dataclass
class Joined:
    """A worker that is joined and idle: its client and its connection."""

    name: str
    version: str
    is_alive: bool = True
    is_draining: bool = False
    silence_s: float = 0.0
    n_streams: int = 0
    pulse: Any = field(default_factory=lambda: SimpleNamespace(last=None, n_beats=0))
    waits: Any = field(default_factory=lambda: SimpleNamespace(oldest_s=lambda: 0.0))

    @property
    def connection(self) -> Joined:
        return self

    @property
    def ready(self) -> Ready:
        return Ready((), self.version)


def pools(trial: Trial) -> tuple[PooledWorkers, PooledWorkers]:
    """Engines and voices, three of v1 and one of v2 each."""
    versions = ("v1", "v1", "v1", "v2")
    of_each = ([Joined(f"{role}{n}", v) for n, v in enumerate(versions)] for role in "ev")
    engines, voices = of_each
    return (
        PooledWorkers("engine", engines, trial=trial),  # type: ignore[arg-type]
        PooledWorkers("voice", voices, trial=trial),  # type: ignore[arg-type]
    )


async def versions_of(calls: range, *of_roles: PooledWorkers) -> list[tuple[str, ...]]:
    return [
        tuple([(await pool.current(f"call{n}.stream")).version for pool in of_roles]) for n in calls
    ]


async def test_a_canary_of_the_settings_gets_its_share_of_calls_and_of_these_all_roles() -> None:
    engines, voices = pools(Trial(CanarySettings(version="v2", share=0.25)))
    given = Counter(await versions_of(range(1000), engines, voices))
    assert given.keys() == {("v1", "v1"), ("v2", "v2")}
    assert 200 < given["v2", "v2"] < 300


async def test_once_it_is_given_up_new_calls_go_elsewhere_and_its_own_stay() -> None:
    trial = Trial(CanarySettings(version="v2", share=0.25))
    engines, voices = pools(trial)
    before = await versions_of(range(400), engines, voices)
    for call, (version, _) in enumerate(before):
        gap_ms = 900.0 if version == "v2" else 300.0
        trial.observe_turn(f"call{call}", TurnFigures(gap_ms=gap_ms))
    assert trial.own_share == 0.0
    assert await versions_of(range(400), engines, voices) == before
    assert set(await versions_of(range(400, 800), engines, voices)) == {("v1", "v1")}


async def test_where_only_the_canary_is_left_it_takes_all_calls() -> None:
    alone = Joined("one", "v2")
    trial = Trial(CanarySettings(version="v2", share=0.0))
    pool = PooledWorkers("engine", [alone], trial=trial)  # type: ignore[list-item]
    assert (await pool.current("call.stream")).name == "one"


async def test_calls_are_told_to_the_trial_by_the_version_they_were_given() -> None:
    trial = Trial()
    engines, _ = pools(trial)
    trial.begin(Canary(3, ("v2",)))
    engines.shares = {"v1": 0.0, "v2": 1.0}
    await engines.current("call1.stream")
    engines.shares = {"v1": 1.0, "v2": 0.0}
    await engines.current("call2.stream")
    for call in ("call1", "call2", "unknown"):
        trial.observe_turn(call, TurnFigures())
    report = trial.report()
    assert report is not None and report.turns.keys() == {Variant.CANARY, Variant.BASELINE}


def beat(worker: Joined, n_calls: int) -> None:
    told = Heartbeat(1, 1.0, False, n_streams=n_calls // 2, n_calls=n_calls)
    worker.pulse = SimpleNamespace(last=told, n_beats=worker.pulse.n_beats + 1)


async def test_engines_are_filled_by_calls_and_not_by_the_streams_open_just_now() -> None:
    engines = [Joined(name, "") for name in ("a", "b", "c")]
    pool = PooledWorkers("engine", engines)  # type: ignore[arg-type]
    gone_to = Counter[str]()
    for n in range(200):
        for one in engines:
            beat(one, gone_to[one.name])
        gone_to[(await pool.current(f"call{n}.b1", b"cafe")).name] += 1
    assert max(gone_to.values()) <= 1.25 * 200 / 3


async def test_calls_that_a_heartbeat_could_not_tell_of_yet_are_counted() -> None:
    engines = [Joined(name, "") for name in ("a", "b")]
    pool = PooledWorkers("engine", engines)  # type: ignore[arg-type]
    gone_to = Counter([(await pool.current(f"call{n}.b1", b"cafe")).name for n in range(20)])
    assert max(gone_to.values()) <= 12
    assert len({(await pool.current(f"call3.b{n}", b"cafe")).name for n in range(20)}) == 1
    for one in engines:
        beat(one, gone_to[one.name])
    again = Counter([(await pool.current(f"call{n}.b2", b"cafe")).name for n in range(20)])
    assert again == gone_to


def test_a_canary_without_workers_elsewhere_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"canary\.version: expected workers on the network"):
        RemoteWorkers(WorkerAddresses(), (), trial=Trial(CanarySettings(version="v2")))
