"""The directory's actor without a Ray around it: what Ray refuses, and what comes too early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tests.voiceloop.cluster.control.scripted_cluster import group
from voiceloop.cluster.control.directory import Placed, Record
from voiceloop.cluster.control.hosts import Machine
from voiceloop.cluster.control.plan import Desired

if TYPE_CHECKING:
    from voiceloop.cluster import ray as control

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'voiceloop[cluster]'")
WANTED = Desired(1, (group("engine"), group("voice")))


@pytest.fixture(scope="module", autouse=True)
def ray_is_imported_here_alone() -> None:
    """Two seconds, which no other test of the process is to wait for."""
    global control
    from voiceloop.cluster import ray as control


class ScriptedRay:
    """Refuses to place engines until it is told otherwise."""

    def __init__(self) -> None:
        self.refuses = True
        self.placed: list[str] = []
        self.addresses = set[str]()
        self.strategies = set[object]()
        self.options_seen: list[dict[str, Any]] = []
        self.records: list[Record] = []

    def options(self, name: str, **options: Any) -> SimpleNamespace:
        if self.refuses and name.startswith("engine"):
            raise ValueError("a resource that there is not")
        assert any(name == host.name for host in self.records[-1].hosts)  # kept before
        self.placed.append(name)
        self.options_seen.append(options)
        self.strategies.add(options["scheduling_strategy"])

        def place(*given: Any) -> None:
            self.addresses.add(given[-1])

        return SimpleNamespace(remote=place)

    def actor(self, name: str, namespace: str) -> SimpleNamespace:
        if name not in self.placed:
            raise ValueError("no such actor")
        return SimpleNamespace(run=SimpleNamespace(remote=lambda: asyncio.Event().wait()))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedRay]:
    place = ScriptedRay()
    monkeypatch.setattr(control, "_host_class", place)
    monkeypatch.setattr(control, "_keep_record", place.records.append)
    monkeypatch.setattr(control.ray, "get_actor", place.actor)
    monkeypatch.setattr(control, "TICK_S", 0.01)
    monkeypatch.setattr(control, "PAUSE_S", 0.02)
    yield place


def begun(monkeypatch: pytest.MonkeyPatch, *, is_anew: bool) -> control._Directory:
    context = SimpleNamespace(was_current_actor_reconstructed=is_anew)
    monkeypatch.setattr(control.ray, "get_runtime_context", lambda: context)
    return control._Directory(WANTED, (), control.LOOPBACK)


async def end(actor: control._Directory) -> None:
    tasks = [*actor._outliving, *([actor._ticking] if actor._ticking is not None else [])]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until_placed(place: ScriptedRay, n_hosts: int) -> None:
    async with asyncio.timeout(10):
        while len(place.placed) < n_hosts:  # noqa: ASYNC110 - it looks by a clock
            await asyncio.sleep(0.01)


async def test_a_process_that_ray_refuses_keeps_none_of_the_others_back(
    monkeypatch: pytest.MonkeyPatch, place: ScriptedRay
) -> None:
    actor = begun(monkeypatch, is_anew=False)
    await actor.begin()
    try:
        await until_placed(place, 2)
        assert all(name.startswith("voice") for name in place.placed)
        place.refuses = False
        await until_placed(place, 4)  # tried again
        assert place.addresses == {control.LOOPBACK}
        assert all(options["max_restarts"] == -1 for options in place.options_seen)
    finally:
        await end(actor)


async def test_ray_chooses_where_and_spreads_them(
    monkeypatch: pytest.MonkeyPatch, place: ScriptedRay
) -> None:
    place.refuses = False
    actor = begun(monkeypatch, is_anew=False)
    await actor.begin()
    try:
        await until_placed(place, 4)
        assert place.strategies == {"SPREAD"}
    finally:
        await end(actor)


async def test_a_head_that_hangs_holds_one_thread_and_no_answer(
    monkeypatch: pytest.MonkeyPatch, place: ScriptedRay
) -> None:
    goes_on, n_looks = threading.Event(), 0

    def hang() -> list[Machine]:
        nonlocal n_looks
        n_looks += 1
        goes_on.wait(10)
        return [Machine("a", "10.0.0.1")]

    monkeypatch.setattr(control, "_machines", hang)
    monkeypatch.setattr(control, "LOOK_S", 0.01)
    actor = begun(monkeypatch, is_anew=False)
    try:
        for _ in range(3):
            assert (await actor.status()).machines == ()
        assert n_looks == 1
        goes_on.set()
        monkeypatch.setattr(control, "LOOK_S", 10.0)
        assert len((await actor.status()).machines) == 1
    finally:
        goes_on.set()
        await end(actor)


async def test_a_directory_that_comes_anew_goes_on_with_what_was_kept(
    monkeypatch: pytest.MonkeyPatch, place: ScriptedRay
) -> None:
    place.refuses = False
    first = begun(monkeypatch, is_anew=False)
    await first.begin()
    await until_placed(place, 4)
    await first.leave("a", True)
    await end(first)
    monkeypatch.setattr(control, "_kept", lambda: place.records[-1])
    again = begun(monkeypatch, is_anew=True)
    await again.begin()
    try:
        assert set(again._directory.hosts) == set(place.placed)
        assert again._directory.desired.cordoned == ("a",)
        await asyncio.sleep(0.1)
        assert len(place.placed) == 4
    finally:
        await end(again)


async def test_what_was_kept_and_is_not_there_is_placed_again(
    monkeypatch: pytest.MonkeyPatch, place: ScriptedRay
) -> None:
    place.refuses = False
    kept = Record(WANTED, (Placed("engine-1", "engine", "one", False, True),))
    monkeypatch.setattr(control, "_kept", lambda: kept)
    actor = begun(monkeypatch, is_anew=True)
    await actor.begin()
    try:
        await until_placed(place, 4)
        assert "engine-1" not in actor._directory.hosts
    finally:
        await end(actor)


def test_a_directory_that_finds_nothing_kept_does_not_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would know nobody, and have them all drain."""
    monkeypatch.setattr(control.internal_kv, "_internal_kv_get", lambda key: None)
    with pytest.raises(control.ClusterError, match="found nothing"):
        begun(monkeypatch, is_anew=True)


def test_what_is_kept_is_read_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[bytes, bytes] = {}
    monkeypatch.setattr(control.internal_kv, "_internal_kv_put", kept.__setitem__)
    monkeypatch.setattr(control.internal_kv, "_internal_kv_get", kept.get)
    record = Record(WANTED, (Placed("engine-1", "engine", "one", True, True),))
    control._keep_record(record)
    assert control._kept() == record
