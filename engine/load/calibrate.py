"""Owns the activation-aware scale search that makes int4 weights good enough to serve.

Inputs that are large on real text deserve finer weights. Each input channel of a product is scaled
up before rounding and the inverse is folded into what comes before it (a norm's weight, the rows of
the up projection), which changes nothing but where the rounding errors fall.
Source: Lin et al., "AWQ" (arXiv:2306.00978), without its clipping step.
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linear import DenseLinear, Linear
from ..model import Decoder
from ..prefix_tree import PrefixTree
from ..runner import Extension, Runner
from ..sequence import borrowed
from ..types import UnsupportedQuantization, n_blocks_for
from .loader import Checkpoint
from .quant import quantize_int4

N_EXPONENTS = 10  # candidates for how strongly scales follow the activations: 0, 0.1, ... 1


@dataclass(frozen=True, slots=True)
class LayerScales:
    """Factors on the input channels of three products of a layer: fp32 [in] each."""

    qkv: Tensor
    gate_up: Tensor
    down: Tensor


class _Recorder:
    """Stands in for a product and keeps what went into it."""

    def __init__(self, product: Linear) -> None:
        if not isinstance(product, DenseLinear):
            raise UnsupportedQuantization(
                "expected dense weights to calibrate, found a quantized checkpoint"
            )
        self.product, self.out_features, self.kept = product, product.out_features, product.kept
        self.inputs: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.inputs.append(x.float())
        return self.product(x)

    def best_scale(self, group: int) -> Tensor:
        return search_scale(self.product.weight.float(), torch.cat(self.inputs), group)


def search_scale(weight: Tensor, inputs: Tensor, group: int) -> Tensor:
    """The channel scale whose int4 weights err least on `inputs`.

    weight: [out, in]; inputs: [rows, in] -> [in], around 1. group: inputs that share a scale of
    int4, as they will be served; where that does not divide them nothing is rounded.
    """
    if weight.shape[1] % group:
        return torch.ones(weight.shape[1])
    size = inputs.abs().mean(0).clamp_min(1e-6)
    exact = inputs @ weight.T
    best, least = torch.ones_like(size), torch.inf
    for step in range(N_EXPONENTS + 1):
        scale = size ** (step / N_EXPONENTS)
        scale /= (scale.max() * scale.min()).sqrt()
        rounded = quantize_int4(weight * scale, group).dense() / scale
        error = float((inputs @ rounded.T - exact).square().mean())
        if error < least:
            best, least = scale, error
    return best


class ScaledCheckpoint:
    """A checkpoint with the scales folded in: the same function, other weights."""

    def __init__(self, checkpoint: Checkpoint, scales: Tokens[LayerScales]) -> None:
        self.source, self._checkpoint = checkpoint.source, checkpoint
        self._columns: dict[str, Tensor] = {}
        self._rows: dict[str, Tensor] = {}
        for index, layer in enumerate(scales):
            prefix = f"model.layers.{index}."
            for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
                self._columns[f"{prefix}{name}.weight"] = layer.qkv
            for name in ("mlp.gate_proj", "mlp.up_proj"):
                self._columns[f"{prefix}{name}.weight"] = layer.gate_up
            self._columns[f"{prefix}mlp.down_proj.weight"] = layer.down
            self._rows[f"{prefix}input_layernorm.weight"] = 1 / layer.qkv
            self._rows[f"{prefix}post_attention_layernorm.weight"] = 1 / layer.gate_up
            self._rows[f"{prefix}mlp.up_proj.weight"] = 1 / layer.down
            self._rows[f"{prefix}mlp.up_proj.bias"] = 1 / layer.down

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        tensor = self._checkpoint.tensor(name, shape)
        if name in self._columns:
            tensor = tensor.float() * self._columns[name]
        if name in self._rows:
            rows = self._rows[name]
            tensor = tensor.float() * (rows if tensor.dim() == 1 else rows[:, None])
        return tensor


@torch.inference_mode()
def calibrate(decoder: Decoder, tokens: Tokens[int], group: int) -> list[LayerScales]:
    """Search the scales of every layer on a text. decoder: dense fp32 weights; it is used up.

    group: see `search_scale`.

    Raises: UnsupportedQuantization, for weights that are quantized already.
    """
    recorded = []
    for layer in decoder.layers:
        recorders = [_Recorder(product) for product in (layer.qkv, layer.gate_up, layer.down)]
        layer.qkv, layer.gate_up, layer.down = recorders
        recorded.append(recorders)
    pool = decoder.make_pool(n_blocks_for(len(tokens)))
    with borrowed(pool, PrefixTree(pool), list(tokens)) as sequence:
        Runner(decoder, pool).run([Extension(sequence, len(tokens), n_logits=0)])
    return [LayerScales(*(one.best_scale(group) for one in layer)) for layer in recorded]
