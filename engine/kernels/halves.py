"""Owns a layer in few launches: its half around attention, and its half around the MLP.

Each kernel does what others of a step do apart: the last program of a tile finishes it (see
`product`). A norm is no pass of its own: it is linear but for one number a row, so whoever writes
the residual also leaves it times the next norm's weight, and the product that reads this multiplies
its sums by that number. For steps of few rows, whose time is launches and weights.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ..kv_cache import KvPool
from ..model import Decoder
from .attention import Partials, Pieces
from .launch import LEAST_ROWS, tile_outputs
from .product import MAX_ROW_TILES


@dataclass(frozen=True, slots=True)
class Residual:
    """The stream between two halves; whoever changes it writes all three.

    x: fp32 [rows, hidden]. h: [rows, hidden] in the compute dtype, x times the weight of the norm
    that comes next, not scaled. squares: fp32 [rows, parts], sums of squares of parts of x, which
    together give a row's scale.
    """

    x: Tensor
    h: Tensor
    squares: Tensor


class Halves:
    """Both halves of a decoder's layers, over one KV pool."""

    def __init__(
        self, decoder: Decoder, pool: KvPool, call: Any, partials: Partials, mixed: Tensor
    ) -> None:
        """partials, mixed: workspaces of attention, see `KernelDecoder`."""
        self.decoder, self.pool, self.call = decoder, pool, call
        self._partials, self._mixed = partials, mixed
        self._eps, device = decoder.config.norm_eps, mixed.device
        widest = max(p.out_features for layer in decoder.layers for p in layer.products())
        # One for each tile that programs share: a piece's KV head, some outputs of some rows.
        n_tickets = max(
            len(partials.sums) * decoder.config.n_kv_heads,
            MAX_ROW_TILES * triton.cdiv(widest, LEAST_ROWS),
        )
        self._tickets = torch.zeros(n_tickets, dtype=torch.int32, device=device)
        hidden = decoder.config.hidden_size
        self._n_squares = triton.cdiv(hidden, tile_outputs(hidden, device))

    def run(
        self, x: Tensor, positions: Tensor, slots: Tensor, pieces: Items[tuple[Pieces, int]],
        taps: Mapping[int, Tensor],
    ) -> None:  # fmt: skip
        """All layers; x: fp32 [rows, hidden], changed. The rest as in `KernelDecoder.forward`."""
        layers = self.decoder.layers
        norms = [layer.input_norm.weight for layer in layers] + [self.decoder.norm.weight]
        h = torch.empty(x.shape, dtype=self.decoder.dtype, device=x.device)
        residual = Residual(x, h, torch.empty(len(x), self._n_squares, device=x.device))
        self.call.add_norm(x, None, norms[0], self._eps, h, squares=residual.squares)
        for index, layer in enumerate(layers):
            if index in taps:
                taps[index].copy_(x)
            mixed = self.attention(layer, index, residual, positions, slots, pieces)
            self.mlp(layer, mixed, residual, norms[index + 1])

    def attention(
        self, layer: Any, index: int, residual: Residual, positions: Tensor, slots: Tensor,
        pieces: Items[tuple[Pieces, int]],
    ) -> Tensor:  # fmt: skip
        """What the rows' heads attend to: [rows, heads * head_dim]."""
        config, rope, pool = self.decoder.config, self.decoder.rope, self.pool
        h, product = residual.h, layer.qkv
        queries = h.new_empty(len(h), config.n_heads, config.head_dim)
        norms = [None if norm is None else norm.weight for norm in (layer.q_norm, layer.k_norm)]
        where = pool.blocks[index], pool.scale_blocks[index]
        self.call.project(
            h, residual.squares, product.streamed, product.bias, positions, slots, rope.cos,
            rope.sin, *norms, self._eps, queries, *where, self._sums(product, len(h)),
            self._tickets,
        )  # fmt: skip
        mixed = self._mixed[: len(h)]
        for some, max_rows in pieces:
            self.call.paged_attention(
                queries, *where, some, max_rows, layer.window, self._partials, mixed,
                tickets=self._tickets,
            )  # fmt: skip
        return mixed

    def mlp(self, layer: Any, mixed: Tensor, residual: Residual, next_norm: Tensor) -> None:
        """The rest of a layer: the residual takes in what attention gave, then the MLP's.

        next_norm: weight of the norm that comes after this layer.
        """
        h, gate_up = residual.h, layer.gate_up
        inner = h.new_empty(len(h), gate_up.out_features // 2)
        self._add(layer.output, mixed, residual, layer.post_norm.weight)
        self.call.gate_product(
            h, gate_up.streamed, gate_up.bias, residual.squares, self._eps, inner,
            self._sums(gate_up, len(h)), self._tickets,
        )  # fmt: skip
        self._add(layer.down, inner, residual, next_norm)

    def _add(self, product: Any, inputs: Tensor, residual: Residual, norm: Tensor) -> None:
        """The residual takes in a product, and is left for the norm that comes next."""
        self.call.add_product(
            inputs, product.streamed, product.bias, residual.x, norm, residual.h, residual.squares,
            self._sums(product, len(inputs)), self._tickets,
        )  # fmt: skip

    def _sums(self, product: Any, n_rows: int) -> Tensor:
        """Room for a product's partial sums."""
        n_splits = product.streamed.n_splits
        return torch.empty(n_splits, n_rows, product.out_features, device=self._mixed.device)
