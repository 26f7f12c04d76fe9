"""Where a directory places processes, and how a group that lies unevenly is evened out."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.voiceloop.cluster.control.scripted_cluster import DRAIN_S, ScriptedCluster, group
from voiceloop.cluster.control.directory import READY_WITHIN_S, RETRY_S, STEADY_S
from voiceloop.cluster.control.hosts import TICK_S, Machine
from voiceloop.cluster.control.plan import Group
from voiceloop.cluster.control.status import status_of, text_of


def three_machines() -> ScriptedCluster:
    cluster = ScriptedCluster(
        group("gateways", least=4, most=4),
        group("engine", least=3, most=3),
        group("voice"),
        places={"a": 32, "b": 32, "c": 32},
    )
    cluster.run(60)
    return cluster


def groups_of(cluster: ScriptedCluster) -> list[Group]:
    return [host.start.group for host in cluster.hosts.values()]


def is_settled(cluster: ScriptedCluster) -> bool:
    return status_of(cluster.directory).is_settled


def crowded(n: int = 2, **places: int) -> ScriptedCluster:
    """So many engines on one machine, and then others that are empty."""
    cluster = ScriptedCluster(group(least=n, most=n), places={"a": 10})
    cluster.run(30)
    cluster.places.update(places)
    return cluster


def test_each_group_lies_evenly_over_the_machines() -> None:
    cluster = three_machines()
    assert cluster.nodes("gateways") in (
        ["a", "a", "b", "c"],
        ["a", "b", "b", "c"],
        ["a", "b", "c", "c"],
    )
    assert cluster.nodes("engine") == ["a", "b", "c"]
    assert len(set(cluster.nodes("voice"))) == 2
    assert cluster.moves == []


def test_machines_that_are_lost_one_after_the_other_take_no_role_whole() -> None:
    cluster, draw = three_machines(), random.Random(0)
    for serial in range(20):
        node = draw.choice(sorted(cluster.places))
        cluster.lose_node(node)
        for name in ("gateways", "engine", "voice"):
            assert cluster.ready(name), f"loss {serial} of {node}"
        cluster.run(2.0)
        cluster.places[f"n{serial}"] = 32
        cluster.run(13.0)
        for _ in range(180):
            cluster.run(TICK_S)
            if is_settled(cluster):
                break
        assert is_settled(cluster), text_of(status_of(cluster.directory))
        assert len(set(cluster.nodes("engine"))) == 3


def test_a_machine_that_lost_one_of_its_processes_and_is_heard_is_used_again() -> None:
    cluster = three_machines()
    [name] = [one for one in cluster.ready("engine") if cluster.hosts[one].node == "a"]
    cluster.kill(name)
    cluster.run(60)
    assert cluster.nodes("engine") == ["a", "b", "c"] and cluster.moves == []


def test_room_is_taken_by_what_was_placed_and_is_not_heard_yet() -> None:
    cluster = ScriptedCluster(group(least=3, most=3), places={"a": 1, "b": 9})
    cluster.run(TICK_S)
    assert [host.start.machine for host in cluster.hosts.values()] == ["a", "b", "b"]


def test_a_group_on_one_machine_moves_to_an_empty_one_by_itself() -> None:
    cluster = crowded(b=10)
    cluster.run(STEADY_S - 1)
    assert cluster.nodes() == ["a", "a"] and not is_settled(cluster)
    assert "one is to move to an emptier machine" in text_of(status_of(cluster.directory))
    for _ in range(200):
        cluster.run(TICK_S)
        assert len(cluster.ready()) >= 2
    assert cluster.nodes() == ["a", "b"] and is_settled(cluster)
    assert len(cluster.moves) == 1


def test_one_moves_at_a_time_and_the_next_not_at_once() -> None:
    cluster = crowded(6, b=10, c=10)
    for _ in range(600):
        cluster.run(TICK_S)
        on_their_way = [one for one in cluster.hosts.values() if one.drained_s is not None]
        assert len(cluster.hosts) - len(on_their_way) <= 7 and len(on_their_way) <= 1
        assert len(cluster.ready()) >= 6
    assert cluster.nodes() == ["a", "a", "b", "b", "c", "c"]
    began_s = [at_s for at_s, _ in cluster.moves]
    assert len(began_s) == 4
    apart_s = [later - before for before, later in zip(began_s, began_s[1:], strict=False)]
    assert min(apart_s) >= DRAIN_S


def test_groups_move_one_after_the_other() -> None:
    cluster = ScriptedCluster(group("engine"), group("voice"), places={"a": 10})
    cluster.run(30)
    cluster.places["b"] = 10
    cluster.run(STEADY_S + 5)
    assert len(cluster.moves) == 1
    cluster.run(60)
    [(first_s, _), (second_s, _)] = cluster.moves
    assert second_s - first_s >= DRAIN_S
    assert cluster.nodes("engine") == cluster.nodes("voice") == ["a", "b"]


def test_nothing_moves_to_a_machine_without_room_or_one_that_is_left() -> None:
    cluster = crowded(b=0)
    cluster.directory.cordon("c")
    cluster.places["c"] = 10
    cluster.run(300)
    assert cluster.moves == [] and is_settled(cluster)


def test_room_counts_in_everything_that_a_process_takes() -> None:
    wanted = replace(group(), needs={"CPU": 1.0, "GPU": 1.0})
    cluster = ScriptedCluster(wanted, places={"a": 10, "b": 10})  # no machine tells of a GPU
    cluster.run(TICK_S)
    assert [host.start.machine for host in cluster.hosts.values()] == ["", ""]


def test_a_machine_that_comes_and_goes_gets_nothing_of_what_runs_elsewhere() -> None:
    cluster = crowded()
    for _ in range(20):
        cluster.places["b"] = 10
        cluster.run(STEADY_S - 2)
        del cluster.places["b"]
        cluster.run(2)
    assert cluster.moves == []


def test_a_machine_that_goes_in_a_move_costs_nothing() -> None:
    cluster = crowded(b=10)
    cluster.run(STEADY_S + 2)
    assert len(cluster.moves) == 1
    cluster.lose_node("b")
    for _ in range(120):
        cluster.run(TICK_S)
        assert len(cluster.ready()) >= 2
    assert cluster.nodes() == ["a", "a"] and is_settled(cluster)


def test_a_crowded_machine_that_goes_in_a_move_is_made_up_for_beside_the_new_one() -> None:
    cluster = crowded(3, b=10, c=10)
    cluster.run(STEADY_S + 2)
    cluster.lose_node("a")
    cluster.run(120)
    assert cluster.nodes() in (["b", "b", "c"], ["b", "c", "c"]) and len(cluster.ready()) == 3


def test_a_process_that_does_not_get_ready_in_its_new_place_takes_nothing_of_the_old_one() -> None:
    cluster = crowded(b=10)
    for _ in range(int((STEADY_S + READY_WITHIN_S + 60) / TICK_S)):
        cluster.run(TICK_S)
        for host in cluster.hosts.values():
            host.never_ready = host.node == "b"
        assert len(cluster.ready()) == 2
    assert len(cluster.moves) == 1
    assert cluster.nodes() == ["a", "a"] and is_settled(cluster)
    cluster.run(RETRY_S)
    assert len(cluster.moves) == 2  # and once more, later


def test_a_process_that_finds_no_room_in_its_new_place_is_not_started_over_and_over() -> None:
    """As where of two GPUs half of each is free, which is told as one."""
    cluster = crowded(b=0)
    there = [Machine("a", "a", free={"CPU": 8.0}), Machine("b", "b", free={"CPU": 1.0})]
    cluster.machines = lambda: there  # type: ignore[method-assign]
    cluster.run(STEADY_S + READY_WITHIN_S + 60)
    assert len(cluster.moves) == 1
    assert cluster.nodes() == ["a", "a"] and is_settled(cluster)
    cluster.run(RETRY_S)
    assert len(cluster.moves) == 2


def test_nothing_moves_while_a_process_of_any_group_is_being_replaced() -> None:
    cluster = ScriptedCluster(group("engine"), group("voice"), places={"a": 10})
    cluster.run(30)
    cluster.directory.want([group("engine", version="two"), group("voice")], {})
    cluster.run(4)
    cluster.places["b"] = 10
    while any((group.name, group.version) == ("engine", "one") for group in groups_of(cluster)):
        assert cluster.moves == []
        cluster.run(TICK_S)
    cluster.run(120)
    assert cluster.nodes("engine") == cluster.nodes("voice") == ["a", "b"]


def test_what_never_gets_ready_does_not_keep_others_from_being_replaced_for_ever() -> None:
    cluster = ScriptedCluster(group("engine"), group("voice"), places={"a": 20})
    cluster.run(30)
    cluster.directory.want([group("engine", "broken"), group("voice", "two")], {})
    for _ in range(int((2 * READY_WITHIN_S + 120) / TICK_S)):
        cluster.run(TICK_S)
        for host in cluster.hosts.values():
            host.never_ready = host.start.group.version == "broken"
    assert len(cluster.ready("voice", "two")) == len(cluster.ready("engine", "one")) == 2


def test_another_version_in_the_middle_of_a_move_comes_to_rest_evenly() -> None:
    cluster = crowded(b=10)
    cluster.run(STEADY_S + 2)
    cluster.directory.want([group(version="two")], {})
    for _ in range(240):
        cluster.run(TICK_S)
        assert len(cluster.ready()) >= 2
    assert len(cluster.ready(version="two")) == 2 == len(cluster.hosts)
    assert cluster.nodes() == ["a", "b"] and is_settled(cluster)


def test_a_directory_that_is_lost_in_a_move_leaves_as_many_as_are_wanted() -> None:
    cluster = crowded(b=10)
    cluster.run(STEADY_S + 2)
    cluster.lose_directory()
    for _ in range(240):
        cluster.run(TICK_S)
        assert len(cluster.ready()) >= 2
    assert cluster.nodes() == ["a", "b"] and is_settled(cluster)


def test_what_is_taken_away_leaves_where_most_are() -> None:
    cluster = ScriptedCluster(group(least=2, most=3, spare=0), places={"a": 2, "b": 1})
    cluster.directory.want([group(least=3, most=3, spare=0)], {})
    cluster.run(30)
    assert cluster.nodes() == ["a", "a", "b"]
    cluster.directory.want([group(least=2, most=2, spare=0)], {})
    cluster.run(60)
    assert cluster.nodes() == ["a", "b"]
