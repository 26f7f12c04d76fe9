"""The assembly inside kernels, which no interpreter runs, worked through one by one."""

import itertools
import re

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton")

from engine.kernels.gemm_int4 import UNPACK  # noqa: E402
from engine.kernels.operands import FROM_FP8  # noqa: E402

WORD = 2**32 - 1


def _bf16(word: int) -> torch.Tensor:
    """The two bf16 of a word, lower first, as doubles."""
    halves = torch.tensor([word & 0xFFFF, word >> 16], dtype=torch.int32).to(torch.int16)
    return halves.view(torch.bfloat16).double()


def _word(pair: torch.Tensor) -> int:
    low, high = pair.bfloat16().view(torch.int16).tolist()
    return (low & 0xFFFF) | (high & 0xFFFF) << 16


def _permute(a: int, b: int, selector: int) -> int:
    chosen = a | b << 32
    return sum(
        (chosen >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i for i in range(4)
    )  # fmt: skip


def _look_up(a: int, b: int, c: int, table: int) -> int:
    bits = ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1) for i in range(32))
    return sum((table >> bit & 1) << i for i, bit in enumerate(bits))


INSTRUCTIONS = {
    "mov.b32": lambda a: a,
    "and.b32": lambda a, b: a & b,
    "shr.u32": lambda a, n: a >> n,
    "prmt.b32": _permute,
    "lop3.b32": _look_up,
    "fma.rn.bf16x2": lambda a, b, c: _word(_bf16(a) * _bf16(b) + _bf16(c)),
    "mul.rn.bf16x2": lambda a, b: _word(_bf16(a) * _bf16(b)),
}


def _run(assembly: str, n_out: int, inputs: list[int]) -> list[float]:
    """The bf16 numbers in the first `n_out` registers."""
    registers = {f"${n_out + i}": word for i, word in enumerate(inputs)}
    for line in re.findall(r"^\s*([a-z].*);", assembly, re.MULTILINE):
        name, target, *operands = re.split(r"[\s,]+", line)
        values = [registers[o] if o in registers else int(o, 0) for o in operands]
        registers[target] = INSTRUCTIONS[name](*values) & WORD
    return list(
        itertools.chain.from_iterable(_bf16(registers[f"${i}"]).tolist() for i in range(n_out))
    )


def test_every_fp8_becomes_the_same_bf16() -> None:
    codes = [code for code in range(256) if code & 0x7F != 0x7F]  # all but the two NaN
    expected = torch.tensor(codes, dtype=torch.uint8).view(torch.float8_e4m3fn).double().tolist()
    for start in range(0, len(codes) - 3, 3):  # every code in several places of a word
        word = int.from_bytes(bytes(codes[start : start + 4]), "little")
        assert _run(FROM_FP8.value, 2, [word]) == expected[start : start + 4]


def test_every_int4_becomes_its_scaled_weight() -> None:
    """Each code by its own word, whichever outputs the four bytes belong to."""
    scales = torch.linspace(0.0371, 1.5, 8).bfloat16()
    zeros = torch.linspace(-0.011, 0.25, 8).bfloat16()
    words = [_word(pair) for pair in torch.stack((scales, zeros), 1)]
    for first in range(0, 256, 4):
        codes = [first + (37 * i) % 4 for i in range(4)]
        found = _run(UNPACK.value, 4, [int.from_bytes(bytes(codes), "little"), *words])
        each = [(byte >> shift & 15) - 8 for shift in (0, 4) for byte in codes]
        weights = torch.tensor(each).double() * scales.double() + zeros.double()
        assert found == weights.bfloat16().double().tolist()
