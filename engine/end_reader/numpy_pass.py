"""Owns the reader's forward pass in numpy: for a machine that has no C library of ours.

Some fifteen times slower than the library, and as right.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from ..native.rows import StepRows
from ..types import BLOCK_TOKENS
from .arrays import Arrays, Floats, Shape

Places: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class NumpyPass:
    """The layers in fp32, as stored."""

    name = "numpy"

    def __init__(self, arrays: Arrays, shape: Shape, n_blocks: int) -> None:
        """n_blocks: of the pool. Raises: CheckpointError."""
        self._shape = shape
        self._embedding = arrays("model.embed_tokens.weight", shape.vocab, shape.hidden)
        self._norm = arrays("model.norm.weight", shape.hidden)
        self._cos, self._sin = (table[:, None] for table in shape.turns())
        self._layers = [self._layer(arrays, f"model.layers.{i}.") for i in range(shape.n_layers)]
        size = (shape.n_layers, n_blocks * BLOCK_TOKENS, 2, shape.n_kv_heads, shape.head_dim)
        self._pool = np.zeros(size, np.float32)

    def _layer(self, arrays: Arrays, at: str) -> dict[str, Floats]:
        shape = self._shape
        n_q, n_kv = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
        sizes = {
            "self_attn.q_proj": (n_q, shape.hidden), "self_attn.k_proj": (n_kv, shape.hidden),
            "self_attn.v_proj": (n_kv, shape.hidden), "self_attn.o_proj": (shape.hidden, n_q),
            "mlp.gate_proj": (shape.inner, shape.hidden),
            "mlp.up_proj": (shape.inner, shape.hidden),
            "mlp.down_proj": (shape.hidden, shape.inner),
            "input_layernorm": (shape.hidden,), "post_attention_layernorm": (shape.hidden,),
        }  # fmt: skip
        return {name: arrays(f"{at}{name}.weight", *size) for name, size in sizes.items()}

    def states(self, rows: StepRows) -> Floats:
        """[wanted rows, hidden] after the last norm."""
        x: Floats = self._embedding[rows.tokens]
        positions = np.array(rows.positions)
        cos, sin = self._cos[positions], self._sin[positions]
        spans = [np.flatnonzero(np.array(rows.sequences) == s)
                 for s in range(len(rows.table_starts) - 1)]  # fmt: skip
        slots = [self._slots(rows, s) for s in range(len(spans))]
        for layer, pool in zip(self._layers, self._pool, strict=True):
            h = self._normed(x, layer["input_layernorm"])
            q, k, v = (self._heads(h @ layer[f"self_attn.{part}_proj"].T) for part in "qkv")
            q, k = _turned(q, cos, sin), _turned(k, cos, sin)
            heard = np.empty_like(q)
            for span, slot in zip(spans, slots, strict=True):
                pool[slot[positions[span]], 0], pool[slot[positions[span]], 1] = k[span], v[span]
                heard[span] = _attended(q[span], pool[slot], positions[span])
            x = x + heard.reshape(len(x), -1) @ layer["self_attn.o_proj"].T
            h = self._normed(x, layer["post_attention_layernorm"])
            gate = h @ layer["mlp.gate_proj"].T
            inner = gate / (1.0 + np.exp(-gate)) * (h @ layer["mlp.up_proj"].T)
            x = x + inner @ layer["mlp.down_proj"].T
        return self._normed(x[rows.wanted], self._norm)

    def _slots(self, rows: StepRows, sequence: int) -> Places:
        """Return where in the pool the sequence's tokens lie, up to the last of its rows."""
        first, last = rows.table_starts[sequence : sequence + 2]
        blocks = np.array(rows.tables[first:last], np.int64)
        of_sequence = [p for p, s in zip(rows.positions, rows.sequences, strict=True)
                       if s == sequence]  # fmt: skip
        places = blocks[:, None] * BLOCK_TOKENS + np.arange(BLOCK_TOKENS)
        return places.reshape(-1)[: of_sequence[-1] + 1]

    def _heads(self, x: Floats) -> Floats:
        return x.reshape(len(x), -1, self._shape.head_dim)

    def _normed(self, x: Floats, weight: Floats) -> Floats:
        scale = 1.0 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self._shape.eps))
        normed: Floats = x * scale * weight
        return normed


def _turned(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Rotary embedding; x [rows, heads, head_dim] with halves as partners."""
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate((low * cos - high * sin, high * cos + low * sin), -1)


def _attended(q: Floats, pool: Floats, positions: Places) -> Floats:
    """q [rows, heads, d] over pool [tokens, k|v, kv heads, d], each up to its own position."""
    n_rows, n_heads, d = q.shape
    n_kv = pool.shape[2]
    grouped = q.reshape(n_rows, n_kv, n_heads // n_kv, d)
    scores = np.einsum("rghd,tgd->rght", grouped, pool[:, 0], optimize=True) / np.sqrt(
        np.float32(d)
    )
    later = np.arange(len(pool)) > positions[:, None]
    scores[np.broadcast_to(later[:, None, None], scores.shape)] = -np.inf
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    heard: Floats = np.einsum("rght,tgd->rghd", scores, pool[:, 1], optimize=True)
    return heard.reshape(n_rows, n_heads, d)
