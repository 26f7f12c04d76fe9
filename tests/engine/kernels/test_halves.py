"""Kernels that finish what others of a step launch apart: right, and the same bits in any order."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from triton.runtime import interpreter  # noqa: E402

from engine.kernels import attention  # noqa: E402
from engine.kernels.attention import Partials, Pieces, paged_attention  # noqa: E402
from engine.kernels.decoder import KernelLinear, KernelSet  # noqa: E402
from engine.kernels.kv_write import project, project_reference  # noqa: E402
from engine.kernels.launch import INTERPRETED  # noqa: E402
from engine.kernels.norm import add_norm, add_norm_reference  # noqa: E402
from engine.kv_format import KV_FORMATS  # noqa: E402
from engine.load.quant import quantize  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N_IN, N_SQUARES, EPS = 160, 3, 1e-6
HEADS, KV_HEADS = 3, 1


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def shuffled(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has the programs of every launch that follows run in an order that the seed names."""
    if not INTERPRETED:
        pytest.skip("the order of programs is the device's own")
    builder = interpreter.interpreter_builder
    set_dim, set_index = builder.set_grid_dim, builder.set_grid_idx

    def shuffle(seed: int) -> None:
        order: list[tuple[int, int, int]] = []

        def set_grid_dim(x: int, y: int, z: int) -> None:
            order[:] = [(i, j, k) for i in range(x) for j in range(y) for k in range(z)]
            random.Random(seed).shuffle(order)
            set_dim(x, y, z)

        monkeypatch.setattr(builder, "set_grid_dim", set_grid_dim)
        monkeypatch.setattr(builder, "set_grid_idx", lambda *_: set_index(*order.pop()))

    return shuffle


def _product(quant: str | None, n_out: int, n_splits: int, has_bias: bool) -> KernelLinear:
    weight = torch.randn(n_out, N_IN) / N_IN**0.5
    bias = torch.randn(n_out) if has_bias else None
    kept = quantize(weight, quant, 32)
    product = KernelLinear(KernelSet(is_reference=False), kept, bias, torch.bfloat16, DEVICE)
    product.streamed = replace(product.streamed, n_splits=n_splits)
    return product


class Projection:
    """Rows, and a pool that only the slots of theirs may be written in."""

    def __init__(self, n_rows: int, dim: int, kv_format: str, has_norm: bool) -> None:
        x = 30 * torch.randn(n_rows, N_IN, device=DEVICE)
        weight = torch.rand(N_IN, device=DEVICE)
        self.h = (x * weight).bfloat16()
        self.squares = torch.zeros(n_rows, N_SQUARES, device=DEVICE)
        for i, part in enumerate(x.chunk(N_SQUARES, 1)):
            self.squares[:, i] = part.square().sum(1)
        self.positions = torch.randint(12, (n_rows,), dtype=torch.int32, device=DEVICE)
        self.slots = torch.randperm(48)[:n_rows].int().to(DEVICE)
        self.slots[n_rows // 2] = -1 if n_rows > 1 else 15
        self.turns = [t.bfloat16() for t in torch.randn(2, 12, 1, dim, device=DEVICE)]
        self.norms = [torch.rand(dim, device=DEVICE) if has_norm else None for _ in range(2)]
        self.stored = KV_FORMATS[kv_format](dim, torch.bfloat16)
        self.dim, self.tickets = dim, torch.zeros(64, dtype=torch.int32, device=DEVICE)

    def run(self, do, product: KernelLinear, rows: slice = slice(None)):
        """Queries, codes and scales; the pool is poisoned, and so is every workspace."""
        h, n = self.h[rows].contiguous(), len(self.h[rows])
        queries = torch.full((n, HEADS, self.dim), torch.nan, device=DEVICE).bfloat16()
        shape = (3, 16, 2, KV_HEADS)
        codes = torch.full((*shape, self.stored.code_size), 77.0, device=DEVICE)
        blocks = codes.to(self.stored.code_dtype)
        scales = torch.ones(shape, device=DEVICE).bfloat16()
        if not self.stored.is_scaled:
            scales = scales[..., :0]
        sums = torch.full(
            (product.streamed.n_splits, n, product.out_features), torch.nan, device=DEVICE
        )
        do(
            h, self.squares[rows].contiguous(), product.streamed, product.bias,
            self.positions[rows], self.slots[rows], *self.turns, *self.norms, EPS, queries,
            blocks, scales, sums, self.tickets,
        )  # fmt: skip
        assert not self.tickets.any(), "expected tickets of 0 after a launch"
        return queries, blocks, scales


@pytest.mark.parametrize(
    ("quant", "kv_format", "dim", "n_rows", "n_splits", "has_norm"),
    [
        (None, "plain", 64, 1, 2, False),
        ("int8", "int8", 32, 3, 2, True),
        ("int4", "int8", 48, 17, 3, True),  # tiles of 32 rows and of a third of a head
        ("int4", "int4", 64, 5, 1, False),
        ("fp8", "fp8", 80, 33, 1, True),
        ("int8", "plain", 80, 40, 2, True),
    ],
)
def test_a_projection_is_its_reference(quant, kv_format, dim, n_rows, n_splits, has_norm) -> None:
    given = Projection(n_rows, dim, kv_format, has_norm)
    product = _product(quant, (HEADS + 2 * KV_HEADS) * dim, n_splits, has_bias=not has_norm)
    queries, blocks, scales = given.run(project, product)
    expected, expected_blocks, expected_scales = given.run(project_reference, product)
    # A place of bf16; the interpreter cuts off where torch rounds.
    torch.testing.assert_close(queries.float(), expected.float(), rtol=2**-7, atol=2**-8)
    found = given.stored.decode(blocks, scales).float().flatten(0, 1)
    right = given.stored.decode(expected_blocks, expected_scales).float().flatten(0, 1)
    written = torch.zeros(48, dtype=torch.bool)
    written[given.slots[given.slots >= 0].long().cpu()] = True
    assert torch.equal(found[~written], right[~written]), "expected no other slot written"
    step = {"plain": 2**-7, "fp8": 2**-3, "int8": 3 * 2**-7, "int4": 2**-2}[kv_format]
    # A code, and a place of bf16 of the number and of its scale.
    largest = right[written].abs().amax(-1, keepdim=True)
    is_near = (found - right)[written].abs() <= step * largest
    # In the interpreter casts to fp8 lose a carry at powers of two.
    assert is_near.float().mean() >= (0.95 if kv_format == "fp8" and DEVICE == "cpu" else 1.0)


@pytest.mark.parametrize("quant", [None, "int8", "int4", "fp8"])
def test_the_bits_of_a_projection_do_not_depend_on_who_ends_last(quant, shuffled) -> None:
    given = Projection(19, 32, "int8", True)
    product = _product(quant, (HEADS + 2 * KV_HEADS) * 32, 2, has_bias=True)
    results = [shuffled(seed) or given.run(project, product) for seed in range(3)]
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


@pytest.mark.parametrize("quant", [None, "int4"])
def test_a_projected_row_has_the_same_bits_alone_and_in_company(quant) -> None:
    given = Projection(37, 32, "int8", True)
    product = _product(quant, (HEADS + 2 * KV_HEADS) * 32, 2, has_bias=False)
    queries, blocks, scales = given.run(project, product)
    for row in (0, 9, 36):
        alone, its_blocks, its_scales = given.run(project, product, slice(row, row + 1))
        assert torch.equal(alone[0], queries[row])
        block, place = int(given.slots[row]) // 16, int(given.slots[row]) % 16
        assert torch.equal(its_blocks[block, place], blocks[block, place])
        assert torch.equal(its_scales[block, place], scales[block, place])


def test_a_norm_leaves_its_scale_to_the_product_behind_it() -> None:
    residual, weight = torch.randn(3, 70, device=DEVICE), torch.rand(70, device=DEVICE)
    delta = torch.randn(2, 3, 70, device=DEVICE)
    results = []
    for norm in (add_norm, add_norm_reference):
        x, h = residual.clone(), torch.full((3, 70), torch.nan, device=DEVICE)
        squares = torch.full((3, N_SQUARES), torch.nan, device=DEVICE)
        norm(x, delta, weight, EPS, h, squares=squares)
        torch.testing.assert_close(squares.sum(1), x.square().sum(1))
        results.append((x, h, squares))
    torch.testing.assert_close(results[0], results[1])
    scaled = torch.empty_like(h)
    add_norm_reference(residual.clone(), delta, weight, EPS, scaled)
    torch.testing.assert_close(h * (squares.sum(1, keepdim=True) / 70 + EPS).rsqrt(), scaled)


def _attended(window: int, tickets: torch.Tensor | None, counts=(1, 3), firsts=(200, 70)):
    """Heads of two sequences over 13 and 5 blocks; partial sums are poisoned."""
    torch.manual_seed(1)
    n_rows, n_heads, dim = sum(counts), 6, 32
    blocks = torch.randn(20, 16, 2, KV_HEADS, dim, device=DEVICE)
    tables = torch.arange(20, dtype=torch.int32, device=DEVICE)[None].repeat(2, 1)
    starts = torch.tensor([0, counts[0]], dtype=torch.int32, device=DEVICE)
    pieces = Pieces(
        starts, *(torch.tensor(t, dtype=torch.int32, device=DEVICE) for t in (counts, firsts)),
        torch.tensor([0, 1], dtype=torch.int32, device=DEVICE), tables,
    )  # fmt: skip
    queries = torch.randn(n_rows, n_heads, dim, device=DEVICE)
    partials = Partials.allocate(n_rows, n_heads, dim, 320, queries.device)
    partials.sums.fill_(torch.nan)
    partials.weights.fill_(torch.nan)
    out = torch.full((n_rows, n_heads * dim), torch.nan, device=DEVICE)
    paged_attention(
        queries, blocks, torch.empty(20, 16, 2, 0, device=DEVICE), pieces, max(counts), window,
        partials, out, tickets=tickets,
    )  # fmt: skip
    return out


@pytest.mark.parametrize("window", [0, 90])
def test_splits_are_merged_where_the_last_of_them_ends(window, shuffled, monkeypatch) -> None:
    monkeypatch.setattr(attention, "SPLIT_TOKENS", 64)  # a sequence has four, the other two
    monkeypatch.setattr(attention, "n_processors", lambda _: 2)  # fewer programs than splits
    expected = _attended(window, None)
    tickets = torch.zeros(2 * KV_HEADS, dtype=torch.int32, device=DEVICE)
    results = [shuffled(seed) or _attended(window, tickets) for seed in range(3)]
    assert not tickets.any()
    torch.testing.assert_close(results[0], expected, rtol=1e-6, atol=1e-6)
    assert all(torch.equal(found, results[0]) for found in results)
