"""Which worker takes a new stream."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voiceloop.cluster import pool
from voiceloop.cluster.pool import (
    LOAD_BOUND,
    Member,
    Pins,
    by_prompt,
    less_behind,
    version_of,
)

NAMES = ("one:1", "two:2", "three:3", "four:4")
IDLE = [Member(name) for name in NAMES]


def test_a_prompt_goes_to_the_worker_that_has_read_it() -> None:
    assert len({by_prompt(b"cafe", IDLE).name for _ in range(20)}) == 1


def test_prompts_spread_over_the_workers() -> None:
    chosen = Counter(by_prompt(f"agent {n}".encode(), IDLE).name for n in range(400))
    assert set(chosen) == set(NAMES) and min(chosen.values()) > 60


def test_a_worker_that_goes_moves_its_own_prompts_only() -> None:
    prompts = [f"agent {n}".encode() for n in range(200)]
    before = {prompt: by_prompt(prompt, IDLE).name for prompt in prompts}
    left = [member for member in IDLE if member.name != "two:2"]
    for prompt, name in before.items():
        if name != "two:2":
            assert by_prompt(prompt, left).name == name


@given(st.lists(st.sampled_from([b"cafe", b"bank", b"clinic"]), max_size=120), st.integers(1, 5))
def test_nobody_has_more_than_a_quarter_over_its_share(prompts: list[bytes], n: int) -> None:
    n_calls = dict.fromkeys([f"w{i}" for i in range(n)], 0)
    for prompt in prompts:
        members = [Member(name, count) for name, count in n_calls.items()]
        n_calls[by_prompt(prompt, members).name] += 1
        share = sum(n_calls.values()) / n
        assert max(n_calls.values()) <= max(math.ceil(share), LOAD_BOUND * share)


def test_one_agents_calls_fill_its_worker_first() -> None:
    busy = [Member(name, 8) for name in NAMES]
    first = by_prompt(b"cafe", busy)
    full = [Member(one.name, 12 if one.name == first.name else 8) for one in busy]
    assert by_prompt(b"cafe", full).name != first.name


def stay(pins: Pins, call: str, members: Sequence[Member], **shares: float) -> Member:
    return pins.choose(call, members, shares, partial(by_prompt, b"cafe"), stays=True)


def move(pins: Pins, call: str, members: Sequence[Member], **shares: float) -> Member:
    behind = partial(less_behind, draw=random.Random(0))
    return pins.choose(call, members, shares, behind, stays=False)


def test_a_call_stays_where_it_began_while_that_takes_streams() -> None:
    pins = Pins()
    began = stay(pins, "call", IDLE)
    crowded = [Member(m.name, 100 if m.name == began.name else 0) for m in IDLE]
    assert stay(pins, "call", crowded).name == began.name
    left = [member for member in crowded if member.name != began.name]
    moved = stay(pins, "call", left)
    assert moved.name != began.name
    assert stay(pins, "call", IDLE).name == moved.name  # its history lies there now


def test_calls_of_long_ago_are_forgotten() -> None:
    pins = Pins()
    for n in range(pool.MOST_PINS + 5):
        stay(pins, f"call {n}", IDLE)
    assert len(pins._of_call) == pool.MOST_PINS


OF_TWO = [Member(name, version="old" if n < 2 else "new") for n, name in enumerate(NAMES)]


def test_new_calls_are_divided_among_versions_by_their_shares() -> None:
    shares = {"old": 0.95, "new": 0.05}
    given = Counter(version_of(f"call {n}", shares) for n in range(4000))
    assert 130 <= given["new"] <= 270
    assert given["old"] + given["new"] == 4000
    assert version_of("call", {"old": 0.0, "new": 1.0}) == "new"
    assert version_of("call", {}) is version_of("call", {"old": 0.0}) is None


@given(st.text(), st.dictionaries(st.text(max_size=4), st.floats(0, 1), min_size=1, max_size=4))
def test_a_share_of_nothing_gets_no_call(call: str, shares: dict[str, float]) -> None:
    version = version_of(call, shares)
    assert version is None or shares[version] > 0
    assert version == version_of(call, dict(reversed(shares.items())))  # at every gateway


def test_a_call_keeps_its_version_when_the_shares_change() -> None:
    pins = Pins()
    for asked in (stay, move):
        call = f"call of {asked.__name__}"
        assert asked(pins, call, OF_TWO, old=1.0).version == "old"
        for _ in range(20):
            assert asked(pins, call, OF_TWO, new=1.0).version == "old"
        assert asked(pins, f"{call}, later", OF_TWO, new=1.0).version == "new"


def test_a_call_whose_version_is_gone_goes_on_with_another() -> None:
    pins = Pins()
    began = stay(pins, "call", OF_TWO, old=1.0)
    other = [one for one in OF_TWO if one.version == "old" and one.name != began.name]
    new = [one for one in OF_TWO if one.version == "new"]
    assert stay(pins, "call", [*other, *new], new=1.0).version == "old"  # its worker died
    assert stay(pins, "call", new, old=1.0).version == "new"
    assert stay(pins, "other", new, old=1.0).version == "new"  # a version that is not there


@pytest.mark.parametrize("asked", [stay, move])
def test_the_last_of_a_version_that_is_replaced_does_not_get_all_calls_of_the_others(
    asked: Callable[..., Member],
) -> None:
    pins, streams = Pins(), Counter[str]()
    for n in range(40):
        streams[asked(pins, f"call {n}", [Member("gone", version="old")]).name] += 1
    names = {"last": "old", "a": "new", "b": "new", "c": "new"}
    streams = Counter(dict.fromkeys(names, 0))
    for n in range(40):
        members = [Member(name, streams[name], version=v) for name, v in names.items()]
        streams[asked(pins, f"call {n}", members, old=0.25, new=0.75).name] += 1
    assert 1 <= streams["last"] <= 13  # a quarter over a quarter of forty


def test_a_call_whose_worker_serves_keeps_its_version_however_full() -> None:
    pins = Pins()
    hers = Member("hers", 0, version="old")
    assert move(pins, "call", [hers]).name == "hers"
    members = [replace(hers, n_held=90), Member("other", 1, version="new")]
    assert move(pins, "call", members).version == "old"
    assert stay(pins, "call", members).version == "old"


def test_calls_of_a_version_that_is_tried_keep_it_and_get_no_others() -> None:
    new = [Member("tried", 9, version="new")]
    pins, behind = Pins(), partial(less_behind, draw=random.Random(0))
    pins.choose("hers", new, {}, behind, stays=False)
    pins.choose("his", [Member("gone", version="old")], {}, behind, stays=False)
    members = [*new, Member("last", 90, version="old")]
    assert pins.choose("hers", members, {}, behind, ("new",), stays=False).version == "new"
    assert pins.choose("his", members, {}, behind, ("new",), stays=False).version == "old"


def test_of_two_the_one_that_is_less_behind() -> None:
    late = [Member("late", 1, oldest_s=0.4), Member("soon", 9, oldest_s=0.0)]
    assert {less_behind(late, random.Random(n)).name for n in range(20)} == {"soon"}
    even = [Member("many", 9), Member("few", 1)]
    assert less_behind(even, random.Random(0)).name == "few"
    assert less_behind([Member("alone", 99, 9.0)], random.Random(0)).name == "alone"
