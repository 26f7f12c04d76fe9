"""Owns the reader's forward pass in the C library, over a pool of keys and values of its own."""

from __future__ import annotations

import ctypes
from ctypes import byref
from typing import Any

import numpy as np

from ..native.layout import GROUP, GROUPED8, LayerLayout, ModelLayout, ProductLayout, padded
from ..native.rows import StepRows, integers
from ..types import BLOCK_TOKENS, IntegrityError
from .arrays import Arrays, Floats, Shape


class NativePass:
    """The layers in int8, keys and values in bf16: bit for bit what an engine on a CPU computes."""

    def __init__(self, library: ctypes.CDLL, arrays: Arrays, shape: Shape, n_blocks: int) -> None:
        """n_blocks: of the pool, whose pages are taken as they are first written.

        Raises: CheckpointError.
        """
        self._library, self._shape = library, shape
        self.name = f"native ({library.level})"
        self._kept: list[np.ndarray[Any, Any]] = []  # what the structs point into
        cos, sin = (self._keep(table) for table in shape.turns())
        self._layers = (LayerLayout * shape.n_layers)(
            *(self._layer(arrays, i, cos, sin, n_blocks) for i in range(shape.n_layers))
        )
        embedding = arrays("model.embed_tokens.weight", shape.vocab, shape.hidden)
        self._model = ModelLayout(
            layers=self._layers, embedding=self._keep(_bf16(embedding)),
            norm=self._norm(arrays, "model.norm.weight"),
            n_layers=shape.n_layers, hidden=shape.hidden, inner=shape.inner,
            n_heads=shape.n_heads, n_kv_heads=shape.n_kv_heads, head_dim=shape.head_dim,
            vocab=shape.vocab, n_positions=shape.n_positions, n_blocks=n_blocks,
            eps=shape.eps, embedding_scale=1.0,
        )  # fmt: skip
        n_bytes = library.native_workspace_bytes(byref(self._model))
        self._model.workspace = self._keep(np.zeros(n_bytes, np.uint8))

    def _keep(self, array: np.ndarray[Any, Any]) -> int:
        self._kept.append(array)
        return int(array.ctypes.data)

    def _layer(self, arrays: Arrays, index: int, cos: int, sin: int, n_blocks: int) -> LayerLayout:
        shape, at = self._shape, f"model.layers.{index}."
        n_q, n_kv = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
        attention = [("q_proj", n_q), ("k_proj", n_kv), ("v_proj", n_kv)]
        qkv = [arrays(f"{at}self_attn.{k}.weight", n, shape.hidden) for k, n in attention]
        mlp = [arrays(f"{at}mlp.{k}.weight", shape.inner, shape.hidden)
               for k in ("gate_proj", "up_proj")]  # fmt: skip
        pool = np.zeros((n_blocks, BLOCK_TOKENS, 2, shape.n_kv_heads, shape.head_dim), np.uint16)
        return LayerLayout(
            qkv=self._product(np.concatenate(qkv)),
            output=self._product(arrays(f"{at}self_attn.o_proj.weight", shape.hidden, n_q)),
            gate_up=self._product(np.concatenate(mlp)),
            down=self._product(arrays(f"{at}mlp.down_proj.weight", shape.hidden, shape.inner)),
            input_norm=self._norm(arrays, f"{at}input_layernorm.weight"),
            post_norm=self._norm(arrays, f"{at}post_attention_layernorm.weight"),
            cos=cos, sin=sin, kv_codes=self._keep(pool),
        )  # fmt: skip

    def _norm(self, arrays: Arrays, name: str) -> int:
        whole = np.zeros(padded(self._shape.hidden), np.float32)
        whole[: self._shape.hidden] = arrays(name, self._shape.hidden)
        return self._keep(whole)

    def _product(self, weight: Floats) -> ProductLayout:
        """weight: [out, in], rounded as `engine.load.quant.quantize_int8` does by groups."""
        n_out, n_in = weight.shape
        grouped = weight.reshape(n_out, n_in // GROUP, GROUP)
        scale = np.maximum(np.abs(grouped).max(-1), np.float32(1e-10)) / np.float32(127)
        bits = _bf16(scale)
        stored = (bits.astype(np.uint32) << 16).view(np.float32)
        codes = np.rint(grouped / stored[..., None]).clip(-127, 127).astype(np.int8)
        layout = ProductLayout(n_in=n_in, n_out=n_out, group=GROUP, format=GROUPED8)
        packed = np.zeros(self._library.native_packed_bytes(byref(layout)), np.uint8)
        parts = (codes.ctypes.data, bits.ctypes.data, bits.ctypes.data, packed.ctypes.data)
        self._library.native_pack(byref(layout), *parts)
        layout.weights = self._keep(packed)
        return layout

    def states(self, rows: StepRows) -> Floats:
        """[wanted rows, hidden] after the last norm. Raises: IntegrityError."""
        hidden = self._shape.hidden
        x = np.empty((len(rows.tokens), padded(hidden)), np.float32)
        step = rows.lay_out(x.ctypes.data)
        arguments = byref(self._model), byref(step)
        states = np.empty((len(rows.wanted), hidden), np.float32)
        fault = self._library.native_forward(*arguments, 0, self._shape.n_layers)
        if not fault and rows.wanted:
            fault = self._library.native_states(
                *arguments, integers(rows.wanted), len(rows.wanted), states.ctypes.data
            )
        if fault:
            raise IntegrityError(f"expected a step within the reader's pool, found fault {fault}")
        return states


def _bf16(values: Floats) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """The bits of the nearest bf16, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
