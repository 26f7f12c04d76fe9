"""Products of the library against float64, for every instruction set that this CPU has."""

import random
from dataclasses import replace

import pytest
import torch

from engine.load.packed import Int4Weight, ScaledWeight, dense
from engine.load.quant import quantize_int4, quantize_int8
from engine.native.layout import GROUP
from engine.native.linear import NativeLinear, is_native
from tests.engine.native.conftest import Libraries
from tests.tables import each_row

# Sizes as models have them, and sizes that fill no vector, tile or panel.
SHAPES = [(64, 64), (1, 1), (7, 3), (65, 17), (130, 50), (640, 384), (96, 1408), (33, 4100)]


def rows(n: int, n_in: int) -> torch.Tensor:
    return torch.randn(n, n_in, generator=torch.Generator().manual_seed(n * n_in))


def weight(n_out: int, n_in: int) -> torch.Tensor:
    return torch.randn(n_out, n_in, generator=torch.Generator().manual_seed(n_out + n_in))


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).abs().max() / expected.abs().max())


FAR_ABOVE = 1.75  # the middle of its row: a group whose largest number lies there has two lines


def far_groups(largest: torch.Tensor) -> torch.Tensor:
    """Which groups lie far above their row's middle. largest: of each [rows, groups]."""
    bits = largest.view(torch.int32).long()
    middle = bits.sum(1) // (largest > 0).sum(1).clamp_min(1)
    return largest > FAR_ABOVE * middle.int().view(torch.float32)[:, None]


def rounded_rows(x: torch.Tensor) -> torch.Tensor:
    """x [rows, n_in] as a row's codes times the scales of their groups."""
    n_rows, n_in = x.shape
    groups = torch.zeros(n_rows, -(-n_in // GROUP) * GROUP)
    groups[:, :n_in] = x
    groups = groups.view(n_rows, -1, GROUP)
    largest = groups.abs().amax(-1)
    inverse = torch.tensor(127.0) / largest  # of a number torch would multiply by 1 / largest
    scaled = groups * inverse.where(largest > 0, 0.0)[..., None]
    codes = scaled.round()
    second = ((scaled - codes) * 254).round() / 254
    codes = torch.where(far_groups(largest)[..., None], codes.double() + second.double(), codes)
    return (codes * (largest.double() / 127)[..., None]).view(n_rows, -1)[:, :n_in]


def check(libraries: Libraries, quantized: ScaledWeight | Int4Weight, n_rows: int) -> None:
    n_out, n_in = quantized.codes.shape
    x, bias = rows(n_rows, n_in), torch.randn(n_out)
    rounded = rounded_rows(x)
    expected = rounded @ dense(quantized).double().T + bias.double()
    assert (rounded - x).abs().max() <= x.abs().max() / 127 / 2 * 1.001
    # Sums of a group's codes are exact, those of groups are fp32's.
    size = 1e-6 * (rounded.abs() @ dense(quantized).double().abs().T).max()
    for level, library in libraries.items():
        product = NativeLinear(library, quantized, bias, torch.float32)
        found = product(x)
        assert found.shape == (n_rows, n_out)
        error = (found.double() - expected).abs().max()
        assert error <= size, f"{level}: {error:.2e}"
        for i in range(n_rows):  # a row alone has the same bits
            assert torch.equal(product(x[i : i + 1])[0], found[i]), f"{level}: row {i}"


@each_row("shape", SHAPES)
def test_int8_products_are_exact_to_the_rounding_of_rows(
    libraries: Libraries, shape: tuple[int, int]
) -> None:
    for n_rows in (1, 7, 8):
        check(libraries, quantize_int8(weight(*shape)), n_rows)


@pytest.mark.parametrize("group", [32, 64])
def test_int8_products_by_groups_of_inputs_are_exact_to_the_rounding_of_rows(
    libraries: Libraries, group: int
) -> None:
    for n_out, n_in in ((64, 64), (5, 128), (130, 256)):
        for n_rows in (1, 5, 6):
            check(libraries, quantize_int8(weight(n_out, n_in), group), n_rows)


def test_int4_products_are_exact_to_the_rounding_of_rows(libraries: Libraries) -> None:
    for n_out, n_in, group in ((64, 64, 32), (5, 32, 32), (130, 256, 128), (70, 96, 96)):
        for n_rows in (1, 3, 4, 9):
            asymmetric = quantize_int4(weight(n_out, n_in), group)
            check(libraries, asymmetric, n_rows)
            check(libraries, replace(asymmetric, zero=asymmetric.zero * 0), n_rows)


def test_int4_without_zeros_takes_a_tenth_less_and_gives_the_same_bits(
    libraries: Libraries,
) -> None:
    with_zeros = quantize_int4(weight(128, 256), 32)
    without = replace(with_zeros, zero=with_zeros.zero * 0)
    # A single zero elsewhere has the others kept, and their products are the same.
    kept = replace(without, zero=without.zero.clone())
    kept.zero[127] = 1.0
    for library in libraries.values():
        small, large = (NativeLinear(library, one, None, torch.float32) for one in (without, kept))
        assert len(small.weight) == len(large.weight) * 18 // 20
        assert torch.equal(small(rows(5, 256))[:, :127], large(rows(5, 256))[:, :127])


@pytest.mark.parametrize("bits", [8, 4])
def test_groups_far_above_their_row_are_multiplied_as_finely_as_the_others(
    libraries: Libraries, bits: int
) -> None:
    x = rows(9, 512)
    x[::2, 40:50] *= 30
    x[1, 300] = 500.0
    exact = quantize_int8(weight(70, 512), 32) if bits == 8 else quantize_int4(weight(70, 512), 32)
    rounded = rounded_rows(x)
    is_far = far_groups(x.view(9, -1, GROUP).abs().amax(-1)).repeat_interleave(GROUP, 1)
    step = x.view(9, -1, GROUP).abs().amax(-1).repeat_interleave(GROUP, 1) / 127
    assert is_far.any() and not is_far.all()
    assert ((rounded - x).abs()[is_far] <= step[is_far] / 254 / 2 * 1.01).all()
    expected = rounded @ dense(exact).double().T
    for level, library in libraries.items():
        product = NativeLinear(library, exact, None, torch.float32)
        found = product(x)
        error = (found - expected).abs().amax(1)
        size = rounded.abs() @ dense(exact).double().abs().T
        assert (error <= 1e-6 * size.amax(1)).all(), level
        for i in range(9):  # with lines of others beside it, and without
            assert torch.equal(product(x[i : i + 1])[0], found[i]), f"{level}: row {i}"


def test_rows_beyond_those_taken_together_are_the_same(libraries: Libraries) -> None:
    check(libraries, quantize_int8(weight(70, 40)), 131)


def test_a_group_may_lie_far_above_its_row_in_every_row(libraries: Libraries) -> None:
    """As many lines as there is room for, in the first group and in the last."""
    x = rows(64, 256)
    x[:, 0] = -120.0
    x[:, 255] = 200.0
    assert far_groups(x.view(64, -1, GROUP).abs().amax(-1))[:, [0, -1]].all()
    for exact in (quantize_int8(weight(70, 256)), quantize_int4(weight(70, 256), 32)):
        for level, library in libraries.items():
            product = NativeLinear(library, exact, None, torch.float32)
            found = product(x)
            alone = torch.cat([product(row[None]) for row in x])
            assert torch.equal(found, alone), level
            error = (found - rounded_rows(x) @ dense(exact).double().T).abs().max()
            size = (rounded_rows(x).abs() @ dense(exact).double().abs().T).max()
            assert error <= 1e-6 * size, level


def test_the_largest_codes_do_not_overflow(libraries: Libraries) -> None:
    n_in = 65536
    codes = torch.full((3, n_in), 127, dtype=torch.int8)
    codes[1] = -128
    codes[2, ::2] = -127
    x = torch.ones(2, n_in)
    x[1] = -1
    expected = x.double() @ codes.double().T
    for library in libraries.values():
        product = NativeLinear(library, ScaledWeight(codes, torch.ones(3)), None, torch.float32)
        assert torch.allclose(product(x).double(), expected, rtol=1e-5, atol=1.0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_so_in_its_own_row(libraries: Libraries, value: float) -> None:
    x = rows(3, 64)
    x[1, 5] = value
    for library in libraries.values():
        quantized = quantize_int8(weight(64, 64))
        found = NativeLinear(library, quantized, None, torch.float32)(x)
        assert not found[1].isfinite().any()
        assert found[0].isfinite().all() and found[2].isfinite().all()


def test_zero_and_tiny_rows_are_zero(libraries: Libraries) -> None:
    x = torch.zeros(2, 64)
    x[1] = 1e-40
    for library in libraries.values():
        product = NativeLinear(library, quantize_int8(weight(64, 64)), None, torch.float32)
        assert product(x).abs().max() < 1e-30


def test_random_shapes_agree_between_instruction_sets(libraries: Libraries) -> None:
    chance = random.Random(5)
    for _ in range(20):
        n_out, n_in, n_rows = chance.randint(1, 200), chance.randint(1, 600), chance.randint(1, 9)
        check(libraries, quantize_int8(weight(n_out, n_in)), n_rows)


def test_weights_of_other_formats_are_not_taken() -> None:
    codes = torch.zeros(4, 96, dtype=torch.int8)
    assert is_native(ScaledWeight(codes, torch.ones(4)))
    assert not is_native(ScaledWeight(codes.to(torch.float8_e4m3fn), torch.ones(4)))
    assert not is_native(ScaledWeight(torch.zeros(1, 65537, dtype=torch.int8), torch.ones(1)))
    assert not is_native(quantize_int4(weight(4, 96), 8))
    assert not is_native(quantize_int8(weight(4, 96), 48))
    assert not is_native(weight(4, 96))
