import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from engine.kernels import attention  # noqa: E402
from engine.kernels.attention import (  # noqa: E402
    Partials,
    Pieces,
    paged_attention,
    paged_attention_reference,
)
from engine.kernels.kv_write import kv_write_reference  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if torch.cuda.is_available() else torch.float32
N_BLOCKS, MAX_BLOCKS = 24, 12


def _pool(kv_format: str, n_kv: int, dim: int):
    """A pool whose every slot is poisoned: NaN codes, or NaN scales."""
    shape = (N_BLOCKS, 16, 2, n_kv)
    dtype = DTYPE if kv_format == "plain" else torch.int8
    codes = torch.zeros(*shape, dim, device=DEVICE, dtype=dtype)
    if kv_format == "plain":
        return codes.fill_(torch.nan), torch.empty(*shape[:3], 0, dtype=DTYPE, device=DEVICE)
    return codes, torch.full(shape, torch.nan, dtype=torch.bfloat16, device=DEVICE)


def _fill(blocks, scales, counts, firsts, n_heads, dim) -> Pieces:
    """Scattered tables of which all share the first block; entries past the end are wild."""
    order = torch.randperm(N_BLOCKS).tolist()
    shared = order.pop()
    tables = torch.full((len(counts), MAX_BLOCKS), 2**30, dtype=torch.int32)
    for i, n_tokens in enumerate(a + b for a, b in zip(counts, firsts, strict=True)):
        if counts[i] == 0:
            continue
        table = [shared, *(order.pop() for _ in range(-(-n_tokens // 16) - 1))]
        tables[i, : len(table)] = torch.tensor(table, dtype=torch.int32)
        slots = torch.tensor([table[p // 16] * 16 + p % 16 for p in range(n_tokens)], device=DEVICE)
        kv_write_reference(
            torch.randn(1, n_tokens, (n_heads + 2 * blocks.shape[3]) * dim, device=DEVICE),
            torch.arange(n_tokens, device=DEVICE), slots,
            torch.ones(n_tokens, dim, device=DEVICE), torch.zeros(n_tokens, dim, device=DEVICE),
            None, None, 0.0,
            torch.empty(n_tokens, n_heads, dim, dtype=DTYPE, device=DEVICE), blocks, scales,
        )  # fmt: skip
    starts = [sum(counts[:i]) for i in range(len(counts))]
    owners = range(len(counts))
    fields = (
        torch.tensor(x, dtype=torch.int32, device=DEVICE)
        for x in (starts, counts, firsts, list(owners))
    )
    return Pieces(*fields, tables.to(DEVICE))


def _check(kind, kv_format, heads, dim, counts, firsts, window, monkeypatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(attention, "SPLIT_TOKENS", 64)  # small: a sequence spans several splits
    (n_heads, n_kv), n_rows = heads, sum(counts) + 1  # one row belongs to nobody
    blocks, scales = _pool(kv_format, n_kv, dim)
    rows = _fill(blocks, scales, counts, firsts, n_heads, dim)
    queries = torch.randn(n_rows, n_heads, dim, device=DEVICE).to(DTYPE)
    found = torch.full((n_rows, n_heads * dim), torch.nan, dtype=DTYPE, device=DEVICE)
    expected = found.clone()
    monkeypatch.setattr(attention, "is_split", lambda *_: kind != "prefill")
    n_split = n_rows if kind != "prefill" else 0
    partials = Partials.allocate(n_split, n_heads, dim, MAX_BLOCKS * 16, queries.device)
    partials.sums.fill_(torch.nan)
    partials.weights.fill_(torch.nan)
    paged_attention(queries, blocks, scales, rows, max(counts), window, partials, found)
    paged_attention_reference(
        queries, blocks, scales, rows, max(counts), window, partials, expected
    )
    tolerance = 2e-5 if DTYPE == torch.float32 else 2e-2
    torch.testing.assert_close(
        found, expected, rtol=tolerance, atol=tolerance, equal_nan=True
    )  # the row of nobody stays poisoned


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_a_first_position_may_be_left_out(kind, monkeypatch) -> None:
    """By every row, the one whose other tokens are in the same tile and the one far behind."""
    monkeypatch.setattr(attention, "is_split", lambda *_: kind == "decode")
    blocks, scales = _pool("plain", 2, 16)
    counts, firsts = [1, 1], [1, 75]
    rows = _fill(blocks, scales, counts, firsts, 4, 16)
    queries = torch.randn(3, 4, 16, device=DEVICE).to(DTYPE)
    results = [torch.full((3, 64), torch.nan, dtype=DTYPE, device=DEVICE) for _ in range(3)]
    partials = Partials.allocate(3, 4, 16, MAX_BLOCKS * 16, queries.device)
    given = queries, blocks, scales, rows, 1, 0, partials
    paged_attention(*given, results[0], 1)
    paged_attention_reference(*given, results[1], 1)
    paged_attention(*given, results[2])
    tolerance = 2e-5 if DTYPE == torch.float32 else 2e-2
    torch.testing.assert_close(
        results[0], results[1], rtol=tolerance, atol=tolerance, equal_nan=True
    )
    assert not torch.allclose(results[0][:2], results[2][:2], atol=1e-3)


@pytest.mark.parametrize("kind", ["decode", "prefill"])
@pytest.mark.parametrize("kv_format", ["plain", "int8"])
def test_attention_reads_every_kv_format(kind, kv_format, monkeypatch) -> None:
    _check(kind, kv_format, (2, 1), 80, [2, 0, 1], [63, 5, 15], 0, monkeypatch)


@pytest.mark.parametrize("heads, dim", [((1, 1), 64), ((4, 1), 96), ((6, 2), 128), ((8, 1), 64)])
def test_heads_share_keys_in_any_ratio(heads, dim, monkeypatch) -> None:
    _check("decode", "plain", heads, dim, [1], [31], 0, monkeypatch)


def test_pieces_of_one_sequence_see_what_lies_before_them(monkeypatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(attention, "SPLIT_TOKENS", 64)
    (n_heads, n_kv), dim, n_rows, first = (4, 2), 64, 40, 30
    blocks, scales = _pool("plain", n_kv, dim)
    whole = _fill(blocks, scales, [n_rows], [first], n_heads, dim)
    queries = torch.randn(n_rows, n_heads, dim, device=DEVICE).to(DTYPE)
    results = []
    for most_rows in (attention.split_piece_rows(n_heads, n_kv),
                      attention.prefill_piece_rows(n_heads, n_kv), n_rows):  # fmt: skip
        starts = list(range(0, n_rows, most_rows))
        counts = [min(most_rows, n_rows - start) for start in starts]
        firsts, owners = [first + start for start in starts], [0] * len(starts)
        fields = (
            torch.tensor(x, dtype=torch.int32, device=DEVICE)
            for x in (starts, counts, firsts, owners)
        )
        out = torch.full((n_rows, n_heads * dim), torch.nan, dtype=DTYPE, device=DEVICE)
        partials = Partials.allocate(n_rows, n_heads, dim, MAX_BLOCKS * 16, queries.device)
        attend = paged_attention_reference if most_rows == n_rows else paged_attention
        pieces = Pieces(*fields, whole.tables)
        attend(queries, blocks, scales, pieces, most_rows, 0, partials, out)
        results.append(out)
    tolerance = 2e-5 if DTYPE == torch.float32 else 2e-2
    for found in results[:2]:
        torch.testing.assert_close(found, results[2], rtol=tolerance, atol=tolerance)


def test_a_short_prompt_is_split_too(monkeypatch) -> None:
    assert attention.is_split(16, 32, 8) and not attention.is_split(32, 32, 8)
    _check("decode", "plain", (4, 2), 64, [16, 9], [70, 3], 0, monkeypatch)


@pytest.mark.parametrize("kind", ["decode", "prefill"])
@pytest.mark.parametrize("window", [1, 16, 20])
def test_a_window_hides_what_lies_before_it(kind, window, monkeypatch) -> None:
    _check(kind, "plain", (2, 1), 64, [8], [72], window, monkeypatch)
