"""Owns the execution of one step: rows of many sequences through the decoder at once."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .attention import plan_step
from .kv_cache import KvPool
from .model import Decoder
from .sequence import Sequence


@dataclass(slots=True)
class Extension:
    """Extend `sequence` by its next `n_known` pending tokens, then by `proposals`.

    n_logits: how many of its last rows need logits: 0 inside a prompt, else 1 + proposals.
    """

    sequence: Sequence
    n_known: int
    proposals: list[int] = field(default_factory=list)
    n_logits: int = 1

    @property
    def n_rows(self) -> int:
        return self.n_known + len(self.proposals)


class Runner:
    """A decoder and the KV pool it works on."""

    def __init__(self, decoder: Decoder, pool: KvPool) -> None:
        self.decoder, self.pool = decoder, pool

    @torch.inference_mode()
    def run(self, extensions: Items[Extension]) -> Tensor | None:
        """Compute the KV of all rows; returns the wanted logits [sum of n_logits, vocab] in order.

        The blocks must be reserved before. The caller advances `n_resident`.
        """
        tokens: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        parts = []
        for extension in extensions:
            sequence, first = extension.sequence, extension.sequence.n_resident
            tokens += sequence.tokens[first : first + extension.n_known]
            tokens += extension.proposals
            positions += range(first, first + extension.n_rows)
            wanted += range(len(tokens) - extension.n_logits, len(tokens))
            parts.append((first, extension.n_rows, sequence.table))
        device = self.decoder.device
        config = self.decoder.config
        plan = plan_step(
            parts,
            windows=self.decoder.windows,
            group=config.n_heads // config.n_kv_heads,
            dtype=self.decoder.dtype,
            device=device,
        )
        one_run = len(extensions) == 1
        return self.decoder.forward(
            torch.tensor(tokens, device=device),
            slice(positions[0], positions[-1] + 1) if one_run
            else torch.tensor(positions, device=device),
            plan,
            self.pool,
            _rows(wanted, device),
        )  # fmt: skip


def _rows(wanted: list[int], device: str) -> "Tensor | slice | None":
    if not wanted:
        return None
    if wanted[-1] - wanted[0] == len(wanted) - 1:
        return slice(wanted[0], wanted[-1] + 1)
    return torch.tensor(wanted, device=device)
