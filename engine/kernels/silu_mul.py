"""Owns the gate of the MLP: silu(gate) * up, from the merged product's partial sums."""

from torch import Tensor
from torch.nn.functional import silu


def silu_mul(gate_up: Tensor, out: Tensor) -> None:
    """out = silu(gate) * up. gate_up: [n_splits, rows, 2 size], gates first; out: [rows, size]."""
    raise NotImplementedError


def silu_mul_reference(gate_up: Tensor, out: Tensor) -> None:
    gate, up = gate_up.float().sum(0).chunk(2, -1)
    out.copy_(silu(gate) * up)


def silu_mul_bytes(gate_up: Tensor, out: Tensor) -> int:
    raise NotImplementedError
