"""Products of many rows with eight bits on both sides: the reference's bits, in any company."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from engine.engine import Engine  # noqa: E402
from engine.kernels import gemm_8bit as of_8bit  # noqa: E402
from engine.kernels.decoder import KernelLinear, KernelSet  # noqa: E402
from engine.kernels.gemm_8bit import (  # noqa: E402
    Packed8bit,
    gemm_int8,
    gemm_int8_reference,
    pack_8bit,
    round_rows,
    round_rows_reference,
)
from engine.kernels.launch import STREAMED_ROWS, wide_rows  # noqa: E402
from engine.load.quant import quantize_int8  # noqa: E402
from engine.runner import Extension  # noqa: E402
from engine.sequence import borrowed  # noqa: E402
from engine.types import ConfigError, EngineConfig  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def _rounded(x: torch.Tensor, rounds: Callable[..., None] = round_rows_reference):
    codes = torch.full(x.shape, -128, dtype=torch.int8, device=DEVICE)
    scale = torch.full((len(x),), torch.nan, device=DEVICE)
    rounds(x, codes, scale)
    return codes, scale


def _rows(n_rows: int, n_in: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounded rows; behind them codes and scales that a tile reading too far would meet."""
    codes = torch.full((n_rows + 256, n_in), 127, dtype=torch.int8, device=DEVICE)
    scale = torch.full((n_rows + 256,), torch.nan, device=DEVICE)
    codes[:n_rows], scale[:n_rows] = _rounded(torch.randn(n_rows, n_in, device=DEVICE).bfloat16())
    return codes[:n_rows], scale[:n_rows]


def _weight(n_out: int, n_in: int) -> Packed8bit:
    weight = quantize_int8(torch.randn(n_out, n_in, device=DEVICE))
    return pack_8bit(weight.codes, weight.scale)


@pytest.mark.parametrize("n_in", [96, 300])
def test_rows_are_rounded_to_the_same_codes(n_in: int) -> None:
    x = torch.randn(5, n_in, device=DEVICE).bfloat16()
    x[1] = 0
    x[2] = torch.arange(n_in, device=DEVICE) % 128 - 0.5  # half-way between two codes
    x[2, 0] = 127
    x[3, 7] = 3e38
    found, expected = _rounded(x, round_rows), _rounded(x)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    assert int(found[0].min()) >= -127 and not found[0][1].any()
    worst = ((found[0] * found[1][:, None] - x.float()).abs() / found[1][:, None]).amax(1)
    assert (worst <= 0.5 + 1e-4).all()


@pytest.mark.parametrize("tile_rows", [128, 256])
@pytest.mark.parametrize("n_out, n_in, rows", [(70, 160, 129), (130, 256, 300), (33, 128, 257)])
def test_a_product_has_its_references_bits(n_out, n_in, rows, tile_rows, monkeypatch) -> None:
    monkeypatch.setattr(of_8bit, "wide_rows", lambda *_, **__: tile_rows)
    (x, scale), weight = _rows(rows, n_in), _weight(n_out, n_in)
    for bias in (None, torch.randn(n_out, device=DEVICE)):
        outputs = []
        for multiply in (gemm_int8, gemm_int8_reference):
            out = torch.full((1, rows, n_out), torch.nan, device=DEVICE)
            multiply(x, scale, weight, bias, out)
            outputs.append(out)
        if bias is None or DEVICE == "cpu":
            assert torch.equal(*outputs)
        else:  # compiled, scale and bias are one operation
            torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-4)


def test_a_row_has_the_same_bits_in_any_company_and_tile(monkeypatch) -> None:
    (x, scale), weight = _rows(STREAMED_ROWS + 140, 192), _weight(40, 192)
    outputs = []
    for n_rows, tile_rows in ((len(x), 256), (len(x), 128), (STREAMED_ROWS + 1, 256)):
        monkeypatch.setattr(of_8bit, "wide_rows", lambda *_, rows=tile_rows, **__: rows)
        out = torch.empty(1, n_rows, 40, device=DEVICE)
        gemm_int8(x[:n_rows], scale[:n_rows], weight, None, out)
        outputs.append(out[0, : STREAMED_ROWS + 1])
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[1], outputs[2])


def test_of_two_tiles_that_take_as_long_the_larger_is_taken() -> None:
    device = torch.device("cpu")  # 132 processors, as an H200 has
    assert wide_rows(24576, 512, device, unpacking_rows=0) == 256
    assert wide_rows(4096, 512, device, unpacking_rows=0) == 128  # 64 of 256 would leave half idle


def _linear(quant: str, rounds_inputs: bool) -> KernelLinear:
    kernels = KernelSet(is_reference=True, rounds_inputs=rounds_inputs)
    weight = torch.randn(48, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    return kernels.make_linear(weight, None, dtype=torch.bfloat16, quant=quant, device=DEVICE)


@pytest.mark.parametrize("quant", ["int8", "int4", "fp8"])
def test_only_many_rows_that_meet_int8_weights_are_rounded(quant: str) -> None:
    plain, rounding = _linear(quant, False), _linear(quant, True)
    x = torch.randn(STREAMED_ROWS + 1, 128, device=DEVICE).bfloat16()
    assert torch.equal(plain(x[:-1]), rounding(x[:-1]))
    many = plain(x).float(), rounding(x).float()
    assert torch.equal(*many) == (quant != "int8")
    torch.testing.assert_close(*many, rtol=0, atol=0.02 * float(many[0].abs().max()))


def _keys(engine: Engine, prompt: list[int], chunk: int) -> torch.Tensor:
    """Keys and values of a prompt that is read in chunks of so many rows."""
    with borrowed(engine.pool, engine.tree, list(prompt)) as sequence:
        while sequence.n_pending:
            n = min(chunk, sequence.n_pending)
            engine.runner.run([Extension(sequence, n)])
            sequence.n_resident += n
        layers = [blocks[sequence.table].float().flatten(0, 1) for blocks in engine.pool.blocks]
        return torch.stack(layers)[:, : len(prompt)]


PROMPT = [5 + (i * i * 7) % 90 for i in range(300)]


def test_where_chunks_end_moves_keys_by_no_more_than_rounding(tiny_model: Path) -> None:
    """Chunks of up to 128 rows have inputs in bf16, larger ones in eight bits."""

    def engine(inputs: str) -> Engine:
        config = EngineConfig(
            device="reference", quant="int8", kv_tokens=1024, max_branches=2, context_length=400,
            prompt_activations=inputs, poison=True,
        )  # fmt: skip
        return Engine.load(tiny_model, config)

    plain, rounding = engine("bf16"), engine("int8")
    few, many = _keys(rounding, PROMPT, 100), _keys(rounding, PROMPT, 300)
    shorter = _keys(rounding, PROMPT[:200], 200)
    assert torch.equal(few, _keys(plain, PROMPT, 100))
    size = float(few.norm())
    assert 1e-4 < float((few - many).norm()) / size < 0.03
    # Of the same many rows, or others: what follows a token does not move its keys.
    assert float((many[:, :200] - shorter).norm()) / size < 0.005


def test_eight_bits_of_a_prompt_are_refused_where_nothing_has_them() -> None:
    with pytest.raises(ConfigError, match="expected bf16 or int8, found 'int4'"):
        EngineConfig(device="reference", quant="int8", prompt_activations="int4")
    for device, quant in (("cpu", "int8"), ("reference", "fp8"), ("reference", None)):
        with pytest.raises(ConfigError, match="expected a GPU and quant int8 with int8"):
            EngineConfig(device=device, quant=quant, prompt_activations="int8")
