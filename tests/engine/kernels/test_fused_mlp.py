"""The fused half of a layer behind its attention: two products that end in the residual, a gate."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the kernels need triton")

from engine.kernels.decoder import KernelLinear, KernelSet  # noqa: E402
from engine.kernels.launch import tile_outputs  # noqa: E402
from engine.kernels.norm import add_norm_reference, add_product, add_product_reference  # noqa: E402
from engine.kernels.silu_mul import (  # noqa: E402
    gate_product,
    gate_product_reference,
    silu_mul_reference,
)
from engine.load.quant import quantize  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-5
FORMATS = (None, "int8", "fp8", "int4")
SHAPES = [(3, 70, 160), (17, 64, 384), (33, 96, 128)]  # rows, outputs, inputs


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@dataclass
class Space:
    """What the launches of a layer share: partial sums that nobody wrote, tickets all at zero."""

    sums: Tensor
    tickets: Tensor


def _space() -> Space:
    sums = torch.full((200_000,), torch.nan, device=DEVICE)
    return Space(sums, torch.zeros(256, dtype=torch.int32, device=DEVICE))


def _weight(quant: str | None, n_out: int, n_in: int, n_splits: int | None = None) -> Any:
    kept = quantize((torch.randn(n_out, n_in) * n_in**-0.5).bfloat16(), quant, 32)
    made = KernelLinear(KernelSet(is_reference=False), kept, None, torch.bfloat16, DEVICE).streamed
    return replace(made, n_splits=n_splits or made.n_splits)


def _add(kernel: Callable[..., None], weight: Any, n_rows: int, inputs: Tensor, bias, residual):
    """The residual, h, and the sum of each row's squares; of the first rows alone."""
    n_out, space = residual.shape[1], _space()
    x = residual[:n_rows].clone()
    h = torch.full((n_rows, n_out), torch.nan, device=DEVICE).bfloat16()
    n_squares = -(-n_out // tile_outputs(n_out, x.device))
    squares = torch.full((n_rows, n_squares), torch.nan, device=DEVICE)
    norm = torch.linspace(0.5, 1.5, n_out, device=DEVICE)
    kernel(inputs[:n_rows].contiguous(), weight, bias, x, norm, h, squares, *vars(space).values())
    assert not space.tickets.any(), "what was taken is put back"
    return x, h.float(), squares


def _gate(kernel: Callable[..., None], weight: Any, n_rows: int, h: Tensor, bias, squares):
    space = _space()
    out = torch.full((n_rows, bias.shape[0] // 2), torch.nan, device=DEVICE).bfloat16()
    h, squares = h[:n_rows].contiguous(), squares[:n_rows].contiguous()
    kernel(h, weight, bias, squares, EPS, out, *vars(space).values())
    assert not space.tickets.any(), "what was taken is put back"
    return out


def _is_within_a_place(found: Tensor, expected: Tensor) -> bool:
    """Of bf16, at the size of what was added up; compiled, int4 weights are rounded to bf16."""
    expected = expected.float()
    places = expected.abs().clamp_min(float(expected.abs().mean())) * 2**-7
    return bool(((found.float() - expected).abs() <= places * (1 if DEVICE == "cpu" else 2)).all())


@pytest.mark.parametrize("quant", FORMATS)
@pytest.mark.parametrize("n_rows, n_out, n_in", SHAPES)
def test_a_product_into_the_residual_is_within_a_place_of_its_reference(
    quant: str | None, n_rows: int, n_out: int, n_in: int
) -> None:
    weight = _weight(quant, n_out, n_in)
    inputs = torch.randn(n_rows, n_in, device=DEVICE).bfloat16()
    bias, residual = torch.randn(n_out, device=DEVICE), torch.randn(n_rows, n_out, device=DEVICE)
    x, h, squares = _add(add_product, weight, n_rows, inputs, bias, residual)
    expected = _add(add_product_reference, weight, n_rows, inputs, bias, residual)
    assert _is_within_a_place(x, expected[0])
    assert _is_within_a_place(h, expected[1])
    torch.testing.assert_close(squares.sum(1), x.square().sum(1), rtol=1e-5, atol=0)
    torch.testing.assert_close(squares.sum(1), expected[2].sum(1), rtol=2e-3, atol=0)


@pytest.mark.parametrize("quant", FORMATS)
@pytest.mark.parametrize("n_rows, n_out, n_in", SHAPES)
def test_a_gated_product_is_within_a_place_of_its_reference(
    quant: str | None, n_rows: int, n_out: int, n_in: int
) -> None:
    """Also where the last tile of the gates would reach into what they let through."""
    weight = _weight(quant, 2 * n_out, n_in)
    h = torch.randn(n_rows, n_in, device=DEVICE).bfloat16()
    bias, squares = torch.randn(2 * n_out, device=DEVICE), torch.rand(n_rows, 3, device=DEVICE) * 50
    found = _gate(gate_product, weight, n_rows, h, bias, squares)
    assert _is_within_a_place(
        found, _gate(gate_product_reference, weight, n_rows, h, bias, squares)
    )


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_fused_launches_compute_what_the_plain_ones_do(quant: str) -> None:
    """o, residual, norm, gate, up, SiLU: from partial sums that two launches add, and from one."""
    n_rows, hidden, inner = 5, 96, 70
    output, gate_up = _weight(quant, hidden, 128, 1), _weight(quant, 2 * inner, hidden, 1)
    mixed = torch.randn(n_rows, 128, device=DEVICE).bfloat16()
    residual, none = torch.randn(n_rows, hidden, device=DEVICE), torch.zeros(2 * inner)
    _, h, squares = _add(add_product, output, n_rows, mixed, None, residual)
    found = _gate(gate_product, gate_up, n_rows, h.bfloat16(), none.to(DEVICE), squares)

    def multiply(x: Tensor, weight: Any, n_out: int) -> Tensor:
        call = KernelSet(is_reference=True).call
        out = torch.empty(1, n_rows, n_out, device=DEVICE)
        (call.gemm_int4 if quant == "int4" else call.gemm_8bit)(x, weight, None, out)
        return out

    normed = torch.empty(n_rows, hidden, device=DEVICE).bfloat16()
    norm = torch.linspace(0.5, 1.5, hidden, device=DEVICE)
    add_norm_reference(residual, multiply(mixed, output, hidden), norm, EPS, normed)
    expected = torch.empty(n_rows, inner, device=DEVICE)
    silu_mul_reference(multiply(normed, gate_up, 2 * inner), expected)
    error = (found.float() - expected).norm() / expected.norm()
    # Each rounds its norm once, before or after the scale; the interpreter cuts off.
    assert error < 2**-6


@pytest.mark.parametrize("quant", FORMATS)
def test_fused_rows_are_the_same_bits_alone_and_in_company(quant: str | None) -> None:
    """Tiles of 16 rows and of 32, and company that is not finite."""
    output, gate_up = _weight(quant, 64, 128, 2), _weight(quant, 128, 64, 2)
    inputs = torch.randn(40, 128, device=DEVICE).bfloat16()
    residual, bias = torch.randn(40, 64, device=DEVICE), torch.randn(128, device=DEVICE)
    inputs[20:], residual[20:] = torch.nan, torch.inf
    found = []
    for n_rows in (40, 16, 3, 1):
        x, h, squares = _add(add_product, output, n_rows, inputs, None, residual)
        out = _gate(gate_product, gate_up, n_rows, h.bfloat16(), bias, squares)
        found.append([part[:1] for part in (x, h, squares, out)])
    for parts in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(parts, found[0], strict=True))


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[tuple[int, ...]], None]]:
    """Has programs of a grid of so many run in the opposite order."""
    if DEVICE != "cpu":
        pytest.skip("a GPU starts programs in an order of its own")
    from triton.runtime.interpreter import interpreter_builder

    set_index = interpreter_builder.set_grid_idx

    def turn(grid: tuple[int, ...]) -> None:
        def turned(*place: int) -> None:
            set_index(*(n - 1 - i for n, i in zip(grid, place, strict=True)))

        monkeypatch.setattr(interpreter_builder, "set_grid_idx", turned)

    return turn


def test_the_order_in_which_splits_arrive_changes_no_bit(backwards) -> None:
    output, gate_up = _weight("int8", 64, 512, 4), _weight("int8", 128, 512, 3)
    inputs, residual = torch.randn(2, 512).bfloat16(), torch.randn(2, 64)
    bias, squares = torch.randn(128), torch.rand(2, 2) * 500
    x, h, _ = _add(add_product, output, 2, inputs, None, residual)
    gated = _gate(gate_product, gate_up, 2, inputs, bias, squares)
    tiles = 64 // tile_outputs(64, residual.device)
    backwards((1, tiles, 4))
    again = _add(add_product, output, 2, inputs, None, residual)
    assert x.equal(again[0]) and h.equal(again[1])
    backwards((1, 2 * tiles, 3))
    assert gated.equal(_gate(gate_product, gate_up, 2, inputs, bias, squares))
