"""Owns an EAGLE-3 head: one layer that guesses tokens from the states of its target's own layers.

Three states of each token, taken between layers of the target, become its *feature*. The head's
layer reads a token beside the feature of the token before it, attends to those before, and says
which token follows; of its own guesses it reads its own state in the feature's place.

Its keys and values lie in the target's KV pool as one more layer, the features as further ones: the
entry at a position depends on the tokens up to it alone, so that sharing, copying, rolling back and
parking blocks keep both with nothing said about them. The first token has no feature before it:
nobody attends to its entry. Positions count from 0 where the authors' count from -1; attention by
RoPE sees distances only.
Source: Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test" (arXiv:2503.01840); a chain, no tree.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kv_cache import KvPool
from ..layer import Layer, Norm, Rope
from ..linear import CODE_BYTES, Linear, MakeLinear
from ..load.loader import Checkpoint, ModelConfig
from ..types import CheckpointError

N_STATES = 3  # of each token, from as many places between the target's layers


class EagleHead:
    """The weights of a head; `chain` has its pass."""

    name = "an EAGLE-3 head"

    def __init__(
        self, checkpoint: Checkpoint, config: ModelConfig, embedding: Tensor, rope: Rope, *,
        index: int, prefix: str, taps: tuple[int, ...], n_drafted: int, norm_before_residual: bool,
        quant: str | None, make_linear: MakeLinear,
    ) -> None:  # fmt: skip
        """config: of the one layer, whose heads are as the target's; prefix: of its names.

        embedding: the target's. index: of its layer in the pool; features are in those behind.
        taps: after how many of the target's layers each state is taken, in rising order.
        n_drafted: tokens that it knows, the target's `ids`.
        Raises: CheckpointError.
        """
        self.config, self.rope, self.index, self.taps = config, rope, index, taps
        self.norm_before_residual = norm_before_residual
        hidden, device, dtype = config.hidden_size, str(embedding.device), embedding.dtype
        kept = None if quant is None else "int8"  # as the target's own head, whatever its layers

        def linear(weight: Tensor) -> Linear:
            return make_linear(weight, None, dtype=dtype, quant=kept, device=device)

        def norm(name: str) -> Norm:
            weight = checkpoint.tensor(f"{name}.weight", (hidden,))
            return Norm(weight.to(device), config.norm_eps, dtype)

        # A feature is kept as the keys and values of as many layers as it takes.
        fc = checkpoint.tensor("fc.weight", (hidden, N_STATES * hidden))
        n_each = 2 * config.n_kv_heads * config.head_dim
        self.fc = [linear(pad(rows, (0, 0, 0, n_each - len(rows)))) for rows in fc.split(n_each)]
        self.layer = Layer(
            checkpoint, config, prefix, kept, dtype, device, make_linear, n_inputs=2 * hidden
        )
        self.hidden_norm = norm(f"{prefix}hidden_norm")
        self.norm = norm("norm")
        self.head = linear(checkpoint.tensor("lm_head.weight", (n_drafted, hidden)))
        self.ids = _ids(checkpoint, n_drafted, len(embedding)).to(device)
        self.embedding, self.has_own_embedding = embedding, False
        if "embed_tokens.weight" in checkpoint:
            own = checkpoint.tensor("embed_tokens.weight", tuple(embedding.shape))
            own = own.to(device=device, dtype=dtype)
            self.has_own_embedding = not torch.equal(own, embedding)
            if self.has_own_embedding:
                self.embedding = own

    @property
    def n_pool_layers(self) -> int:
        return 1 + len(self.fc)

    @property
    def n_bytes(self) -> float:
        """Count the bytes of its weights as kept."""
        config, n_itself = self.config, self.embedding.itemsize
        hidden = config.hidden_size
        inner = self.layer.gate_up.out_features // 2
        n_in = [N_STATES * hidden] * len(self.fc)
        n_in += [2 * hidden, config.n_heads * config.head_dim, hidden, inner, hidden]
        products = zip([*self.fc, *self.layer.products(), self.head], n_in, strict=True)
        n_bytes = sum(p.out_features * n * CODE_BYTES.get(p.kept, n_itself) for p, n in products)
        return n_bytes + self.has_own_embedding * self.embedding.nbytes

    def tapped(self, states: Tensor) -> dict[int, Tensor]:
        """Split [rows, 3 * hidden] into the states of a pass, by the layers before them."""
        return dict(zip(self.taps, states.chunk(N_STATES, -1), strict=True))

    def features(self, slots: Tensor, pool: KvPool) -> Tensor:
        """Read the features stored at `slots` [n]: [n, hidden]; zeros where a slot is negative."""
        layers = range(self.index + 1, self.index + self.n_pool_layers)
        parts = [pool.vectors(layer, slots.clamp_min(0)).flatten(1) for layer in layers]
        features = torch.cat(parts, -1)[:, : self.config.hidden_size]
        return features.masked_fill((slots < 0)[:, None], 0)


def _ids(checkpoint: Checkpoint, n_drafted: int, n_tokens: int) -> Tensor:
    """The target's ids of the head's own; "d2t" says how far each lies behind its own number."""
    ids = torch.arange(n_drafted)
    if "d2t" in checkpoint:
        ids = ids + checkpoint.tensor("d2t", (n_drafted,)).long()
    known = ids.unique()
    if len(known) < n_drafted or known[0] < 0 or known[-1] >= n_tokens:
        raise CheckpointError(
            f"{checkpoint.source}: expected d2t to name {n_drafted} of the target's {n_tokens} "
            f"tokens, found {len(known)} from {known[0]} to {known[-1]}"
        )
    return ids
