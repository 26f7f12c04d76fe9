"""Every weight format against the same product in float64, for every number of rows."""

import errno
import mmap

import pytest
import torch

import engine.linear
from engine.linear import Linear, ScaledLinear, lay_together, make_linear
from engine.load.packed import ScaledWeight, dense
from engine.load.quant import quantize_int4, quantize_int8
from tests.tables import each_row

ROWS = (1, 2, 4, 5, 8, 16, 70)  # on both sides of every switch between kernels


def example(n_out: int = 96, n_in: int = 64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(n_out, n_in, generator=generator).bfloat16().float()
    bias = torch.randn(n_out, generator=generator).bfloat16().float()
    return weight, bias, torch.randn(max(ROWS), n_in, generator=generator).bfloat16()


def as_read(weight: torch.Tensor) -> ScaledWeight:
    """In fp8, as compressed-tensors writes a checkpoint."""
    scale = weight.abs().amax(1) / 448
    return ScaledWeight((weight / scale[:, None]).to(torch.float8_e4m3fn), scale.bfloat16().float())


def product_of(
    weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, quant: str | None
) -> Linear:
    if quant == "fp8":
        return make_linear(as_read(weight), bias, dtype=dtype, quant=None, device="cpu")
    return make_linear(weight, bias, dtype=dtype, quant=quant, device="cpu")


def meant(weight: torch.Tensor, quant: str | None) -> torch.Tensor:
    """The weight a quantized one stands for."""
    if quant is None:
        return weight
    match quant:
        case "int8":
            return dense(quantize_int8(weight))
        case "fp8":
            return dense(as_read(weight))
    return dense(quantize_int4(weight, 32))


@each_row("has_bf16_gemm", [True, False])
@each_row("quant", [None, "int8", "fp8", "int4"])
def test_bf16_products_agree_for_any_number_of_rows(
    monkeypatch: pytest.MonkeyPatch, quant: str | None, has_bf16_gemm: bool
) -> None:
    if not has_bf16_gemm:
        monkeypatch.setattr(engine.linear, "_packs_bf16", lambda: False)
    weight, bias, x = example()
    product = product_of(weight, bias, torch.bfloat16, quant)
    for n_rows in ROWS:
        rows = x[:n_rows]
        expected = rows.double() @ meant(weight, quant).double().T + bias.double()
        found = product(rows)
        assert found.dtype == torch.bfloat16 and found.shape == (n_rows, 96)
        error = (found.double() - expected).abs().max() / expected.abs().max()
        assert error < 0.02, f"{n_rows} rows: relative error {error:.4f}"


@pytest.mark.parametrize("quant", ["int8", "fp8", "int4"])
def test_without_a_bf16_gemm_codes_times_scale_are_not_rounded(
    monkeypatch: pytest.MonkeyPatch, quant: str
) -> None:
    monkeypatch.setattr(engine.linear, "_packs_bf16", lambda: False)
    weight, _, x = example()
    product = product_of(weight, None, torch.bfloat16, quant)
    exact = x.double() @ meant(weight, quant).double().T
    error = (product(x).double() - exact).abs()
    assert (error <= 1.01 * 2**-8 * exact.abs() + 1e-5).all()  # of the result's rounding alone


@pytest.mark.parametrize("quant", [None, "int8", "fp8", "int4"])
def test_exact_dtypes_stay_exact(quant: str | None) -> None:
    weight, bias, x = example()
    product = product_of(weight, bias, torch.float64, quant)
    expected = x.double() @ meant(weight, quant).double().T + bias.double()
    assert torch.allclose(product(x.double()), expected, rtol=1e-6, atol=1e-6)


def test_a_size_no_group_divides_stays_dense() -> None:
    weight, _, x = example(n_in=50)
    product = make_linear(weight, None, dtype=torch.float64, quant="int4", device="cpu")
    assert torch.allclose(product(x.double()), x.double() @ weight.double().T)


class SmallPages(mmap.mmap):
    """As on a kernel built without huge pages."""

    def madvise(self, *arguments: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no huge pages to ask for")
@pytest.mark.parametrize("pages", [mmap.mmap, SmallPages])
def test_weights_laid_together_are_the_same_weights(
    monkeypatch: pytest.MonkeyPatch, pages: type[mmap.mmap]
) -> None:
    monkeypatch.setattr(engine.linear.mmap, "mmap", pages)
    (weight, bias, x), (other, _, _) = example(), example(n_out=128)
    products = [
        make_linear(w, b, dtype=torch.bfloat16, quant=quant, device="cpu")
        for w, b, quant in ((weight, bias, "int8"), (weight, None, None), (other, None, "int8"))
    ]
    before = [product(x[:1]) for product in products]
    lay_together(products)
    for product, expected in zip(products, before, strict=True):
        assert torch.equal(product(x[:1]), expected)
    first, _, last = products
    assert isinstance(first, ScaledLinear) and isinstance(last, ScaledLinear)
    assert last.weight.data_ptr() - first.weight.data_ptr() == weight.numel()
