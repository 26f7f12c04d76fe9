"""What the benchmark of a neighbour's prompts is judged by."""

from __future__ import annotations

import random

import pytest

from benchmarks.prefix_timing import Times, auc, bars_of, prompt_of


def test_the_area_is_half_where_nothing_is_told_and_one_where_all_is() -> None:
    rng = random.Random(1)
    alike = [rng.gauss(100, 10) for _ in range(4000)]
    assert auc(alike[:2000], alike[2000:]) == pytest.approx(0.5, abs=0.02)
    assert auc([1.0, 2.0], [3.0, 4.0]) == 1.0 and auc([3.0], [1.0, 2.0]) == 0.0
    assert auc([1.0, 2.0], [1.0, 2.0]) == 0.5  # ties count as a half


def test_a_cache_that_tenants_share_misses_the_bars_and_so_does_a_blind_benchmark() -> None:
    kept_apart = Times([100.0, 99.0], [99.5, 100.5], [10.0, 11.0], [0, 0])
    assert [bar.holds for bar in bars_of(kept_apart)][2:] == [True, True]
    shared = Times([10.0, 11.0], [100.0, 101.0], [10.0, 11.0], [0, 128])
    assert [bar.holds for bar in bars_of(shared)] == [False, True, True, False]
    blind = Times([100.0, 102.0], [101.0, 101.0], [102.0, 100.0], [0, 0])
    assert [bar.holds for bar in bars_of(blind)] == [True, True, False, True]


def test_no_two_prompts_begin_alike() -> None:
    rng = random.Random(0)
    prompts = [prompt_of(rng, number) for number in range(100)]
    assert len({prompt.split()[0] for prompt in prompts}) == 100
