"""Sampling: exact randomness, the filters, the penalties."""

import numpy as np
import pytest
import torch

from engine.sampler import choose, gumbel_noise, penalize, philox
from engine.types import InvalidRequest, SamplingParams


def draws(logits: torch.Tensor, params: SamplingParams, n_draws: int) -> torch.Tensor:
    tokens = [choose(logits, params, 11, index) for index in range(n_draws)]
    return torch.bincount(torch.tensor(tokens), minlength=len(logits)).double()


def test_philox_gives_the_published_numbers() -> None:
    # Known answers of Random123 for philox4x32-10: counter and key all zeros.
    assert int(philox(0, 0, np.array([0]))[0]) == 0x6627E8D5
    ones = (1 << 32) - 1
    assert philox(1, 0, np.array([0])) != philox(0, 0, np.array([0]))
    assert 0 <= int(philox((1 << 64) - 1, ones, np.array([ones]))[0]) <= ones


def test_noise_depends_on_seed_index_and_token_alone() -> None:
    tokens = np.array([5, 900, 31])
    noise = gumbel_noise(7, 3, tokens)
    assert np.array_equal(noise, gumbel_noise(7, 3, tokens[::-1])[::-1])
    assert not np.array_equal(noise, gumbel_noise(8, 3, tokens))
    assert not np.array_equal(noise, gumbel_noise(7, 4, tokens))


def test_sampled_frequencies_are_the_softmax() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, -30.0])
    n_draws = 3000
    for temperature in (0.7, 1.5):
        expected = (logits.double() / temperature).softmax(0) * n_draws
        found = draws(logits, SamplingParams(temperature=temperature), n_draws)
        chi2 = ((found - expected) ** 2 / expected)[:4].sum()
        assert chi2 < 16.3  # p = 0.001 at 3 degrees of freedom
        assert found[4] == 0


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(temperature=1.0, top_k=2), {0, 1}),
        (SamplingParams(temperature=1.0, top_p=0.6), {0, 1}),
        (SamplingParams(temperature=1.0, top_p=0.4), {0}),
        (SamplingParams(temperature=1.0, top_k=3, top_p=0.95), {0, 1, 2}),
    ],
)
def test_filters_keep_only_the_likeliest(params: SamplingParams, kept: set[int]) -> None:
    logits = torch.tensor([0.45, 0.30, 0.15, 0.10]).log()
    assert set(draws(logits, params, 400).nonzero()[:, 0].tolist()) == kept


def test_temperature_zero_takes_the_first_of_the_best() -> None:
    assert choose(torch.tensor([0.0, 3.0, 3.0]), SamplingParams(), 1, 0) == 1


@pytest.mark.parametrize("temperature", [1e-8, 1e-310])
def test_next_to_no_temperature_is_as_greedy(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_p=0.5)
    assert choose(torch.tensor([0.0, 3.0, 2.999]), params, 1, 0) == 1


def test_penalties_follow_their_definitions() -> None:
    logits = torch.tensor([2.0, -2.0, 1.0, 1.0])
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    found = penalize(logits, params, reply=[1, 1])
    assert found.tolist() == [2.0, -3.0, 1.0, 1.0]
    assert logits.tolist() == [2.0, -2.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "wrong",
    [{"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"stop": ("",)}],
)
def test_parameters_out_of_range_are_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        SamplingParams(**wrong)  # type: ignore[arg-type]
