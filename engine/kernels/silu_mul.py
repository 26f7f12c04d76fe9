"""Owns the gate of the MLP: silu(gate) * up, of the merged product's partial sums."""

import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import silu

BLOCK = 1024


@triton.jit(do_not_specialize=["n_rows"])
def _silu_mul(
    gate_up_ptr, out_ptr, n_rows, SIZE: tl.constexpr, BLOCK: tl.constexpr, N_SPLITS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    gate = tl.zeros((BLOCK,), tl.float32)
    up = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(N_SPLITS):
        part = gate_up_ptr + (split * n_rows + row) * 2 * SIZE + at
        gate += tl.load(part, mask=inside, other=0.0).to(tl.float32)
        up += tl.load(part + SIZE, mask=inside, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * SIZE + at, y.to(out_ptr.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor, out: Tensor) -> None:
    """out = silu(gate) * up. gate_up: [n_splits, rows, 2 size], gates first; out: [rows, size]."""
    rows, size = out.shape
    _silu_mul[(rows, triton.cdiv(size, BLOCK))](
        gate_up, out, rows, SIZE=size, BLOCK=BLOCK, N_SPLITS=gate_up.shape[0],
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip


def silu_mul_reference(gate_up: Tensor, out: Tensor) -> None:
    gate, up = gate_up.float().sum(0).chunk(2, -1)
    out.copy_(silu(gate) * up)
