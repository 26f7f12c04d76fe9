"""Owns the way from stored codes to what `tl.dot` multiplies, where Triton's own is slow.

Hopper turns an fp8 into an fp16 at once, but an fp16 into a bf16 on the unit that serves one lane
where the others serve four: weights would wait for it rather than for memory.
"""

import triton
import triton.language as tl

from .launch import IS_COMPILED, OPERAND

# Four e4m3 numbers to bf16: sign, exponent and fraction go where bf16 has them, which is the number
# times 2^-120 (the difference of the exponents' biases; subnormals included), then times 2^120
# (and -0.0 added, which changes nothing: a product alone needs compute capability 9.0).
FROM_FP8 = tl.constexpr("""
{
    .reg .b32 low0, low1, bias, zero;
    mov.b32 zero, 0x80008000;
    mov.b32 bias, 0x7b807b80;
    prmt.b32 $0, $2, 0, 0x1404;
    prmt.b32 $1, $2, 0, 0x3424;
    shr.u32 low0, $0, 4;
    shr.u32 low1, $1, 4;
    and.b32 low0, low0, 0x07f007f0;
    and.b32 low1, low1, 0x07f007f0;
    lop3.b32 $0, $0, 0x80008000, low0, 0xea;
    lop3.b32 $1, $1, 0x80008000, low1, 0xea;
    fma.rn.bf16x2 $0, $0, bias, zero;
    fma.rn.bf16x2 $1, $1, bias, zero;
}
""")

# Adding and taking away 1.5 * 2^23 rounds an fp32 below 2^22 to the nearest even integer, as torch
# does; Triton has no rounding of its own that the interpreter knows too.
ROUNDER = tl.constexpr(12582912.0)


@triton.jit
def to_operand(codes):
    """The numbers as operands; exact for int8, fp8 (NaN excepted) and bf16."""
    if IS_COMPILED and codes.dtype == tl.float8e4nv:
        operand = tl.inline_asm_elementwise(
            FROM_FP8, "=&r,=&r,r", [codes.to(tl.uint8, bitcast=True)], dtype=tl.bfloat16,
            is_pure=True, pack=4,
        )  # fmt: skip
    else:
        operand = codes.to(OPERAND)
    return operand


@triton.jit
def load_inputs(x, base, k, N_IN: tl.constexpr, STEP: tl.constexpr):
    """Inputs base + k of some rows, as operands; where whole steps fit, without masks.

    x: pointers [k, rows] to the rows' first inputs. STEP: inputs from one of them to the next.
    """
    if N_IN % STEP == 0:
        inputs = tl.load(x + base)
    else:
        inputs = tl.load(x + base, mask=(base + k < N_IN)[:, None], other=0.0)
    return inputs.to(OPERAND)
