"""Owns drafting by an EAGLE-3 head on the device: what it keeps of a step, and a chain of guesses.

`eagle` says what the head is. A step keeps the features of its rows and the head's keys and
values in the pool, beside its own. One guess at what follows, for every sequence that goes on by
itself, is a program over the inputs of the coming step: replayed k times before that, it leaves k
guesses in `Places`, and the host has seen none of them.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ..kernels.attention import Pieces
from ..kernels.decoder import KernelDecoder
from ..kernels.places import Places
from ..kernels.rows import Fed
from ..kernels.sample import Draws, SampleSpace
from ..types import BLOCK_TOKENS
from .eagle import N_STATES, EagleHead

MAX_LINES = 32  # sequences of a step that are guessed at, its first: rows that share one tile


class KernelEagle:
    """A head beside the decoder it was trained for, on one KV pool."""

    def __init__(
        self, head: EagleHead, model: KernelDecoder, places: Places, *, n_rows: int
    ) -> None:
        """Make room for steps of up to `n_rows` rows."""
        self.head, self.model, self.places = head, model, places
        device, dtype = head.ids.device, head.embedding.dtype
        hidden, head_dim = model.config.hidden_size, model.config.head_dim
        self._states = torch.zeros(n_rows, N_STATES * hidden, dtype=dtype, device=device)
        # Parts of features are stored as keys and values are, and turned by no angle.
        self._unturned = torch.zeros(n_rows, dtype=torch.int32, device=device)
        self._cos, self._sin = (torch.full((1, head_dim), n, device=device) for n in (1.0, 0.0))

    def tapped(self, n_rows: int) -> dict[int, Tensor]:
        """Return the buffers for the states that a pass over so many rows hands out."""
        return self.head.tapped(self._states[:n_rows])

    def keep(self, tokens: Tensor, positions: Tensor, kv_slots: Tensor, before: Tensor) -> None:
        """Store the features of a step's rows, and the head's keys and values.

        tokens: int64 [rows]; positions, kv_slots, before: int32 [rows], see `rows.place_rows`.
        """
        head, model, n_rows = self.head, self.model, len(tokens)
        nobody = self._states.new_empty(n_rows, 0, model.config.head_dim)
        for layer, product in enumerate(head.fc, head.index + 1):
            model.call.kv_write(
                product(self._states[:n_rows]), self._unturned[:n_rows], kv_slots, self._cos,
                self._sin, None, None, 0.0, nobody, model.pool.blocks[layer],
                model.pool.scale_blocks[layer],
            )  # fmt: skip
        qkv = self.enter(tokens, head.features(before, model.pool).float())
        model.write_kv(head.layer, head.index, qkv, positions, kv_slots, head.rope)

    def enter(self, tokens: Tensor, x: Tensor) -> Tensor:
        """Queries, keys and values of rows, as partial sums.

        x: fp32 [rows, hidden], their residual: the features of the tokens before, or the states
        of the guesses before.
        """
        head, model = self.head, self.model
        eps, dtype = model.config.norm_eps, head.embedding.dtype
        said = head.embedding[tokens].float()
        named, read = (torch.empty(x.shape, dtype=dtype, device=x.device) for _ in range(2))
        model.call.add_norm(x, None, head.hidden_norm.weight, eps, read)
        if head.norm_before_residual:
            x.copy_(read)
        model.call.add_norm(said, None, head.layer.input_norm.weight, eps, named)
        return head.layer.qkv(torch.cat((named, read), -1))


class Chain:
    """Guesses at what follows the first sequences of a step of one size."""

    def __init__(
        self, eagle: KernelEagle, fed: Fed, draws: Draws, tables: Tensor, logits: Tensor,
        space: SampleSpace,
    ) -> None:  # fmt: skip
        """fed, draws, tables: of the step. logits [rows, vocab] and space: workspace."""
        n, device = min(len(fed.places), MAX_LINES, len(logits)), fed.places.device
        self._eagle, self._tables = eagle, tables
        self._logits, self._space = logits[:n], space.of(n)
        self._lines = torch.arange(n, device=device)
        self._places, self._goes_on = fed.places[:n], fed.goes_on[:n]
        n_padded = -(-n // 4) * 4  # kernels are compiled once for aligned pointers
        # Of each line: how many guesses it has, whose it is or -1, and what was guessed.
        self._offsets, self._owners, self._chosen, self._tokens = (
            torch.zeros(4, n_padded, dtype=torch.int64, device=device)[:, :n].unbind(0)
        )  # fmt: skip
        narrow = torch.zeros(7, n_padded, dtype=torch.int32, device=device)[:, :n]
        starts, counts, firsts, owners, *self._places_of_rows = narrow.unbind(0)
        self._pieces = Pieces(starts, counts, firsts, owners, tables)
        self._fed = replace(
            fed, piece_starts=self._lines, piece_widths=torch.ones_like(self._lines),
            piece_offsets=self._offsets, piece_owners=self._owners,
        )  # fmt: skip
        self._draws = replace(draws, owners=self._owners, offsets=self._offsets)
        self._x = torch.zeros(n, eagle.model.config.hidden_size, device=device)

    def begin(self) -> None:
        """Read the features that the first guesses follow from."""
        eagle, going = self._eagle, self._goes_on > 0
        self._owners.copy_(torch.where(going, self._lines, -1))
        self._offsets.zero_()
        at = (eagle.places.position[self._places] - 1).clamp_min(0)
        blocks = self._tables[self._lines, at // BLOCK_TOKENS].long()
        slots = torch.where(going, blocks * BLOCK_TOKENS + at % BLOCK_TOKENS, -1)
        self._x.copy_(eagle.head.features(slots, eagle.model.pool))

    def guess(self) -> None:
        """One guess more for each line that goes on by itself, into `Places`."""
        eagle, x = self._eagle, self._x
        head, model, places, call = eagle.head, eagle.model, eagle.places, eagle.model.call
        positions, kv_slots, before = self._places_of_rows
        call.place_rows(
            self._fed, places, self._pieces, self._tokens, positions, kv_slots, before, 1
        )
        qkv = eagle.enter(self._tokens, x)
        h = torch.empty(x.shape, dtype=head.embedding.dtype, device=x.device)
        delta = model.advance(
            head.layer, head.index, qkv, x, h, positions, kv_slots, [(self._pieces, 1)],
            head.rope, since=1,
        )  # fmt: skip
        call.add_norm(x, delta, head.norm.weight, model.config.norm_eps, h)
        known = torch.sum(head.head(h), 0, dtype=torch.float32)
        self._logits.fill_(-torch.inf).index_copy_(1, head.ids, known)
        call.sample(self._logits, self._draws, self._space, self._chosen)
        # Lines that do not go on have a place without guesses, or the first, which is nobody's, and
        # stay at the first guess: a capture makes more than there may be room for.
        places.guesses.index_put_((self._places, self._offsets), self._chosen)
        places.n_guesses.index_add_(0, self._places, self._goes_on)
        self._offsets.add_(self._goes_on)
