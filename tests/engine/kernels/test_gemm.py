import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from engine.kernels import gemm_8bit as of_8bit  # noqa: E402
from engine.kernels import gemm_int4 as of_int4  # noqa: E402
from engine.kernels import launch  # noqa: E402
from engine.kernels.decoder import KernelSet  # noqa: E402
from engine.kernels.gemm_8bit import WIDE_STAGE, gemm_8bit, gemm_8bit_reference, pack_8bit  # noqa: E402
from engine.kernels.gemm_int4 import (  # noqa: E402
    gemm_int4,
    gemm_int4_reference,
    pack_int4,
    unpack_int4,
)
from engine.kernels.launch import STREAMED_ROWS, WideStage, choose_splits, wide_rows  # noqa: E402
from engine.load.packed import Int4Weight, ScaledWeight  # noqa: E402
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
    weight = pack_int4(quantize_int4(torch.randn(n_out, n_in, device=DEVICE), group))
    weight = replace(weight, n_splits=n_splits or weight.n_splits)
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
    weight = pack_8bit(*_codes_8bit(kind, n_out, n_in))
    weight = replace(weight, n_splits=n_splits or weight.n_splits)
    x = torch.randn(rows, n_in, device=DEVICE).bfloat16()
    found, expected = _products(gemm_8bit, gemm_8bit_reference, weight, x, None, n_out)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def _weight(kind: str, n_out: int, n_in: int, group: int = 32):
    """A packed weight, its product and the reference of that."""
    if kind == "int4":
        dense = torch.randn(n_out, n_in, device=DEVICE)
        return pack_int4(quantize_int4(dense, group)), gemm_int4, gemm_int4_reference
    return pack_8bit(*_codes_8bit(kind, n_out, n_in)), gemm_8bit, gemm_8bit_reference


def _many(n_rows: int, n_in: int) -> torch.Tensor:
    """Rows with NaN behind them, which a tile that reads too far would meet."""
    memory = torch.full((n_rows + 256, n_in), torch.nan, device=DEVICE).bfloat16()
    memory[:n_rows] = torch.randn(n_rows, n_in, device=DEVICE)
    return memory[:n_rows]


@pytest.mark.parametrize("tile_rows", [128, 256])
@pytest.mark.parametrize(
    "kind, n_out, n_in, group, rows",
    [
        ("int4", 70, 160, 32, 129),  # half a pair is empty, and tiles reach past both ends
        ("int4", 130, 256, 128, 300),
        ("int8", 130, 96, 0, 257),
        ("fp8", 33, 128, 0, 200),
    ],
)
def test_a_product_of_many_rows_is_within_one_place_of_its_reference(
    kind, n_out, n_in, group, rows, tile_rows, monkeypatch
) -> None:
    for module in (of_int4, of_8bit):
        monkeypatch.setattr(module, "wide_rows", lambda *_: tile_rows)
    weight, gemm, reference = _weight(kind, n_out, n_in, group)
    x, bias = _many(rows, n_in), torch.randn(n_out, device=DEVICE)
    found = torch.full((1, rows, n_out), torch.nan, dtype=torch.bfloat16, device=DEVICE)
    expected = torch.full((1, rows, n_out), torch.nan, device=DEVICE)
    gemm(x, weight, bias, found)
    reference(x, weight, bias, expected)
    # Of bf16, at the size of what was added up: a sum near zero has the errors of its terms.
    places = expected.abs().clamp_min(float(expected.abs().mean())) * 2**-7
    if DEVICE != "cpu" and kind == "int4":
        places *= 2  # there the weights themselves are rounded to bf16
    assert ((found.float() - expected).abs() <= places).all()


def _product_in_order(a: np.ndarray, b: np.ndarray, dtype: np.dtype | None = None) -> np.ndarray:
    """a @ b, each sum from its first term to its last."""
    a, b = a.astype(dtype, copy=False), b.astype(dtype, copy=False)
    terms = (a[:, k : k + 1] * b[k] for k in range(a.shape[1]))
    return functools.reduce(np.add, terms)


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_a_row_of_many_does_not_depend_on_the_rows_beside_it(kind: str, monkeypatch) -> None:
    """Nor on how many rows a tile has."""
    # The interpreter multiplies by BLAS, whose sums take another order for other numbers of rows,
    # on some CPUs (OPENBLAS_CORETYPE=Haswell shows it): what is asked here is our own order.
    monkeypatch.setattr(np, "matmul", _product_in_order)
    weight, gemm, _ = _weight(kind, 40, 128)
    x = _many(STREAMED_ROWS + 140, 128)
    outputs = []
    for n_rows, tile_rows in ((len(x), 256), (len(x), 128), (STREAMED_ROWS + 1, 128)):
        for module in (of_int4, of_8bit):
            monkeypatch.setattr(module, "wide_rows", lambda *_, rows=tile_rows: rows)
        out = torch.empty(1, n_rows, 40, device=DEVICE)
        gemm(x[:n_rows], weight, None, out)
        outputs.append(out[0, : STREAMED_ROWS + 1])
    assert torch.equal(outputs[0], outputs[1])
    torch.testing.assert_close(outputs[1], outputs[2], rtol=1e-6, atol=1e-5)


def test_tiles_of_many_rows_are_as_large_as_all_processors_have_work() -> None:
    device = torch.device("cpu")  # 132 processors, as an H200 has
    assert wide_rows(24576, 512, device, WIDE_STAGE) == 256  # 384 tiles: three rounds, nearly full
    assert wide_rows(4096, 512, device, WIDE_STAGE) == 128  # 64 of 256 would leave half idle


@pytest.mark.parametrize(
    ("capability", "kib", "stages"),
    [(86, 99, (128, 4, 128, 2)), (80, 163, (128, 4, 128, 3)), (120, 99, (256, 2, 128, 2))],
)
def test_tiles_of_many_rows_fit_the_shared_memory_and_registers_of_the_card(
    capability, kib, stages, monkeypatch
) -> None:
    """Of an RTX 3090, 4090 (as 8.6), A10, L4 or L40S; of an A100; of an RTX 5090."""
    monkeypatch.setattr(launch, "shared_bytes", lambda device: kib << 10)
    monkeypatch.setattr(launch, "DEFAULT_CAPABILITY", capability)
    device, found = torch.device("cpu"), []
    for stage, most in ((WIDE_STAGE, 4), (WideStage(row_bytes=256, output_bytes=64), 3)):
        rows = wide_rows(24576, 512, device, stage)
        found += [rows, min(most, stage.fitting(rows, device))]
    assert tuple(found) == stages


@pytest.mark.parametrize(("capability", "kept"), [(86, "dense"), (89, "fp8")])
def test_a_card_that_cannot_read_fp8_has_a_checkpoint_s_numbers_in_bf16(
    capability: int, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "DEFAULT_CAPABILITY", capability)
    weight = ScaledWeight(*_codes_8bit("fp8", 64, 128))
    make = KernelSet(is_reference=True).make_linear
    made = make(weight, None, dtype=torch.bfloat16, quant="int8", device=DEVICE)
    assert made.kept == kept
    x = torch.randn(3, 128, device=DEVICE).bfloat16()
    expected = x.float() @ weight.dense().float().T
    torch.testing.assert_close(made(x).sum(0).float(), expected, rtol=0.02, atol=0.5)


@pytest.mark.parametrize("quant", [None, "int8"])
def test_what_a_head_writes_is_not_rounded_to_bf16(quant: str | None) -> None:
    kernels = KernelSet(is_reference=True)
    weight = torch.randn(64, 256, device=DEVICE).bfloat16()
    head = kernels.make_linear(weight, None, dtype=torch.bfloat16, quant=quant, device=DEVICE)
    x = torch.randn(3, 256, device=DEVICE).bfloat16()
    found = torch.full((3, 64), torch.nan, device=DEVICE)
    head.write(x, found)
    codes = quantize_int8(weight).dense() if quant else weight.float()
    torch.testing.assert_close(found, x.float() @ codes.T, rtol=1e-5, atol=1e-4)
    assert (found != found.bfloat16().float()).float().mean() > 0.9


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
