"""The directory's actor without a Ray around it: what Ray refuses, and what comes too early."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray", reason="pip install 'voiceloop[cluster]'")

from tests.voiceloop.cluster.control.scripted_cluster import group
from voiceloop.cluster import ray as control
from voiceloop.cluster.control import directory as directories
from voiceloop.cluster.control.machines import Machine
from voiceloop.cluster.control.plan import Desired
from voiceloop.cluster.control.reports import HostReport, HostState, Orders, ProcessReport

WANTED = Desired(1, (group("engine"), group("voice")))


class ScriptedRay:
    """Refuses to place engines until it is told otherwise."""

    def __init__(self) -> None:
        self.refuses = True
        self.placed: list[str] = []
        self.addresses = set[str]()
        self.seen: list[Machine] | None = None
        self.strategies = set[object]()

    def machines(self) -> list[Machine]:
        if self.seen is None:
            raise RuntimeError("no answer")
        return self.seen

    def options(self, name: str, **options: Any) -> SimpleNamespace:
        if self.refuses and name.startswith("engine"):
            raise ValueError("a resource that there is not")
        self.placed.append(name)
        self.strategies.add(getattr(options["scheduling_strategy"], "node_id", "anywhere"))
        run = SimpleNamespace(remote=lambda: asyncio.Event().wait())

        def place(*given: Any) -> SimpleNamespace:
            self.addresses.add(given[-1])
            return SimpleNamespace(run=run)

        return SimpleNamespace(remote=place)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedRay]:
    place = ScriptedRay()
    monkeypatch.setattr(control, "_host_class", place)
    monkeypatch.setattr(control, "_machines", place.machines)
    monkeypatch.setattr(control, "TICK_S", 0.01)
    monkeypatch.setattr(control, "LOOK_S", 0.01)
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
    finally:
        await end(actor)


async def test_processes_are_placed_on_machines_that_ray_has_told_of(
    monkeypatch: pytest.MonkeyPatch, place: ScriptedRay
) -> None:
    place.refuses = False
    actor = begun(monkeypatch, is_anew=False)
    try:
        place.seen = [Machine(id * 28, id, free={"CPU": 2.0}) for id in ("aa", "bb")]
        actor._directory.see(place.seen, monotonic())
        await actor.begin()
        await until_placed(place, 4)
        assert place.strategies == {"aa" * 28, "bb" * 28}
    finally:
        await end(actor)


async def test_without_a_word_of_machines_ray_chooses_where(
    monkeypatch: pytest.MonkeyPatch, place: ScriptedRay
) -> None:
    place.refuses = False
    actor = begun(monkeypatch, is_anew=False)
    await actor.begin()
    try:
        await until_placed(place, 4)
        assert place.strategies == {"anywhere"}
    finally:
        await end(actor)


async def test_a_command_waits_until_a_new_directory_knows_what_was_wanted(
    monkeypatch: pytest.MonkeyPatch, place: ScriptedRay
) -> None:
    monkeypatch.setattr(directories, "LOST_S", 0.3)
    actor = begun(monkeypatch, is_anew=True)
    leaving = asyncio.create_task(actor.leave("a", True))
    known = Desired(7, WANTED.groups, environ={"A": "b"})
    said = ProcessReport("ready", "engine-1:1")
    report = HostReport("engine-1", "engine", "one", "b", HostState.READY, said, 7, desired=known)
    try:
        await asyncio.sleep(0)
        await actor.report(report)
        async with asyncio.timeout(10):
            orders = Orders(7)
            while orders.desired is None:
                await asyncio.sleep(0.01)
                orders = await actor.report(report)
            assert not actor._directory.is_rebuilding(monotonic())
            assert not leaving.done()  # no host has heard of it
            assert (orders.desired.generation, orders.desired.cordoned) == (8, ("a",))
            assert orders.desired.environ == {"A": "b"}
            told = HostReport("engine-1", "engine", "one", "b", HostState.READY, said, 8)
            await actor.report(told)
            await leaving
    finally:
        await end(actor)
