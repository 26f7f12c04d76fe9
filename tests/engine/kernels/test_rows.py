"""Kernels that work on one row at a time: norm, gate, sampling, verification."""

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from engine.kernels import probability as chances  # noqa: E402
from engine.kernels import sample as sampling  # noqa: E402
from engine.kernels.attention import Rows  # noqa: E402
from engine.kernels.norm import add_norm, add_norm_reference  # noqa: E402
from engine.kernels.place_rows import place_rows, place_rows_reference  # noqa: E402
from engine.kernels.sample import Draws, SampleSpace, sample, sample_reference  # noqa: E402
from engine.kernels.silu_mul import silu_mul, silu_mul_reference  # noqa: E402
from engine.kernels.verify import verify, verify_reference  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("n_splits", [0, 1, 3])
def test_norm_adds_all_partial_sums(n_splits: int) -> None:
    torch.manual_seed(0)
    residual, weight = torch.randn(3, 70, device=DEVICE), torch.randn(70, device=DEVICE)
    delta = torch.randn(n_splits, 3, 70, device=DEVICE) if n_splits else None
    results = []
    for norm in (add_norm, add_norm_reference):
        x, out = residual.clone(), torch.full((3, 70), torch.nan, device=DEVICE)
        norm(x, delta, weight, 1e-5, out)
        results.append((x, out))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-5)


def test_gate_adds_all_partial_sums() -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(2, 3, 140, device=DEVICE)
    found = torch.full((3, 70), torch.nan, device=DEVICE)
    expected = found.clone()
    silu_mul(gate_up, found)
    silu_mul_reference(gate_up, expected)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def _draws(rows: list[tuple[float, int, float]]) -> Draws:
    temperature, top_k, top_p = zip(*rows, strict=True)
    return Draws(
        torch.tensor(temperature, dtype=torch.float64, device=DEVICE),
        torch.tensor(top_k, dtype=torch.int32, device=DEVICE),
        torch.tensor(top_p, dtype=torch.float64, device=DEVICE),
        torch.randint(-(2**62), 2**62, (len(rows),), device=DEVICE),
        torch.randint(0, 5000, (len(rows),), dtype=torch.int32, device=DEVICE),
    )


def _check_sampling(logits, draws, monkeypatch) -> None:
    monkeypatch.setattr(sampling, "CHUNK", 128)  # small: a vocabulary spans several chunks
    space = SampleSpace.allocate(*logits.shape, logits.device)
    found = torch.full((len(logits),), -7, device=DEVICE)
    expected = found.clone()
    sample(logits, draws, space, found)
    sample_reference(logits, draws, space, expected)
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("spread", [0.1, 5.0])
def test_tokens_are_those_of_the_cpu_sampler(spread: float, monkeypatch) -> None:
    torch.manual_seed(1)
    logits = spread * torch.randn(8, 300, device=DEVICE)
    _check_sampling(logits, _draws([(0.0, 0, 1.0), (0.7, 0, 1.0)] * 4), monkeypatch)


def test_tokens_ruled_out_are_never_drawn(monkeypatch) -> None:
    torch.manual_seed(2)
    logits = torch.randn(4, 133, device=DEVICE)
    logits[:, 1:].masked_fill_(torch.rand(4, 132, device=DEVICE) < 0.5, -torch.inf)
    draws = _draws([(0.0, 0, 1.0), (1.5, 0, 1.0)] * 2)
    _check_sampling(logits, draws, monkeypatch)


def test_filters_cut_as_the_cpu_sampler_does(monkeypatch) -> None:
    torch.manual_seed(3)
    logits = torch.randn(3, 140, device=DEVICE).mul_(4).round_()  # many ties, at every edge
    draws = _draws([(1.0, 5, 0.9), (1.3, 0, 0.6), (0.9, 7, 1.0)])
    _check_sampling(logits, draws, monkeypatch)


def test_some_tokens_probability_is_that_of_the_softmax(monkeypatch) -> None:
    torch.manual_seed(4)
    monkeypatch.setattr(chances, "CHUNK", 128)
    logits = 6 * torch.randn(5, 300, device=DEVICE)
    rows = torch.tensor([3, 0, 3], device=DEVICE)
    tokens = torch.tensor([299, 4, 128], device=DEVICE)
    masses = torch.full((3, chances.n_chunks(300), 2), torch.nan, device=DEVICE)
    results = []
    for measure in (chances.probability, chances.probability_reference):
        out = torch.full((3,), torch.nan, dtype=torch.float64, device=DEVICE)
        measure(logits, rows, tokens, masses, out)
        results.append(out)
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("n_rows", [1, 5])
def test_rows_find_their_slots_through_the_block_tables(n_rows: int) -> None:
    tables = torch.tensor([[4, 2, 9], [7, 1, -5]], dtype=torch.int32, device=DEVICE)
    firsts = torch.tensor([14, 30], device=DEVICE)
    counts = torch.tensor([n_rows, min(n_rows, 2)], device=DEVICE)
    results = []
    for place in (place_rows, place_rows_reference):
        parts = [torch.full((2,), -9, dtype=torch.int32, device=DEVICE) for _ in range(3)]
        fed = [torch.full((2 * n_rows,), -9, dtype=torch.int32, device=DEVICE) for _ in range(2)]
        place(firsts, counts, Rows(*parts, tables), *fed)
        results.append([part.tolist() for part in [*parts[1:], *fed]])
    assert results[0] == results[1]
    row_counts, row_firsts, positions, slots = results[0]
    assert (row_counts, row_firsts) == (counts.tolist(), [14, 30])
    expected = [*range(14, 14 + n_rows), *range(30, 30 + n_rows)]
    if n_rows > 1:  # the last three of the second sequence are padding
        expected[-3:] = [0, 0, 0]
        assert slots[:3] == [4 * 16 + 14, 4 * 16 + 15, 2 * 16] and slots[-3:] == [-1, -1, -1]
    assert positions == expected


def test_guesses_stand_up_to_the_first_wrong_one() -> None:
    inputs = torch.tensor([9, 1, 2, 3, 9, 9, 5, 6, 8, 4], device=DEVICE)
    chosen = torch.tensor([1, 2, 3, 6, 0, 5, 7, 2, 9, 4], device=DEVICE)
    fields = ([0, 4, 8, 8], [4, 4, 0, 1], [0] * 4)
    rows = Rows(
        *(torch.tensor(field, dtype=torch.int32, device=DEVICE) for field in fields),
        torch.zeros(4, 1, dtype=torch.int32, device=DEVICE),
    )
    n_known = torch.tensor([1, 2, 1, 1], dtype=torch.int32, device=DEVICE)
    results = []
    for check in (verify, verify_reference):
        n_accepted = torch.full((4,), -5, dtype=torch.int32, device=DEVICE)
        following = torch.full((4,), -5, device=DEVICE)
        check(inputs, chosen, rows, n_known, n_accepted, following)
        results.append((n_accepted.tolist(), following.tolist()))
    assert results[0] == results[1] == ([3, 1, 0, 0], [6, 7, -1, 9])
