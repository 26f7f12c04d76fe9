"""Kernels that work on one row at a time: norm, gate, sampling, verification."""

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from engine.kernels import sample as sampling  # noqa: E402
from engine.kernels.adjust import Adjustments  # noqa: E402
from engine.kernels.attention import Pieces  # noqa: E402
from engine.kernels.ngram import guess, guess_reference  # noqa: E402
from engine.kernels.norm import add_norm, add_norm_reference  # noqa: E402
from engine.kernels.places import Places  # noqa: E402
from engine.kernels.rows import (  # noqa: E402
    Fed,
    place_rows,
    place_rows_reference,
    verify,
    verify_reference,
)
from engine.kernels.sample import (  # noqa: E402
    STAGED,
    Draws,
    Ends,
    SampleSpace,
    sample,
    sample_reference,
)
from engine.kernels.silu_mul import silu_mul, silu_mul_reference  # noqa: E402
from engine.sampler import penalize  # noqa: E402
from engine.types import SamplingParams  # noqa: E402

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


def test_the_last_norm_is_of_wanted_rows_alone() -> None:
    torch.manual_seed(0)
    residual, weight = torch.randn(5, 70, device=DEVICE), torch.rand(70, device=DEVICE)
    delta, wanted = torch.randn(2, 5, 70, device=DEVICE), torch.tensor([3, 0, 3], device=DEVICE)
    expected = torch.empty(5, 70, device=DEVICE)
    add_norm_reference(residual.clone(), delta, weight, 1e-5, expected)
    for norm in (add_norm, add_norm_reference):
        x, out = residual.clone(), torch.full((3, 70), torch.nan, device=DEVICE)
        norm(x, delta, weight, 1e-5, out, wanted)
        torch.testing.assert_close(out, expected[wanted], rtol=1e-5, atol=1e-5)
        assert torch.equal(x, residual)


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
        owners=torch.arange(len(rows), device=DEVICE).flip(0),
        offsets=torch.arange(len(rows), device=DEVICE) % 3,
    )


def _check_sampling(logits, draws, monkeypatch, wanted=slice(None)) -> None:
    monkeypatch.setattr(sampling, "CHUNK", 128)  # small: a vocabulary spans several chunks
    space = SampleSpace.allocate(*logits.shape, logits.device)
    found = torch.full((len(logits),), -7, device=DEVICE)
    expected = found.clone()
    sample(logits, draws, space, found)
    sample_reference(logits, draws, space, expected)
    assert found[wanted].tolist() == expected[wanted].tolist()


@pytest.mark.parametrize("spread", [0.1, 5.0])
def test_tokens_are_those_of_the_cpu_sampler(spread: float, monkeypatch) -> None:
    torch.manual_seed(1)
    logits = spread * torch.randn(8, 300, device=DEVICE)
    _check_sampling(logits, _draws([(0.0, 0, 1.0), (0.7, 0, 1.0)] * 4), monkeypatch)


def test_a_row_that_nobody_wants_disturbs_no_other(monkeypatch) -> None:
    torch.manual_seed(6)
    logits = torch.randn(4, 200, device=DEVICE)
    logits[1] = torch.nan
    draws = _draws([(0.7, 0, 1.0), (0.8, 5, 0.9)] * 2)
    draws.owners.copy_(torch.tensor([0, -1, 3, 2]))
    _check_sampling(logits, draws, monkeypatch, wanted=[0, 2, 3])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the interpreter
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_from_a_row_without_numbers_nothing_is_drawn(wrong: float, monkeypatch) -> None:
    torch.manual_seed(6)
    logits = torch.randn(4, 200, device=DEVICE)
    logits[1:3] = wrong
    _check_sampling(logits, _draws([(0.7, 5, 0.9), (0.0, 0, 1.0)] * 2), monkeypatch)
    _check_sampling(logits, _draws([(0.0, 0, 1.0), (0.8, 5, 0.9)] * 2), monkeypatch)


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


def test_staged_rows_are_told_some_tokens_probability_and_nothing_is_drawn(monkeypatch) -> None:
    torch.manual_seed(4)
    monkeypatch.setattr(sampling, "CHUNK", 128)
    logits = 6 * torch.randn(4, 300, device=DEVICE)
    draws = _draws([(0.0, 0, 1.0)] * 4)
    draws.owners.copy_(torch.tensor([STAGED, -1, 1, STAGED]))
    ids = torch.tensor([299, 4, 128], device=DEVICE)
    results = []
    for choose in (sample, sample_reference):
        found = torch.full((4,), torch.nan, dtype=torch.float64, device=DEVICE)
        tokens = torch.zeros(4, dtype=torch.int64, device=DEVICE)
        space = SampleSpace.allocate(*logits.shape, logits.device)
        choose(logits, draws, space, tokens, None, Ends(ids, found))
        results.append(found)
        assert tokens[2] == logits[2].argmax()
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-9, equal_nan=True)
    assert results[0].isnan().tolist() == [False, True, True, False]
    expected = logits[3].double().softmax(-1)[ids].sum()
    torch.testing.assert_close(results[0][3], expected, rtol=1e-5, atol=1e-9)


def _longs(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


# Of a step of 12 rows: 5 of a prompt, one that goes on with 2 of its 3 guesses, 2 to be verified,
# one of nobody, in pieces of 2.
TABLES = [[4, 2, 9], [7, 1, -5], [3, 6, 8]]
FED = {
    "tokens": [5, 6, 7, 8, 9, 0, 0, 0, 0, 20, 21, 0],
    "starts": [0, 5, 9], "firsts": [14, 0, 33], "counts": [5, 4, 2], "n_known": [5, 1, 1],
    "index": [0, 0, 6], "places": [0, 2, 1], "goes_on": [0, 1, 0], "wanted_at": [-1, 0, 4],
    "piece_starts": [0, 2, 4, 5, 7, 9, 11, 0], "piece_widths": [2, 2, 1, 2, 2, 2, 1, 0],
    "piece_offsets": [0, 2, 4, 0, 2, 0, 0, 0], "piece_owners": [0, 0, 0, 1, 1, 2, -1, -1],
}  # fmt: skip


def _step_state() -> tuple[Fed, Places]:
    places = Places(2, 48, 3, torch.device(DEVICE))
    places.position[2], places.token[2], places.index[2], places.n_guesses[2] = 30, 11, 4, 2
    places.guesses[2] = _longs([12, 13, 14])
    return Fed(**{name: _longs(values) for name, values in FED.items()}), places


def test_rows_find_their_tokens_and_slots_wherever_their_sequence_stands() -> None:
    results = []
    for place in (place_rows, place_rows_reference):
        fed, places = _step_state()
        parts = [torch.full((8,), -9, dtype=torch.int32, device=DEVICE) for _ in range(4)]
        tables = torch.tensor(TABLES, dtype=torch.int32, device=DEVICE)
        pieces = Pieces(*parts, tables)
        tokens = torch.full((12,), -9, device=DEVICE)
        fields = [torch.full((12,), -9, dtype=torch.int32, device=DEVICE) for _ in range(3)]
        place(fed, places, pieces, tokens, *fields, 2)
        some = parts[1] > 0  # of the others nothing is read
        results.append(
            [
                tokens.tolist(), *(field.tolist() for field in fields), parts[1].tolist(),
                *(part[some].tolist() for part in parts), fed.firsts.tolist(), fed.index.tolist(),
                places.history.tolist(),
            ]
        )  # fmt: skip
    assert results[0] == results[1]
    tokens, positions, kv_slots, before, counts, starts, _, firsts, owners, *_ = results[0]
    assert tokens == [5, 6, 7, 8, 9, 11, 12, 13, 0, 20, 21, 0]
    assert positions == [*range(14, 19), 30, 31, 32, 0, 33, 34, 0]
    assert kv_slots[:5] == [4 * 16 + 14, 4 * 16 + 15, 2 * 16, 2 * 16 + 1, 2 * 16 + 2]
    assert kv_slots[5:8] == [16 + 14, 16 + 15, -5 * 16] and kv_slots[8] == kv_slots[11] == -1
    assert before[:6] == [4 * 16 + 13, *kv_slots[:4], 16 + 13]
    assert before[6:8] == [kv_slots[5], kv_slots[6]] and before[8] == before[11] == -1
    assert counts == [2, 2, 1, 2, 1, 2, 0, 0]
    assert starts == [0, 2, 4, 5, 7, 9]
    assert firsts == [14, 16, 18, 30, 32, 33] and owners == [0, 0, 0, 1, 1, 2]
    assert results[0][-2] == [0, 4, 6] and results[0][-3] == [14, 30, 33]
    said = results[0][-1]
    assert said[2][30:34] == [11, 12, 13, 0] and said[1][33:35] == [20, 21] and not any(said[0])


def test_guesses_stand_up_to_the_first_wrong_one_and_the_reply_goes_on_there() -> None:
    tokens = _longs([5, 6, 7, 8, 9, 11, 12, 13, 0, 20, 21, 0])
    chosen = _longs([12, 40, 41, 42, 21, 22])
    results = []
    for check in (verify, verify_reference):
        fed, places = _step_state()
        fed.firsts[1], fed.index[1] = 30, 4  # as `place_rows` leaves them
        counts, n_accepted = torch.full((2, 3), -5, device=DEVICE)
        check(fed, places, tokens, chosen, counts, n_accepted)
        results.append(
            [
                part.tolist()
                for part in (counts, n_accepted, places.position, places.token, places.index,
                             places.history, places.n_guesses)
            ]
        )  # fmt: skip
    assert results[0] == results[1]
    counts, n_accepted, position, token, index, history, n_guesses = results[0]
    assert counts == [5, 3, 2] and n_accepted == [0, 1, 1]
    assert (position, token, index) == ([0, 35, 32], [0, 22, 40], [0, 8, 6])
    assert history[1][35] == 22 and history[2][32] == 40
    assert n_guesses == [0, 0, 0], "what follows nobody has guessed at"


@pytest.mark.parametrize("n_tokens", [3, 4, 20, 47])
def test_the_last_place_that_went_before_tells_what_follows(n_tokens: int) -> None:
    history = [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3] + [7, 6, 5] * 9 + [1, 2, 3] * 3
    results = []
    for look in (guess, guess_reference):
        places = Places(2, 48, 3, torch.device(DEVICE))
        places.history[2, : len(history)] = torch.tensor(history, dtype=torch.int32)
        places.position[2], places.n_guesses[1] = n_tokens - 1, 3
        look(_longs([0, 2, 1]), _longs([1, 1, 0]), places)
        n_found = places.n_guesses.tolist()
        results.append((n_found, places.guesses[2, : n_found[2]].tolist()))
    assert results[0] == results[1]
    expected = {3: [], 4: [], 20: [7, 6, 5], 47: [1, 2, 3]}[n_tokens]
    assert results[0] == ([0, 0, len(expected)], expected)


def test_logits_are_kept_then_penalized_as_on_a_cpu_then_masked(monkeypatch) -> None:
    torch.manual_seed(4)
    monkeypatch.setattr(sampling, "CHUNK", 64)
    n_vocab, n_rows = 133, 5
    raw = 3 * torch.randn(n_rows, n_vocab, device=DEVICE)
    masks = torch.randint(-(2**31), 2**31, (n_rows, 5), dtype=torch.int32, device=DEVICE)
    draws = _draws([(0.0, 0, 1.0)] * n_rows)
    draws.owners.copy_(_longs([0, 0, 1, 1, -1]))
    results = []
    for choose in (sample, sample_reference):
        places = Places(2, 64, 0, torch.device(DEVICE))
        places.history[1] = torch.arange(64, dtype=torch.int32) % 23
        kept = torch.full((2, n_vocab), torch.nan, device=DEVICE)
        asked = Adjustments(
            presence=torch.tensor([0.3, 0.0], dtype=torch.float64, device=DEVICE),
            frequency=torch.tensor([0.7, 0.0], dtype=torch.float64, device=DEVICE),
            said_from=_longs([10, 0]), places=_longs([1, 0]), rows=_longs([3, 4, 5, 6, 7]),
            mask_lines=_longs([-1, 3, 4, -1, 2]), kept_lines=_longs([1, -1, -1, 0, -1]),
            masks=masks, kept=kept, history=places.history,
            positions=torch.arange(40, 50, dtype=torch.int32, device=DEVICE),
        )  # fmt: skip
        logits, tokens = raw.clone(), torch.zeros(n_rows, dtype=torch.int64, device=DEVICE)
        space = SampleSpace.allocate(*logits.shape, logits.device)
        choose(logits, draws, space, tokens, asked)
        assert tokens[:4].tolist() == logits[:4].argmax(1).tolist()
        results.append((logits, kept))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    logits, kept = results[0]
    assert kept[1].equal(raw[0]) and kept[0].equal(raw[3]) and logits[3:].equal(raw[3:])
    said = [i % 23 for i in range(10, 44)]
    expected = penalize(
        raw[0].cpu(), SamplingParams(presence_penalty=0.3, frequency_penalty=0.7), said
    )
    assert logits[0].cpu().equal(expected)
    bits = [int(masks[4, token // 32]) >> token % 32 & 1 for token in range(n_vocab)]
    assert (logits[2] == -torch.inf).tolist() == [not bit for bit in bits]
