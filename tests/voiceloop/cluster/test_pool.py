"""Which worker takes a new stream."""

from __future__ import annotations

import math
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from voiceloop.cluster import pool
from voiceloop.cluster.pool import LOAD_BOUND, Member, Pins, by_prompt, less_behind

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
    n_streams = dict.fromkeys([f"w{i}" for i in range(n)], 0)
    for prompt in prompts:
        members = [Member(name, count) for name, count in n_streams.items()]
        n_streams[by_prompt(prompt, members).name] += 1
        total = sum(n_streams.values())
        assert max(n_streams.values()) <= math.ceil(LOAD_BOUND * total / n)


def test_one_agents_calls_fill_its_worker_first() -> None:
    busy = [Member(name, 8) for name in NAMES]
    first = by_prompt(b"cafe", busy)
    full = [Member(one.name, 12 if one.name == first.name else 8) for one in busy]
    assert by_prompt(b"cafe", full).name != first.name


def test_a_call_stays_where_it_began_while_that_takes_streams() -> None:
    pins = Pins()
    began = pins.choose("call", b"cafe", IDLE)
    crowded = [Member(m.name, 100 if m.name == began.name else 0) for m in IDLE]
    assert pins.choose("call", b"cafe", crowded).name == began.name
    left = [member for member in crowded if member.name != began.name]
    moved = pins.choose("call", b"cafe", left)
    assert moved.name != began.name
    assert pins.choose("call", b"cafe", IDLE).name == moved.name  # its history lies there now


def test_calls_of_long_ago_are_forgotten() -> None:
    pins = Pins()
    for n in range(pool.MOST_PINS + 5):
        pins.choose(f"call {n}", b"cafe", IDLE)
    assert len(pins._of_call) == pool.MOST_PINS


def test_of_two_the_one_that_is_less_behind() -> None:
    late = [Member("late", 1, oldest_s=0.4), Member("soon", 9, oldest_s=0.0)]
    assert {less_behind(late, random.Random(n)).name for n in range(20)} == {"soon"}
    even = [Member("many", 9), Member("few", 1)]
    assert less_behind(even, random.Random(0)).name == "few"
    assert less_behind([Member("alone", 99, 9.0)], random.Random(0)).name == "alone"
