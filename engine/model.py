"""Owns the decoder: one forward pass, driven by `ModelConfig`, for every supported family.

Families differ in biases, norms, tied heads, windows, rotary embeddings and constant factors; each
is a field of the config (`load.families`). The pass works on the rows of many sequences at once.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .attention import Plan, attend
from .drafting.eagle import EagleHead
from .end_of_turn import TwoLayers
from .kv_cache import KvPool
from .layer import PRODUCTS, Layer, Norm, Rope, residual_dtype
from .linear import INT4_GROUP, Linear, MakeLinear, lay_together, make_linear
from .load.loader import TORCH_DTYPES, Checkpoint, ModelConfig
from .load.packed import HoldsInt4
from .route import RouteHead

if TYPE_CHECKING:
    from .adapters import Adapters
    from .native.packed_file import PackedWeights

# Tokens of a row whose logits are computed again where the head that makes them is rounded: to
# eight bits or bf16, which ties a few; to four, where the likeliest is among the first 8 as well,
# but 8 leave a divergence of 0.012 nats, and 64 one of 0.004 (benchmarks/LOG.md).
N_REFINED, N_REFINED_INT4 = 8, 64
MAX_AHEAD = 32  # positions past the context that a step computed ahead of its turn may touch

# Whether somebody more urgent waits for the step under way.
Interrupted = Callable[[], bool]

HEAD = "head"  # the name of its product


class Abandoned(Exception):
    """A step was given up between two layers; nothing it wrote lies within a resident sequence."""


# A step of so many takes long where it takes long at all. In shorter ones the question between two
# layers, some ten microseconds, would show in the time of a token.
LONG_STEP_ROWS = 64


def unheeded(interrupted: Interrupted | None, n_rows: int) -> Interrupted | None:
    """Ask for a step that gives way to nobody: a long one asks still, and so tells that it goes
    on.
    """
    if interrupted is None or n_rows < LONG_STEP_ROWS:
        return None
    asked = interrupted

    def is_never() -> bool:
        asked()
        return False

    return is_never


def _give_way(interrupted: Interrupted | None) -> None:
    if interrupted is not None and interrupted():
        raise Abandoned


class Decoder:
    """The whole model: token ids in, states out, KV into the pool on the way; logits of states."""

    def __init__(
        self, checkpoint: Checkpoint, config: ModelConfig, *, dtype: str, quant: str | None,
        device: str, context_length: int, make_linear: MakeLinear = make_linear,
        end_head: TwoLayers | None = None, int4_head: bool = False,
        packed: "PackedWeights | None" = None,
    ) -> None:  # fmt: skip
        """end_head: reads the states after staged words. int4_head: whoever runs the layers takes
        logits from `logits` or as it does, so that the head may have four bits as well.
        packed: products and embedding as they were made before, where they are here.

        Raises: CheckpointError.
        """
        self.config, self.device, self.end_head = config, device, end_head
        self.eagle: EagleHead | None = None  # drafts from the states of some layers
        self.adapters: Adapters | None = None  # that rows may name
        self.route_head: RouteHead | None = None  # reads them beside `end_head`
        self.dtype = TORCH_DTYPES[dtype]
        shape = (config.vocab_size, config.hidden_size)
        kept = packed if packed is not None and packed.is_here else None
        if kept is None:
            embedding = checkpoint.tensor("model.embed_tokens.weight", shape)
            self.embedding = embedding.to(device=device, dtype=self.dtype)
        elif kept.embedding is not None:
            self.embedding = kept.embedding
        head_quant = None if quant is None else "int8"
        if quant == "int4" and int4_head and _may_have_four_bits(checkpoint, config):
            head_quant = "int4"
        self.head: Linear
        if kept is None:
            head = embedding if config.tied_head else checkpoint.tensor("lm_head.weight", shape)
            if config.tied_head and head_quant is None:
                head = self.embedding  # the same memory, on the device too
            self.head = make_linear(head, None, dtype=self.dtype, quant=head_quant, device=device)
        else:
            self.head = kept.products[HEAD]
        self.n_refined = 0
        if config.tied_head and (head_quant is not None or self.dtype == torch.bfloat16):
            self.n_refined = N_REFINED_INT4 if head_quant == "int4" else N_REFINED
        norm = checkpoint.tensor("model.norm.weight", (config.hidden_size,))
        norm = norm.float() + 1 if config.norms_from_one else norm
        if config.logit_scale != 1:
            norm = norm.float() * config.logit_scale
        self.norm = Norm(norm.to(device), config.norm_eps, residual_dtype(self.dtype))
        self.layers = [
            Layer(
                checkpoint,
                config,
                f"model.layers.{i}.",
                quant,
                self.dtype,
                device,
                make_linear,
                window=config.windows[i],
                made=kept.products if kept is not None else {},
            )  # fmt: skip
            for i in range(config.n_layers)
        ]
        self.settle = kept.settle if kept is not None else _is_settled
        if kept is None:
            lay_together([product for _, product in self.products()])
        n_positions = context_length + MAX_AHEAD
        made = {
            rope: Rope(rope, config.head_dim, n_positions, self.dtype, device, context_length)
            for rope in (config.rope, *config.ropes)
        }
        self.rope, self.context_length = made[config.rope], context_length
        self.ropes = [made[rope] for rope in config.ropes]  # of each layer
        self.windows = set(config.windows)

    def products(self) -> Iterator[tuple[str, Linear]]:
        """Each product by a name, in the order of use."""
        for index, layer in enumerate(self.layers):
            for name, product in zip(PRODUCTS, layer.products(), strict=True):
                yield f"model.layers.{index}.{name}", product
        yield HEAD, self.head

    def make_pool(self, n_blocks: int, kv_format: str = "plain", poison: bool = False) -> KvPool:
        """Memory for the keys and values of this model, and for what its draft head keeps."""
        config = self.config
        n_layers = config.n_layers + (self.eagle.n_pool_layers if self.eagle is not None else 0)
        return KvPool(
            n_layers=n_layers, n_kv_heads=config.n_kv_heads, head_dim=config.head_dim,
            n_blocks=n_blocks, dtype=self.dtype, device=self.device, kv_format=kv_format,
            poison=poison,
        )  # fmt: skip

    def forward(
        self, tokens: Tensor, positions: Tensor, plan: Plan, pool: KvPool,
        wanted: Tensor | None, interrupted: Interrupted | None = None,
    ) -> Tensor | None:  # fmt: skip
        """Extend the sequences of `plan` by `tokens` [rows] at `positions` [rows].

        Returns the states [wanted rows, hidden] after the final norm, None for none: see `logits`.
        interrupted: asked twice a layer and at the end. Raises: Abandoned where it says so.
        """
        turns = {rope: (rope.cos[positions], rope.sin[positions]) for rope in set(self.ropes)}
        x = self.embedding[tokens].to(residual_dtype(self.dtype))
        if self.config.embedding_scale != 1:
            x *= self.config.embedding_scale
        for index, layer in enumerate(self.layers):
            _give_way(interrupted)
            cos, sin = turns[self.ropes[index]]
            queries = layer.project(index, layer.input_norm(x), cos, sin, plan, pool)
            mixed = layer.output(attend(pool, index, plan, queries, layer.window))
            x += mixed if layer.output_norm is None else layer.output_norm(mixed)
            _give_way(interrupted)
            gate, up = layer.gate_up(layer.post_norm(x)).chunk(2, -1)
            made = layer.down(layer.activate_(gate).mul_(up))
            x += made if layer.down_norm is None else layer.down_norm(made)
        if wanted is None:
            return None
        _give_way(interrupted)
        return self.norm(x[wanted])

    def logits(self, states: Tensor) -> Tensor:
        """Compute [rows, vocab] of states [rows, hidden], in fp32 (fp64 for an fp64 model).

        bf16 has 8 bits: at 16 its numbers lie 0.125 apart, and likely tokens tie. Where the head is
        the embedding, whose rows are at hand, and is itself quantized or in bf16, the likeliest are
        computed again from it, so that however it is rounded likely tokens have the same head.

        Two limits: where a mask or penalty rules all of them out, tokens are chosen as rounded; and
        what ranks further down (`top_k` above `n_refined`, log probabilities) mixes both heads.
        """
        logits = self.head(states.to(self.dtype))
        if logits.dtype == torch.bfloat16:
            logits = logits.float()
        if self.n_refined:
            likely = logits.topk(min(self.n_refined, logits.shape[1])).indices
            rows = self.embedding[likely].to(logits.dtype)
            logits.scatter_(1, likely, torch.linalg.vecdot(rows, states[:, None]))
        return self.capped(logits)

    def capped(self, logits: Tensor) -> Tensor:
        """Bring logits below the model's cap, where it has one; their order stays."""
        cap = self.config.logit_cap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits


def _is_settled() -> None:
    """The weights were made here, and lie where they are."""


def _may_have_four_bits(checkpoint: Checkpoint, config: ModelConfig) -> bool:
    """Whether the head may be rounded to four bits.

    It has to be the embedding, in whole groups, with more than the eight bits of a file. Its likely
    tokens are computed again, for rounding costs it most of all products.
    """
    name = "model.embed_tokens.weight"
    is_quantized = isinstance(checkpoint, HoldsInt4) and checkpoint.is_quantized(name)
    return config.tied_head and config.hidden_size % INT4_GROUP == 0 and not is_quantized
