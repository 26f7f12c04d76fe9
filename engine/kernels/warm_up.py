"""Owns the compilation of every kernel variant that a model can need, before it is ready."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .gemm_8bit import Packed8bit
from .gemm_int4 import PackedInt4


@dataclass(frozen=True, slots=True)
class Shapes:
    """What of a model the kernels are specialized for."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    windows: tuple[int, ...]
    qk_norm: bool
    dtype: torch.dtype
    kv_format: str
    n_positions: int
    max_blocks: int  # width of a block table
    query_rows: tuple[int, ...] = (1, 4, 8)  # values of max_rows that decode steps use


def warm_up(
    shapes: Shapes, weights: Sequence[PackedInt4 | Packed8bit], device: torch.device
) -> int:
    """Launch every variant once on scratch tensors; returns how many calls were made.

    Call `launch.forbid_compilation` afterwards, and report ready only then.
    """
    raise NotImplementedError
