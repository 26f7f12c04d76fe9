"""Owns the decoder's forward pass on kernels: the same weights as `model`, over static buffers.

Every tensor's shape follows from the number of rows alone, and nothing is read back, so that a pass
can be captured in a graph. Partial sums of a product are added by whatever consumes them.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..kv_cache import KvPool
from ..layer import Rope
from ..load.packed import Int4Weight, ScaledWeight, Stored, Weight, dense, format_of
from ..load.quant import quantize
from ..model import Decoder
from . import attention, gemm_8bit, gemm_int4, kv_write, ngram, norm, rows, sample, silu_mul
from .attention import Partials, Pieces
from .launch import FP8_CAPABILITY, STREAMED_ROWS, capability

INT4_GROUP = 128  # inputs that share a scale: its word is 1/16 of their codes' bytes, 1/4 at 32
NO_TAPS: Mapping[int, Tensor] = {}
# Of each kernel the file that has it, and its reference beside it.
_KERNELS = {
    "guess": ngram, "paged_attention": attention, "gemm_8bit": gemm_8bit, "gemm_int4": gemm_int4,
    "kv_write": kv_write, "add_norm": norm, "place_rows": rows, "sample": sample,
    "silu_mul": silu_mul, "verify": rows,
}  # fmt: skip


class KernelSet:
    """The kernels, or their references, by name."""

    def __init__(self, is_reference: bool) -> None:
        self.is_reference = is_reference
        suffix = "_reference" if is_reference else ""
        found = {name: getattr(file, name + suffix) for name, file in _KERNELS.items()}
        self.call: Any = SimpleNamespace(**found)

    def make_linear(
        self, weight: Stored, bias: Tensor | None, *, dtype: torch.dtype, quant: str | None,
        device: str,
    ) -> "KernelLinear":  # fmt: skip
        """The product for a weight [out, in]; a dense one is quantized as `quant` says."""
        rounded: Weight = quantize(weight, quant, INT4_GROUP, device=device)
        if format_of(rounded) == "fp8" and capability(torch.device(device)) < FP8_CAPABILITY:
            rounded = dense(rounded)  # exact in bf16
        bias = None if bias is None else bias.to(device=device, dtype=dtype)
        return KernelLinear(self, rounded, bias, dtype, device)


class KernelLinear:
    """y = W x + bias; the result comes as partial sums [n_splits, rows, out_features]."""

    def __init__(
        self, kernels: KernelSet, weight: Weight, bias: Tensor | None, dtype: torch.dtype,
        device: str,
    ) -> None:  # fmt: skip
        self.bias, self.dtype = bias, dtype
        self._multiply: Any = None
        self.kept = format_of(weight)
        call = kernels.call
        match weight:
            case ScaledWeight(codes, scale):
                self.out_features = codes.shape[0]
                self.packed: Any = gemm_8bit.pack_8bit(codes.to(device), scale.float().to(device))
                self._multiply = call.gemm_8bit
            case Int4Weight(codes, scale, zero):
                self.out_features = codes.shape[0]
                parts = (part.to(device) for part in (codes, scale.float(), zero.float()))
                self.packed = gemm_int4.pack_int4(Int4Weight(*parts))
                self._multiply = call.gemm_int4
            case _:
                self.out_features = weight.shape[0]
                self.packed = weight.to(device=device, dtype=dtype).contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        if self._multiply is None:
            return linear(x, self.packed, self.bias)[None]
        n_rows, is_few = x.shape[0], x.shape[0] <= STREAMED_ROWS
        n_splits, dtype = (self.packed.n_splits, torch.float32) if is_few else (1, self.dtype)
        out = torch.empty(n_splits, n_rows, self.out_features, dtype=dtype, device=x.device)
        self._multiply(x, self.packed, self.bias, out)
        return out

    def write(self, x: Tensor, out: Tensor) -> None:
        """The same for few rows as one sum, in `out`: fp32 [rows, out_features].

        Dense weights too: bf16 has 8 bits, and at 16 likely tokens would tie.
        """
        if self._multiply is None:
            if x.is_cuda:
                torch.mm(x, self.packed.T, out_dtype=torch.float32, out=out)
            else:
                out.copy_(linear(x.float(), self.packed.float(), None))
        elif self.packed.n_splits == 1:
            self._multiply(x, self.packed, None, out[None])
        else:
            torch.sum(self(x), 0, out=out)


class KernelDecoder:
    """A decoder whose products are `KernelLinear`, over one KV pool."""

    def __init__(
        self, decoder: Decoder, pool: KvPool, kernels: KernelSet, *, n_rows: int, n_split: int,
        n_tokens: int,
    ) -> None:  # fmt: skip
        """Make room for steps of up to `n_rows` rows and sequences of up to `n_tokens`.

        n_split: most rows of a step whose attention is split over the KV.
        """
        config = decoder.config
        self.decoder, self.pool, self.call, self.config = decoder, pool, kernels.call, config
        assert isinstance(decoder.head, KernelLinear)  # the device made it
        self.head = decoder.head
        device = torch.device(decoder.device)
        self.partials = Partials.allocate(
            n_split, config.n_heads, config.head_dim, n_tokens, device
        )
        # Attention writes the rows of pieces alone: here the others keep finite numbers.
        self._mixed = torch.zeros(
            n_rows, config.n_heads * config.head_dim, dtype=decoder.dtype, device=device
        )

    def forward(
        self, tokens: Tensor, positions: Tensor, slots: Tensor,
        pieces: Items[tuple[Pieces, int]], wanted: Tensor, logits: Tensor,
        taps: Mapping[int, Tensor] = NO_TAPS,
    ) -> Tensor:  # fmt: skip
        """Run tokens int64 [rows]: the states [wanted, hidden]; writes logits fp32 [wanted, vocab].

        positions, slots: int32 [rows], see `kv_write`. pieces: all rows, with the most rows that a
        piece may have, apart for kinds of attention. wanted: int64, rows. logits: written.
        taps: by a number of layers, where the states behind them go: [rows, hidden].
        """
        decoder, config, call = self.decoder, self.config, self.call
        x = decoder.embedding[tokens].float()
        if config.embedding_scale != 1:
            x *= config.embedding_scale
        delta = self._run(x, positions, slots, pieces, taps)
        if len(decoder.layers) in taps:
            total = x if delta is None else x + delta.sum(0, dtype=torch.float32)
            taps[len(decoder.layers)].copy_(total)
        states = x.new_empty(len(wanted), x.shape[1], dtype=decoder.dtype)
        call.add_norm(x, delta, decoder.norm.weight, config.norm_eps, states, wanted)
        self.head.write(states, logits)
        return states

    def _run(
        self, x: Tensor, positions: Tensor, slots: Tensor, pieces: Items[tuple[Pieces, int]],
        taps: Mapping[int, Tensor],
    ) -> Tensor | None:  # fmt: skip
        """All layers; what is to be added to x comes back."""
        decoder, delta = self.decoder, None
        h = torch.empty(x.shape, dtype=decoder.dtype, device=x.device)
        for index, layer in enumerate(decoder.layers):
            norm = layer.input_norm.weight
            self.call.add_norm(x, delta, norm, self.config.norm_eps, h)
            if index in taps:
                taps[index].copy_(x)
            delta = self.advance(
                layer, index, layer.qkv(h), x, h, positions, slots, pieces, decoder.ropes[index]
            )
        return delta

    def advance(
        self, layer: Any, index: int, qkv: Tensor, x: Tensor, h: Tensor, positions: Tensor,
        slots: Tensor, pieces: Items[tuple[Pieces, int]], rope: Rope, *, since: int = 0,
    ) -> Tensor:  # fmt: skip
        """One layer, from its queries, keys and values on; what is to be added to x comes back.

        qkv: partial sums. x: fp32 [rows, hidden], the residual, changed. h: [rows, hidden],
        workspace. since: the first position that is seen.
        """
        queries = self.write_kv(layer, index, qkv, positions, slots, rope)
        mixed, pool = self._mixed[: len(x)], self.pool
        for some, max_rows in pieces:
            self.call.paged_attention(
                queries, pool.blocks[index], pool.scale_blocks[index], some, max_rows,
                layer.window, self.partials, mixed, since,
            )  # fmt: skip
        delta = layer.output(mixed)
        self.call.add_norm(x, delta, layer.post_norm.weight, self.config.norm_eps, h)
        gate_up = layer.gate_up(h)
        shape = gate_up.shape[1], gate_up.shape[2] // 2
        inner = torch.empty(shape, dtype=h.dtype, device=h.device)
        self.call.silu_mul(gate_up, inner)
        return layer.down(inner)

    def write_kv(
        self, layer: Any, index: int, qkv: Tensor, positions: Tensor, slots: Tensor, rope: Rope
    ) -> Tensor:
        """The queries [rows, heads, head_dim]; keys and values go into the pool's layer `index`."""
        config, pool = self.config, self.pool
        shape = (qkv.shape[1], config.n_heads, config.head_dim)
        queries = torch.empty(shape, dtype=self.decoder.dtype, device=qkv.device)
        norms = [None if norm is None else norm.weight for norm in (layer.q_norm, layer.k_norm)]
        self.call.kv_write(
            qkv, positions, slots, rope.cos, rope.sin, *norms, config.norm_eps, queries,
            pool.blocks[index], pool.scale_blocks[index],
        )  # fmt: skip
        return queries
