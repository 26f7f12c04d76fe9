"""What a directory does about processes that start, end, fall silent, and are to be replaced."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from tests.voiceloop.cluster.control.scripted_cluster import LOAD_S, ScriptedCluster, group
from voiceloop.canary.trial import Trial, TrialState
from voiceloop.canary.turns import TurnFigures
from voiceloop.cluster.control.directory import PLACE_WAIT_S
from voiceloop.cluster.control.hosts import GONE_S, LOST_S, SETTLE_S, TICK_S
from voiceloop.cluster.control.status import status_of, text_of
from voiceloop.server.cluster_command import wait_for_room


def test_a_cluster_comes_up_and_rests() -> None:
    cluster = ScriptedCluster(group("gateways"), group("engine"), group("voice"))
    cluster.run(30)
    assert [len(cluster.ready(name)) for name in ("gateways", "engine", "voice")] == [2, 2, 2]
    assert status_of(cluster.directory).is_settled
    before = set(cluster.hosts)
    cluster.run(600)
    assert set(cluster.hosts) == before


def test_gateways_are_told_of_workers_that_are_ready_and_of_no_others() -> None:
    cluster = ScriptedCluster(group("gateways"), group("engine"))
    cluster.run(2 * TICK_S)
    assert cluster.directory.worker_list().engine == ()
    cluster.run(30)
    [gateway, _] = [host for host in cluster.hosts.values() if host.start.group.name == "gateways"]
    assert gateway.orders is not None and gateway.orders.workers is not None
    assert gateway.orders.workers.engine == tuple(f"{name}:1" for name in cluster.ready("engine"))
    assert gateway.orders.workers.shares == {}


def test_a_host_that_dies_is_started_anew_and_nothing_is_placed_for_it() -> None:
    cluster = ScriptedCluster(group("engine"))
    cluster.run(30)
    before = set(cluster.hosts)
    cluster.kill(cluster.ready()[0])
    cluster.run(LOAD_S / 2)
    assert len(cluster.directory.worker_list().engine) == 1
    cluster.run(10)
    assert set(cluster.ready()) == before


def test_a_host_that_falls_silent_is_replaced_once_ray_would_have_started_it_anew() -> None:
    cluster = ScriptedCluster(group("engine"))
    cluster.run(30)
    name = cluster.ready()[0]
    cluster.hosts[name].is_silent = True
    cluster.run(LOST_S)
    assert "silent" in text_of(status_of(cluster.directory))
    assert not status_of(cluster.directory).is_settled
    assert len(cluster.directory.worker_list().engine) == 2  # its gateways know better
    cluster.run(GONE_S - LOST_S - 1)
    assert len(cluster.hosts) == 2
    cluster.run(20)
    assert name not in cluster.hosts and len(cluster.ready()) == 2


def test_a_host_that_is_to_drain_and_is_not_there_is_removed() -> None:
    cluster = ScriptedCluster(group("engine"))
    cluster.run(30)
    name = cluster.ready()[0]
    cluster.hosts[name].is_silent = True
    cluster.directory.want([group("engine", "two")], {})
    cluster.run(60)
    assert name not in cluster.hosts and len(cluster.ready(version="two")) == 2


def test_a_host_that_was_given_up_and_speaks_again_is_told_to_drain() -> None:
    cluster = ScriptedCluster(group("engine"))
    cluster.run(30)
    report = cluster.hosts[cluster.ready()[0]].report(cluster.now_s)
    cluster.directory.forget(report.name)
    assert cluster.directory.hear(report).drains


def test_a_machine_that_is_lost_is_made_up_for_on_the_others() -> None:
    cluster = ScriptedCluster(group("engine", least=4, most=4), places={"a": 2, "b": 4})
    cluster.run(30)
    assert {host.node for host in cluster.hosts.values()} == {"a", "b"}
    cluster.lose_node("a")
    cluster.run(30)
    assert len(cluster.ready()) == 4


def test_a_directory_that_is_lost_knows_everything_at_once() -> None:
    cluster = ScriptedCluster(group("gateways"), group("engine"))
    cluster.run(30)
    cluster.directory.want([group("gateways"), group("engine", least=3, most=3)], {"A": "b"})
    cluster.run(90)
    before, generation = set(cluster.hosts), cluster.directory.desired.generation
    assert len(cluster.ready("engine")) == 3
    cluster.lose_directory()
    assert cluster.directory.desired.generation == generation
    assert cluster.directory.desired.environ == {"A": "b"}
    cluster.run(60)
    assert set(cluster.hosts) == before


def test_a_directory_that_has_just_begun_tells_nobody_that_there_are_no_workers() -> None:
    cluster = ScriptedCluster(group("gateways"), group("engine"))
    cluster.run(30)
    cluster.lose_directory()
    first = next(iter(cluster.hosts.values()))
    orders = cluster.directory.hear(first.report(cluster.now_s))
    assert orders.workers is None and not orders.drains


def test_another_version_replaces_one_with_never_fewer_than_are_wanted() -> None:
    cluster = ScriptedCluster(group("engine", least=3, most=3))
    cluster.run(30)
    cluster.directory.want([group("engine", "two", least=3, most=3)], {})
    shares_of_two = []
    for _ in range(400):
        cluster.run(TICK_S)
        assert len(cluster.ready()) >= 3
        shares = cluster.directory.worker_list().shares
        shares_of_two.append(shares.get("engine", {}).get("two", 0.0))
    assert len(cluster.ready(version="two")) == 3 and not cluster.ready(version="one")
    assert max(shares_of_two) < 1.0  # the rest had the old ones, while they took calls
    assert status_of(cluster.directory).is_settled


def test_new_calls_go_to_a_version_before_the_old_one_is_drained() -> None:
    cluster = ScriptedCluster(group("engine"), places={"a": 10, "b": 10})
    cluster.run(30)
    cluster.directory.want([group("engine", "two")], {})
    while not cluster.ready(version="two"):
        cluster.run(TICK_S)
    cluster.run(TICK_S)  # its report
    assert cluster.directory.worker_list().shares["engine"] == {"one": 0.6667, "two": 0.3333}
    cluster.run(SETTLE_S - 3 * TICK_S)
    assert len(cluster.ready(version="one")) == 2


@pytest.mark.parametrize(("n_machines", "n_at_once"), [(3, 1), (12, 3)])
def test_another_version_of_all_groups_starts_on_a_quarter_of_the_machines_at_once(
    n_machines: int, n_at_once: int
) -> None:
    places = {f"m{n}": 10 for n in range(n_machines)}
    groups = [group(name, least=n_machines, most=n_machines) for name in ("engine", "voice")]
    cluster = ScriptedCluster(*groups, places=places)
    cluster.run(30)
    two = [group(one.name, "two", least=n_machines, most=n_machines) for one in groups]
    cluster.directory.want(two, {})
    starting = []
    for _ in range(1000):
        cluster.run(TICK_S)
        hosts = cluster.directory.hosts.values()
        starting.append(sum(not one.is_ready and not one.drains for one in hosts))
    assert max(starting) == n_at_once
    versions = [one.version for one in cluster.directory.hosts.values() if one.is_ready]
    assert versions == 2 * n_machines * ["two"]


def test_a_version_that_loads_for_minutes_starts_no_more_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = ScriptedCluster(group("engine", least=4, most=4), group("voice"))
    cluster.run(30)
    for host in cluster.hosts.values():
        host.placed_s = -1e6
    monkeypatch.setattr("tests.voiceloop.cluster.control.scripted_cluster.LOAD_S", 600.0)
    cluster.directory.want([group("engine", "two", least=4, most=4), group("voice", "two")], {})
    starting: dict[str, list[int]] = {"engine": [], "voice": []}
    for _ in range(1000):
        cluster.run(TICK_S)
        for name, counts in starting.items():
            hosts = [one for one in cluster.directory.hosts.values() if one.group == name]
            counts.append(sum(not one.is_ready and not one.drains for one in hosts))
    assert [max(counts) for counts in starting.values()] == [1, 1]


def test_all_that_are_gone_at_once_are_replaced_at_once() -> None:
    names = ("gateways", "engine", "voice")
    cluster = ScriptedCluster(*map(group, names))
    cluster.run(30)
    for host in cluster.hosts.values():
        host.is_silent = True
    cluster.run(GONE_S + LOAD_S + 2)
    assert [len(cluster.ready(name)) for name in names] == [2, 2, 2]


def test_settings_that_change_are_rolled_out_and_the_same_ones_are_not() -> None:
    cluster = ScriptedCluster(group("engine"))
    cluster.run(30)
    before = set(cluster.hosts)
    cluster.directory.want([group("engine")], {"VOICELOOP_CONTEXT_TOKENS": "2048"})
    cluster.run(90)
    after = set(cluster.hosts)
    assert not before & after and len(cluster.ready()) == 2
    cluster.directory.want([group("engine")], {})  # they stay what they were
    cluster.run(90)
    assert set(cluster.hosts) == after
    assert cluster.directory.try_out([group("engine")], 0.05) == []


def test_a_canary_gets_its_share_of_new_calls_and_replaces_nothing() -> None:
    cluster = ScriptedCluster(group("gateways"), group("engine", least=3, most=3), group("voice"))
    cluster.run(30)
    before = set(cluster.hosts)
    other = [group("gateways", "two"), group("engine", "two", least=3, most=3), group("voice")]
    assert cluster.directory.try_out(other, 0.05) == ["engine"]
    assert cluster.directory.worker_list().shares == {}  # until it is ready
    cluster.run(60)
    assert before < set(cluster.hosts) and len(cluster.hosts) == len(before) + 1
    assert cluster.directory.worker_list().shares == {"engine": {"one": 0.95, "two": 0.05}}
    cluster.kill(cluster.ready("engine")[0])
    cluster.run(30)  # what is lost is replaced by what it was
    assert len(cluster.ready("engine", "one")) == 3
    cluster.lose_directory()
    cluster.run(30)
    assert cluster.directory.worker_list().shares == {"engine": {"one": 0.95, "two": 0.05}}


def test_a_canary_that_another_one_replaces_gets_no_new_calls() -> None:
    cluster = ScriptedCluster(group("engine", least=3, most=3))
    cluster.run(30)
    cluster.directory.try_out([group("engine", "two", least=3, most=3)], 0.05)
    cluster.run(60)
    cluster.directory.try_out([group("engine", "three", least=3, most=3)], 0.05)
    assert cluster.ready("engine-canary", "two")
    assert cluster.directory.worker_list().shares == {"engine": {"one": 1.0}}
    while not cluster.ready("engine-canary", "three"):
        cluster.run(TICK_S)
    cluster.run(TICK_S)  # its report
    assert cluster.ready("engine-canary", "two")
    assert cluster.directory.worker_list().shares == {"engine": {"one": 0.95, "three": 0.05}}


def turns_of_gateways(cluster: ScriptedCluster, n: int, canary_ms: float) -> None:
    """So many calls of each version at each gateway, of a turn each; drawn, and the same again."""
    draw = random.Random(n)
    for host in cluster.hosts.values():
        if host.start.group.name != "gateways":
            continue
        for version, gap_ms in (("one", 300.0), ("two", canary_ms)):
            for number in range(n):
                host.trial.assign(f"{version} {number} of {n}", version)
                figures = TurnFigures(gap_ms=gap_ms + draw.gauss(0.0, 80.0), n_tokens=20)
                host.trial.observe_turn(f"{version} {number} of {n}", figures)


def with_canary() -> ScriptedCluster:
    cluster = ScriptedCluster(group("gateways"), group("engine", least=3, most=3))
    cluster.run(30)
    other = [group("gateways"), group("engine", "two", least=3, most=3)]
    assert cluster.directory.try_out(other, 0.05) == ["engine"]
    cluster.run(30)
    return cluster


def test_a_canary_that_is_worse_is_drained_and_gets_no_new_calls() -> None:
    cluster = with_canary()
    turns_of_gateways(cluster, 24, 500.0)  # of two gateways: 48 turns
    cluster.run(2 * TICK_S)
    assert cluster.given_up == [] and cluster.directory.desired.canary
    status = status_of(cluster.directory)
    assert status.canary is not None and status.canary.state is TrialState.TRYING
    assert "canary two trying" in text_of(status) and "of 48 beside" in text_of(status)
    turns_of_gateways(cluster, 26, 500.0)
    cluster.run(2 * TICK_S)
    [why] = cluster.given_up
    assert why.startswith("gap_ms +2")
    assert cluster.directory.worker_list().shares == {}
    assert not any(cluster.ready("engine-canary"))
    cluster.run(60)
    assert len(cluster.ready("engine", "one")) == 3 and len(cluster.hosts) == 5
    cluster.lose_directory()
    cluster.run(30)
    assert f"canary given up: {why}" in text_of(status_of(cluster.directory))


def test_a_canary_that_is_no_different_stays() -> None:
    cluster = with_canary()
    for n in (25, 50, 100):
        turns_of_gateways(cluster, n, 300.0)
        cluster.run(2 * TICK_S)
    assert cluster.given_up == [] and cluster.ready("engine-canary")


def test_what_a_gateway_that_died_had_counted_still_counts() -> None:
    cluster = with_canary()
    turns_of_gateways(cluster, 20, 500.0)
    cluster.run(2 * TICK_S)
    for host in cluster.hosts.values():
        host.trial, host.pid = Trial(), host.pid + 1
    cluster.run(2 * TICK_S)
    turns_of_gateways(cluster, 6, 500.0)
    cluster.run(2 * TICK_S)
    assert len(cluster.given_up) == 1


def test_a_canary_that_is_tried_again_is_judged_anew() -> None:
    cluster = with_canary()
    turns_of_gateways(cluster, 40, 500.0)
    cluster.run(60)
    assert len(cluster.given_up) == 1
    cluster.directory.try_out([group("engine", "two", least=3, most=3)], 0.05)
    cluster.run(60)
    assert len(cluster.given_up) == 1 and cluster.ready("engine-canary", "two")
    status = status_of(cluster.directory)
    assert status.canary is not None and not status.canary.given_up


def test_who_is_late_for_a_new_directory_is_neither_replaced_nor_left_out() -> None:
    cluster = ScriptedCluster(group("gateways"), group("engine"))
    cluster.run(30)
    before = set(cluster.hosts)
    late = cluster.hosts[cluster.ready("engine")[0]]
    cluster.lose_directory()
    late.is_silent = True
    for _ in range(int((LOST_S - 1) / TICK_S)):
        cluster.run(TICK_S)
        for host in cluster.hosts.values():
            assert host.orders is not None
            assert host.orders.workers is None or len(host.orders.workers.engine) == 2
    late.is_silent = False
    cluster.run(30)
    assert set(cluster.hosts) == before


@pytest.mark.parametrize("version", ["one", "two"])
def test_a_canary_ends_with_either_version(version: str) -> None:
    cluster = ScriptedCluster(group("engine"))
    cluster.run(30)
    cluster.directory.try_out([group("engine", "two")], 0.2)
    cluster.run(30)
    cluster.directory.want([group("engine", version)], {})
    for _ in range(200):
        cluster.run(TICK_S)
        assert len(cluster.ready()) >= 2
    hosts = [host.start.group for host in cluster.hosts.values()]
    assert [(one.name, one.version) for one in hosts] == [("engine", version)] * 2
    assert cluster.directory.worker_list().shares == {}


def test_a_version_that_does_not_start_takes_nothing_of_the_old_one() -> None:
    cluster = ScriptedCluster(group("engine"))
    cluster.run(30)
    cluster.directory.want([group("engine", "two")], {})
    for _ in range(1000):
        cluster.run(TICK_S)
        for host in cluster.hosts.values():
            host.never_ready = host.start.group.version == "two"
    assert len(cluster.ready(version="one")) == 2
    cluster.directory.want([group("engine", "one")], {})  # and back by the same command
    cluster.run(60)
    assert len(cluster.ready(version="one")) == len(cluster.hosts) == 2


def test_going_back_keeps_what_still_runs() -> None:
    cluster = ScriptedCluster(group("engine"))
    cluster.run(30)
    old = set(cluster.hosts)
    cluster.directory.want([group("engine", "two")], {})
    cluster.run(4)
    cluster.directory.want([group("engine", "one")], {})
    cluster.run(60)
    assert set(cluster.hosts) == old


def test_without_room_beside_the_old_ones_they_make_room_one_after_the_other() -> None:
    cluster = ScriptedCluster(group("engine"), places={"a": 2})
    cluster.run(30)
    cluster.directory.want([group("engine", "two")], {})
    cluster.run(PLACE_WAIT_S - 1)
    assert len(cluster.ready(version="one")) == 2
    fewest = 2
    for _ in range(800):
        cluster.run(TICK_S)
        fewest = min(fewest, len(cluster.ready()))
    assert fewest == 1 and len(cluster.ready(version="two")) == 2


def test_the_last_of_a_role_is_not_drained_for_room() -> None:
    cluster = ScriptedCluster(group("engine", least=1, most=1), places={"a": 1})
    cluster.run(30)
    cluster.directory.want([group("engine", "two", least=1, most=1)], {})
    cluster.run(10 * PLACE_WAIT_S)
    assert len(cluster.ready(version="one")) == 1
    status = status_of(cluster.directory)
    assert "waits for room" in text_of(status)
    assert wait_for_room(lambda: status, lambda pause_s: None).startswith(
        "expected room on a machine for engine-"
    )


def test_what_is_rolled_out_where_there_is_room_is_waited_for_until_it_begins() -> None:
    cluster = ScriptedCluster(group("engine"), places={"a": 4})
    cluster.run(30)
    cluster.directory.want([group("engine", "two")], {})
    assert wait_for_room(lambda: status_of(cluster.directory), cluster.run) == ""
    assert any(one.version == "two" for one in status_of(cluster.directory).processes)


def test_a_machine_is_left_once_others_stand_in_for_it() -> None:
    cluster = ScriptedCluster(group("engine"), places={"a": 4, "b": 4})
    cluster.run(30)
    cluster.directory.cordon("a")
    for _ in range(200):
        cluster.run(TICK_S)
        assert len(cluster.ready()) >= 2
    assert {host.node for host in cluster.hosts.values()} == {"b"}
    cluster.directory.cordon("a", False)
    cluster.kill(cluster.ready()[0])
    cluster.run(30)
    assert {host.node for host in cluster.hosts.values()} == {"a", "b"}


def test_the_only_machine_is_left_though_there_is_no_other() -> None:
    cluster = ScriptedCluster(group("engine"))
    cluster.run(30)
    cluster.directory.cordon("a")
    cluster.run(20 * PLACE_WAIT_S)
    assert not cluster.hosts


def test_more_load_brings_more_of_a_group() -> None:
    cluster = ScriptedCluster(group("engine", least=2, most=5))
    cluster.run(30)
    for _ in range(200):
        for host in cluster.hosts.values():
            host.used = min(1.0, 2.2 / max(1, len(cluster.ready())))
        cluster.run(TICK_S)
    assert len(cluster.ready()) == 4  # three for the load with a quarter free, and the spare


def test_who_waits_for_a_worker_says_that_it_is_full() -> None:
    cluster = ScriptedCluster(group("gateways"), group("engine"))
    cluster.run(30)
    [name, _] = cluster.ready("engine")
    gateway = cluster.hosts[cluster.ready("gateways")[0]]
    report = gateway.report(cluster.now_s)
    waits = replace(report.process, queue_age_s={f"{name}:1": 0.25})
    cluster.directory.hear(replace(report, process=waits))
    assert cluster.directory.used(cluster.directory.hosts[name]) == 0.5


def test_a_cluster_that_stops_drains_everything_and_is_down() -> None:
    cluster = ScriptedCluster(group("gateways"), group("engine"), places={"a": 3})
    cluster.run(30)
    cluster.directory.stop()
    cluster.run(10)
    assert not cluster.directory.is_down and cluster.hosts  # calls in progress end
    cluster.run(30)
    assert cluster.directory.is_down and not cluster.hosts


def test_a_group_that_the_plan_no_longer_names_is_drained() -> None:
    cluster = ScriptedCluster(group("engine"), group("voice"))
    cluster.run(30)
    cluster.directory.want([group("engine")], {})
    cluster.run(60)
    assert {host.start.group.name for host in cluster.hosts.values()} == {"engine"}


def test_what_never_gets_ready_does_not_keep_others_from_being_replaced_for_ever() -> None:
    cluster = ScriptedCluster(group("engine"), group("voice"), places={"a": 20})
    cluster.run(30)
    cluster.directory.want([group("engine", "broken"), group("voice", "two")], {})
    for _ in range(int((1320) / TICK_S)):
        cluster.run(TICK_S)
        for host in cluster.hosts.values():
            host.never_ready = host.start.group.version == "broken"
    assert len(cluster.ready("voice", "two")) == len(cluster.ready("engine", "one")) == 2


def test_what_is_taken_away_leaves_where_most_are() -> None:
    cluster = ScriptedCluster(group(least=2, most=3, spare=0), places={"a": 2, "b": 1})
    cluster.directory.want([group(least=3, most=3, spare=0)], {})
    cluster.run(30)
    assert cluster.nodes() == ["a", "a", "b"]
    cluster.directory.want([group(least=2, most=2, spare=0)], {})
    cluster.run(60)
    assert cluster.nodes() == ["a", "b"]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_dies_in_whatever_order_it_comes_to_rest(seed: int) -> None:
    draw = random.Random(seed)
    cluster = ScriptedCluster(
        group("gateways"), group("engine", least=3, most=3), places={"a": 6, "b": 6, "c": 6}
    )
    version = "one"
    for _ in range(40):
        cluster.run(draw.uniform(0.5, 15))
        match draw.randrange(6):
            case 0 if cluster.hosts:
                cluster.kill(draw.choice(sorted(cluster.hosts)))
            case 1:
                cluster.lose_directory()
            case 2:
                version = draw.choice(["one", "two", "three"])
                wanted = [group("gateways"), group("engine", version, least=3, most=3)]
                cluster.directory.want(wanted, {})
            case 3 if cluster.hosts:
                cluster.hosts[draw.choice(sorted(cluster.hosts))].is_silent = True
            case 4:
                cluster.directory.cordon(draw.choice("ab"))
            case 5:
                cluster.directory.cordon(draw.choice("ab"), False)
    cluster.run(1500)
    status = status_of(cluster.directory)
    assert status.is_settled, text_of(status)
    assert len(cluster.ready("gateways")) == 2
    engines = cluster.ready("engine")
    assert len(engines) == 3
    assert {cluster.hosts[name].start.group.version for name in engines} == {
        next(one for one in cluster.directory.desired.groups if one.name == "engine").version
    }
