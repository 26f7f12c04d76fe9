"""Torch's products of every stored format against the same in float64, for every number of rows."""

import errno
import mmap

import pytest
import torch

import engine.linear
from engine.linear import Linear, Streamed, lay_together, make_linear
from engine.load.packed import ScaledWeight, Stored, dense
from engine.load.quant import quantize_int4, quantize_int8
from tests.tables import each_row

ROWS = (1, 2, 4, 8, 70)
FORMATS = ["dense", "int8", "fp8", "int4"]


def example(n_out: int = 96, n_in: int = 64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(n_out, n_in, generator=generator).bfloat16().float()
    bias = torch.randn(n_out, generator=generator).bfloat16().float()
    return weight, bias, torch.randn(max(ROWS), n_in, generator=generator).bfloat16()


def stored(weight: torch.Tensor, name: str) -> Stored:
    """As a checkpoint has it."""
    match name:
        case "int8":
            return quantize_int8(weight)
        case "int4":
            return quantize_int4(weight, 32)
        case "fp8":
            scale = (weight.abs().amax(1) / 448).bfloat16().float()
            return ScaledWeight((weight / scale[:, None]).to(torch.float8_e4m3fn), scale)
    return weight


def product_of(weight: Stored, bias: torch.Tensor | None, dtype: torch.dtype) -> Linear:
    return make_linear(weight, bias, dtype=dtype, quant="int8", device="cpu")


@each_row("has_bf16_gemm", [True, False])
@each_row("name", FORMATS)
def test_bf16_products_agree_for_any_number_of_rows(
    monkeypatch: pytest.MonkeyPatch, name: str, has_bf16_gemm: bool
) -> None:
    if not has_bf16_gemm:
        monkeypatch.setattr(engine.linear, "_packs_bf16", lambda: False)
    weight, bias, x = example()
    held = stored(weight, name)
    product = product_of(held, bias, torch.bfloat16)
    for n_rows in ROWS:
        rows = x[:n_rows]
        expected = rows.double() @ dense(held).double().T + bias.double()
        found = product(rows)
        assert found.dtype == torch.bfloat16 and found.shape == (n_rows, 96)
        error = (found.double() - expected).abs().max() / expected.abs().max()
        assert error < 0.02, f"{n_rows} rows: relative error {error:.4f}"


@pytest.mark.parametrize("name", FORMATS)
def test_exact_dtypes_stay_exact(name: str) -> None:
    weight, bias, x = example()
    held = stored(weight, name)
    product = product_of(held, bias, torch.float64)
    expected = x.double() @ dense(held).double().T + bias.double()
    assert torch.allclose(product(x.double()), expected, rtol=1e-6, atol=1e-6)


class SmallPages(mmap.mmap):
    """As on a kernel built without huge pages."""

    def madvise(self, *arguments: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no huge pages to ask for")
@pytest.mark.parametrize("pages", [mmap.mmap, SmallPages])
def test_weights_laid_together_are_the_same_weights(
    monkeypatch: pytest.MonkeyPatch, pages: type[mmap.mmap]
) -> None:
    class Bytes(Streamed):
        out_features, kept = 0, "int8"

        def __init__(self, n: int) -> None:
            self.weight = torch.randint(0, 256, (n,), dtype=torch.uint8)

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x

    monkeypatch.setattr(engine.linear.mmap, "mmap", pages)
    first, last = Bytes(96 * 64), Bytes(70)
    other = product_of(example()[0], None, torch.bfloat16)
    before = [product.weight.clone() for product in (first, last)]
    lay_together([first, other, last])
    assert torch.equal(first.weight, before[0]) and torch.equal(last.weight, before[1])
    assert last.weight.data_ptr() - first.weight.data_ptr() == 96 * 64
