"""Owns a step on the C library: weights and KV pool as `runner.Runner` has, layers in one call.

Rows do not know each other: one token decoded, eight verified and a prompt of hundreds go through
the same operations, so that their KV and logits are the same bits.
"""

import ctypes
import weakref
from collections.abc import Sequence as Items
from typing import Any

import torch
from torch import Tensor

from ..adapters import Change
from ..kv_cache import KvPool
from ..kv_format import KV_FORMATS
from ..layer import Layer, Norm, Rope
from ..linear import Linear
from ..load.loader import RopeConfig
from ..model import Abandoned, Decoder, Interrupted
from ..runner import Extension, Runner
from ..sequence import Sequence
from ..types import IntegrityError
from .layout import (
    MOST_HEAD,
    MOST_REFINED,
    MOST_THREADS,
    ChangeLayout,
    LayerLayout,
    ModelLayout,
    ProductLayout,
    padded,
)
from .linear import NativeLinear, as_float
from .rows import StepRows, integers

FAULTS = ("", "number of rows", "token", "position", "sequence or block table", "block", "layer")
KV_NAMES = ("plain", "int8")  # in the order of the library's KvFormat
KV_NUMBERS = {KV_FORMATS[name]: number for number, name in enumerate(KV_NAMES)}


def can_run(decoder: Decoder) -> bool:
    """Whether every product of the decoder is one of the library's."""
    products = [product for layer in decoder.layers for product in layer.products()]
    is_small = decoder.config.head_dim <= MOST_HEAD
    return is_small and all(isinstance(p, NativeLinear) for p in (*products, decoder.head))


class NativeRunner(Runner):
    """`Runner` with the decoder's own pass replaced by the library's."""

    def __init__(
        self, library: ctypes.CDLL, decoder: Decoder, pool: KvPool, end_ids: tuple[int, ...] = (),
        n_threads: int = 1,
    ) -> None:  # fmt: skip
        """decoder: one that `can_run` holds for, with the pool made for it."""
        super().__init__(decoder, pool, end_ids)
        self._library = library
        self.layers = f"native ({library.level})"
        self._kept: list[Tensor] = []  # what the structs point into, beside decoder and pool
        self._changes: Any = None  # of adapters, by layer and product
        self._model = self._lay_out()
        if n_threads > 1:
            self._model.crew = library.native_open_crew(min(n_threads, MOST_THREADS))
            weakref.finalize(self, library.native_close_crew, self._model.crew)
        n_bytes = library.native_workspace_bytes(ctypes.byref(self._model))
        self._model.workspace = self._keep(torch.zeros(n_bytes, dtype=torch.uint8))

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _lay_out(self) -> ModelLayout:
        decoder, config = self.decoder, self.decoder.config
        embedding = decoder.embedding
        if embedding.dtype != torch.bfloat16 or not embedding.is_contiguous():
            raise IntegrityError(f"expected a bf16 embedding, found {embedding.dtype}")
        if decoder.n_refined > MOST_REFINED:
            raise IntegrityError(
                f"expected at most {MOST_REFINED} refined logits, found {decoder.n_refined}"
            )
        n_positions, half = decoder.rope.cos.shape[0], config.head_dim // 2
        self._turns = dict[RopeConfig, tuple[int, int]]()
        for rope in config.ropes:
            if rope not in self._turns:
                exact = Rope(
                    rope, config.head_dim, n_positions, torch.float32, "cpu", decoder.context_length
                )
                cos, sin = exact.cos[:, 0, :half], exact.sin[:, 0, half:]
                self._turns[rope] = self._keep(cos.contiguous()), self._keep(sin.contiguous())
        self._layers = (LayerLayout * config.n_layers)(
            *(self._lay_out_layer(i, layer) for i, layer in enumerate(decoder.layers))
        )
        if (adapters := decoder.adapters) is not None:
            changes = [one for layer in adapters.changes for one in layer]
            self._changes = (ChangeLayout * len(changes))(*map(_change, changes))
        return ModelLayout(
            layers=self._layers, head=_product(decoder.head), embedding=embedding.data_ptr(),
            norm=self._weight(decoder.norm),
            n_layers=config.n_layers, hidden=config.hidden_size, inner=config.intermediate_size,
            n_heads=config.n_heads, n_kv_heads=config.n_kv_heads, head_dim=config.head_dim,
            vocab=config.vocab_size, n_positions=n_positions, n_blocks=self.pool.n_blocks,
            kv_format=KV_NUMBERS[type(self.pool.format)], n_refined=decoder.n_refined,
            is_gelu=config.activation != "silu",
            changes=self._changes, n_slots=0 if adapters is None else adapters.n_slots,
            eps=config.norm_eps, embedding_scale=config.embedding_scale,
        )  # fmt: skip

    def _lay_out_layer(self, index: int, layer: Layer) -> LayerLayout:
        codes, scales = self.pool.blocks[index], self.pool.scale_blocks[index]
        is_scaled = self.pool.format.is_scaled
        if not codes.is_contiguous() or (is_scaled and scales.dtype != torch.bfloat16):
            raise IntegrityError(f"expected a pool in bf16, found {scales.dtype}")
        cos, sin = self._turns[self.decoder.config.ropes[index]]
        return LayerLayout(
            qkv=_product(layer.qkv), output=_product(layer.output),
            gate_up=_product(layer.gate_up), down=_product(layer.down),
            input_norm=self._weight(layer.input_norm), post_norm=self._weight(layer.post_norm),
            q_norm=self._weight(layer.q_norm), k_norm=self._weight(layer.k_norm),
            output_norm=self._weight(layer.output_norm), down_norm=self._weight(layer.down_norm),
            cos=cos, sin=sin,
            kv_codes=codes.data_ptr(), kv_scales=scales.data_ptr() if is_scaled else None,
            window=layer.window,
        )  # fmt: skip

    def _weight(self, norm: Norm | None) -> int | None:
        return None if norm is None else self._keep(as_float(norm.weight, len(norm.weight)))

    def logits(self, states: Tensor) -> Tensor:
        """Compute fp32 [rows, vocab] of states fp32 [rows, hidden]; see `Decoder.logits`."""
        states = states.contiguous()
        logits = torch.empty(len(states), padded(self._model.vocab))
        self._library.native_logits(
            ctypes.byref(self._model), states.data_ptr(), len(states), logits.data_ptr()
        )
        return self.decoder.capped(logits[:, : self._model.vocab])

    @torch.inference_mode()
    def states(
        self, extensions: Items[Extension], interrupted: Interrupted | None = None
    ) -> Tensor | None:
        rows = _rows_of(extensions)
        x = torch.empty(len(rows.tokens), padded(self._model.hidden))
        step = rows.lay_out(x.data_ptr())
        arguments = ctypes.byref(self._model), ctypes.byref(step)
        n_layers = self._model.n_layers
        # In one call where nobody may interrupt, else with a question before every layer.
        ends = range(1, n_layers + 1) if interrupted is not None else (n_layers,)
        first = 0
        for end in ends:
            if interrupted is not None and interrupted():
                raise Abandoned
            self._require(self._library.native_forward(*arguments, first, end))
            first = end
        if not rows.wanted:
            return None
        if interrupted is not None and interrupted():
            raise Abandoned
        states = torch.empty(len(rows.wanted), self._model.hidden)
        wanted = integers(rows.wanted)
        self._require(
            self._library.native_states(*arguments, wanted, len(wanted), states.data_ptr())
        )
        return states

    @torch.inference_mode()
    def guess(self, sequence: Sequence, n_tokens: int) -> list[int]:
        """All in one call: between two tokens of a small model lie more lines of Python than work.

        Raises: OutOfMemory.
        """
        n_rows = sequence.n_pending
        sequence.reserve(n_rows + n_tokens - 1)
        rows = _rows_of([Extension(sequence, n_rows)])
        x = torch.empty(n_rows, padded(self._model.hidden))
        step, guesses = rows.lay_out(x.data_ptr()), integers([0] * n_tokens)
        state, logits = torch.empty(self._model.hidden), torch.empty(padded(self._model.vocab))
        self._require(
            self._library.native_guess(
                ctypes.byref(self._model), ctypes.byref(step), n_tokens,
                state.data_ptr(), logits.data_ptr(), guesses,
            )
        )  # fmt: skip
        sequence.tokens += guesses
        sequence.n_resident = len(sequence.tokens) - 1
        return list(guesses)

    def _require(self, fault: int) -> None:
        if fault:
            raise IntegrityError(
                f"expected a step within the model and its pool, found another {FAULTS[fault]}"
            )


def _rows_of(extensions: Items[Extension]) -> StepRows:
    rows = StepRows()
    for extension in extensions:
        sequence, n_logits = extension.sequence, extension.n_logits
        rows.add(extension.tokens, sequence.n_resident, sequence.table, n_logits, sequence.slot)
    return rows


def _change(change: Change) -> ChangeLayout:
    down, up, ranks = (part.data_ptr() for part in (change.down, change.up, change.ranks))
    return ChangeLayout(down=down, up=up, ranks=ranks, rank=change.down.shape[1])


def _product(product: Linear) -> ProductLayout:
    if not isinstance(product, NativeLinear):
        raise IntegrityError(f"expected a product of the library, found {type(product).__name__}")
    return product.product()
