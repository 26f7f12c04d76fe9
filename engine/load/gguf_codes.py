"""Owns the four-bit formats of GGUF as what they are: codes with a scale and a minimum a group.

No code is rounded again: the weight of a file in Q4_0, Q4_1 or Q4_K is the int4 weight of this
engine, in groups of 32, whose numbers are those that dequantization gives. (Products that compute
in bf16 keep scales and minima in bf16, as they do for every int4 weight.)
Source: ggml's block_q4_0, block_q4_1 and block_q4_K.
"""

from __future__ import annotations

import numpy as np
import torch

from .packed import Int4Weight

GROUP = 32  # inputs that share a scale and a minimum, in all of them
# Of more bits than int4 has, or of codes that stand for no even steps: rounding them to four would
# not be the file's own model any more.
MORE_BITS = ("Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS")
SUPER_BLOCK = 256  # inputs of a Q4_K block: eight groups


def int4_weight(format_name: str, raw: np.ndarray, shape: tuple[int, int]) -> Int4Weight:
    """A matrix [out, in] of one of `FOUR_BITS`. raw: its bytes, uint8 [blocks, bytes of one]."""
    with np.errstate(all="ignore"):  # a hostile scale makes numbers, not warnings
        scale, low, codes = FOUR_BITS[format_name](raw)
        zero = low + 8 * scale  # w = (codes - 8) * scale + zero
    n_out, n_groups = shape[0], shape[1] // GROUP
    return Int4Weight(
        torch.from_numpy(codes.astype(np.int32).reshape(shape)),
        torch.from_numpy(scale.reshape(n_out, n_groups)),
        torch.from_numpy(zero.reshape(n_out, n_groups)),
    )


def _half(raw: np.ndarray, first: int) -> np.ndarray:
    """An fp16 of each block, as fp32 [blocks]."""
    return np.ascontiguousarray(raw[:, first : first + 2]).view(np.float16)[:, 0].astype(np.float32)


def _nibbles(raw: np.ndarray, first: int) -> np.ndarray:
    """Codes of 16 bytes a block: low halves of the bytes, then high halves."""
    return np.concatenate((raw[:, first:] & 15, raw[:, first:] >> 4), axis=1)


def _q4_0(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """w = scale * (code - 8)."""
    scale = _half(raw, 0)
    return scale, -8 * scale, _nibbles(raw, 2)


def _q4_1(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """w = scale * code + minimum."""
    return _half(raw, 0), _half(raw, 2), _nibbles(raw, 4)


def _q4_k(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eight groups a block; their scales and minima are six bits times the block's own."""
    packed = raw[:, 4:16].reshape(-1, 3, 4)
    first, second, both = packed[:, 0], packed[:, 1], packed[:, 2]
    scales = np.concatenate((first & 63, (both & 15) | (first >> 2 & 48)), axis=1)
    minima = np.concatenate((second & 63, (both >> 4) | (second >> 2 & 48)), axis=1)
    scale = _half(raw, 0)[:, None] * scales.astype(np.float32)
    low = -_half(raw, 2)[:, None] * minima.astype(np.float32)
    quarters = raw[:, 16:].reshape(-1, 4, GROUP)  # two groups of 32 in each 32 bytes
    codes = np.stack((quarters & 15, quarters >> 4), axis=2).reshape(len(raw), SUPER_BLOCK)
    return scale, low, codes


FOUR_BITS = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k}  # scales, minima, codes by format
