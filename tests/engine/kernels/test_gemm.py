import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from engine.kernels.gemm_8bit import (  # noqa: E402
    dequantize_8bit,
    dequantize_8bit_reference,
    gemm_8bit,
    gemm_8bit_reference,
    pack_8bit,
)
from engine.kernels.gemm_int4 import (  # noqa: E402
    dequantize_int4,
    dequantize_int4_reference,
    gemm_int4,
    gemm_int4_reference,
    pack_int4,
    unpack_int4,
)
from engine.kernels.launch import choose_splits  # noqa: E402
from engine.load.packed import Int4Weight  # noqa: E402
from engine.load.quant import quantize_int4, quantize_int8  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def _products(gemm, reference, weight, x, bias, n_out):
    outputs = []
    for multiply in (gemm, reference):
        out = torch.full((weight.n_splits, len(x), n_out), torch.nan, device=DEVICE)
        multiply(x, weight, bias, out)
        outputs.append(out.sum(0))
    return outputs


@pytest.mark.parametrize(
    "n_out, n_in, group, rows, n_splits",
    [(70, 160, 32, 3, None), (33, 384, 128, 17, 3), (40, 48, 16, 1, 1)],
)
def test_int4_product_equals_its_reference(n_out, n_in, group, rows, n_splits) -> None:
    weight = pack_int4(quantize_int4(torch.randn(n_out, n_in, device=DEVICE), group),
                       n_splits=n_splits)  # fmt: skip
    x = torch.randn(rows, n_in, device=DEVICE).bfloat16()
    bias = torch.randn(n_out, device=DEVICE)
    found, expected = _products(gemm_int4, gemm_int4_reference, weight, x, bias, n_out)
    # Compiled, the kernel rounds its weights to bf16; the interpreter has fp32.
    tolerance = 1e-3 if DEVICE == "cpu" else 2**-8 * float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=tolerance)


def test_packing_int4_keeps_every_weight() -> None:
    weight = quantize_int4(torch.randn(10, 96), 32)  # an odd number of groups: half a pair is empty
    torch.testing.assert_close(unpack_int4(pack_int4(weight)), weight.dense())


def test_int4_groups_too_small_for_a_tile_are_refused() -> None:
    weight = Int4Weight(torch.zeros(4, 24, dtype=torch.int32), torch.ones(4, 3), torch.zeros(4, 3))
    with pytest.raises(ValueError, match="multiple of 16, found 8"):
        pack_int4(weight)


def _codes_8bit(kind: str, n_out: int, n_in: int):
    dense = torch.randn(n_out, n_in, device=DEVICE)
    if kind == "int8":
        weight = quantize_int8(dense)
        return weight.codes, weight.scale
    return dense.to(torch.float8_e4m3fn), torch.rand(n_out, device=DEVICE)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("n_out, n_in, rows, n_splits", [(70, 160, 3, 2), (33, 300, 17, None)])
def test_8bit_product_equals_its_reference(kind, n_out, n_in, rows, n_splits) -> None:
    weight = pack_8bit(*_codes_8bit(kind, n_out, n_in), n_splits=n_splits)
    x = torch.randn(rows, n_in, device=DEVICE).bfloat16()
    found, expected = _products(gemm_8bit, gemm_8bit_reference, weight, x, None, n_out)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_weights_written_out_equal_their_references() -> None:
    int4 = pack_int4(quantize_int4(torch.randn(40, 96, device=DEVICE), 32))
    eight = pack_8bit(*_codes_8bit("int8", 5, 33))
    for write, reference, weight, shape in (
        (dequantize_int4, dequantize_int4_reference, int4, (40, 96)),
        (dequantize_8bit, dequantize_8bit_reference, eight, (5, 33)),
    ):
        found = torch.full(shape, torch.nan, dtype=torch.bfloat16, device=DEVICE)
        expected = found.clone()
        write(weight, found)
        reference(weight, expected)
        torch.testing.assert_close(found, expected, rtol=2**-7, atol=0.0)


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    weight = pack_8bit(*_codes_8bit("int8", 8, 64))
    x = torch.randn(3, 64, device=DEVICE).bfloat16()
    alone = torch.empty(weight.n_splits, 1, 8, device=DEVICE)
    beside = torch.empty(weight.n_splits, 3, 8, device=DEVICE)
    gemm_8bit(x[:1].contiguous(), weight, None, alone)
    gemm_8bit(x, weight, None, beside)
    assert torch.equal(alone[:, 0], beside[:, 0])


@pytest.mark.parametrize("n_out, n_steps", [(4096, 32), (128256, 32), (640, 5), (6144, 1)])
def test_every_split_has_something_to_add_up(n_out: int, n_steps: int) -> None:
    n_splits = choose_splits(n_out, n_steps, torch.device("cpu"))
    per_split = -(-n_steps // n_splits)
    assert (n_splits - 1) * per_split < n_steps
