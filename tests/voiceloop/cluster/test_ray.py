"""The control of a cluster on a real Ray of two nodes, with processes that hold no models."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from voiceloop.cluster.control.plan import Group, Launch
from voiceloop.cluster.control.status import ProcessStatus, Status, text_of

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'voiceloop[cluster]'"),
    pytest.mark.call(seconds=110),
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]

SCRIPT = Path(__file__).parent / "control" / "scripted_process.py"
PLACE = {"place": 1.0}  # a machine has as many places as it has processes


def group(name: str, version: str) -> Group:
    roles = () if name == "gateways" else (name,)
    launch = Launch(("worker" if roles else "gateway", f"--version={version}"))
    return Group(name, roles, version, 2, 2, 1, launch, PLACE)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    from ray.cluster_utils import Cluster

    from voiceloop.cluster import ray as control

    os.environ.update(control.KEEPS_CHILDREN)
    folder = tmp_path_factory.mktemp("cluster")
    args = {"num_cpus": 1, "resources": {"place": 6}}
    cluster = Cluster(initialize_head=True, head_node_args=args)
    other = cluster.add_node(**args)
    control.join(cluster.address)
    with pytest.raises(control.ClusterError, match="expected a Ray that asks for a token"):
        control.begin((), {}, token=True)
    groups = (group("gateways", "one"), group("engine", "one"))
    control.begin(groups, {}, (), (sys.executable, str(SCRIPT), str(folder)))
    control.test_nodes = (cluster, other)  # type: ignore[attr-defined]
    try:
        yield control
    finally:
        control.leave()
        cluster.shutdown()


def until(control: object, holds: Callable[[Status], bool], seconds: float = 60.0) -> Status:
    ends_s = time.monotonic() + seconds
    while True:
        status: Status = control.status()  # type: ignore[attr-defined]
        if holds(status):
            return status
        assert time.monotonic() < ends_s, text_of(status)
        time.sleep(0.1)


def is_settled(status: Status) -> bool:
    return status.is_settled


def engines(status: Status) -> dict[str, ProcessStatus]:
    return {one.name: one for one in status.processes if one.group == "engine"}


def test_processes_are_placed_over_the_machines(control: object) -> None:
    status = until(control, is_settled)
    assert len(status.processes) == 4
    assert len({one.machine for one in status.processes}) == 2
    assert all(one.pid for one in status.processes)


def test_a_directory_that_is_killed_comes_back_with_all_it_knew(control: object) -> None:
    import ray

    before = until(control, is_settled)
    control.drain(before.machines[0].id, is_left=True)  # type: ignore[attr-defined]
    control.drain(before.machines[0].id, is_left=False)  # type: ignore[attr-defined]
    generation = until(control, is_settled).generation
    directory = ray.get_actor("directory", "voiceloop")
    ray.kill(directory, no_restart=False)
    status = until(
        control,
        lambda now: now.generation == generation and is_settled(now),
    )
    assert {one.pid for one in status.processes} == {one.pid for one in before.processes}


def test_a_process_that_is_killed_is_started_anew_in_its_place(control: object) -> None:
    name, before = next(iter(engines(until(control, is_settled)).items()))
    os.kill(before.pid, signal.SIGKILL)
    until(control, lambda now: engines(now)[name].restarts == 1 and is_settled(now))


def test_a_host_that_is_killed_is_started_anew_by_ray_and_by_no_other(control: object) -> None:
    import ray

    before = engines(until(control, is_settled))
    name = next(iter(before))
    ray.kill(ray.get_actor(name, "voiceloop"), no_restart=False)
    status = until(
        control, lambda now: is_settled(now) and engines(now)[name].pid != before[name].pid
    )
    assert engines(status).keys() == before.keys()


def test_another_version_is_rolled_out_and_nothing_of_the_old_one_stays(control: object) -> None:
    old = engines(until(control, is_settled))
    control.deploy((group("gateways", "one"), group("engine", "two")), {})  # type: ignore[attr-defined]
    status = until(control, lambda now: is_settled(now) and not old.keys() & engines(now).keys())
    assert {one.version for one in engines(status).values()} == {"two"}


def test_a_machine_that_is_lost_is_made_up_for(control: object) -> None:
    cluster, other = control.test_nodes  # type: ignore[attr-defined]
    until(control, is_settled)
    lost = other.node_id
    cluster.remove_node(other, allow_graceful=False)
    status = until(
        control,
        lambda now: is_settled(now) and lost not in {one.machine for one in now.processes},
    )
    assert len(status.processes) == 4


def test_a_machine_that_comes_gets_its_share_of_what_is_rolled_out(control: object) -> None:
    cluster, _ = control.test_nodes  # type: ignore[attr-defined]
    come = cluster.add_node(num_cpus=1, resources={"place": 6}).node_id
    before = {one.name for one in until(control, is_settled).processes}
    control.deploy((group("gateways", "three"), group("engine", "three")), {})  # type: ignore[attr-defined]
    status = until(
        control,
        lambda now: is_settled(now) and not before & {one.name for one in now.processes},
        120.0,
    )
    assert len(status.processes) == 4
    assert come in {one.machine for one in status.processes}


def test_it_is_drained_and_is_down(control: object) -> None:
    pids = [one.pid for one in until(control, is_settled).processes]
    control.stop()  # type: ignore[attr-defined]
    ends_s = time.monotonic() + 60
    while not control.is_down():  # type: ignore[attr-defined]
        assert time.monotonic() < ends_s
        time.sleep(0.1)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
