"""Owns the execution of one step: rows of many sequences through the decoder at once.

`Runner` is the CPU's, and says what every runner does; `graphs.graph_runner` has the GPU's.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .attention import plan_step
from .end_of_turn import probability
from .kv_cache import KvPool
from .model import Decoder, Interrupted
from .sequence import Sequence
from .types import RouteSigns, SamplingParams

if TYPE_CHECKING:
    from .text.grammar import Grammar


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """Sampling parameters of one reply; one object a reply, told apart by identity.

    n_prompt: tokens before the reply's first one; penalties are for those after them.
    """

    params: SamplingParams
    seed: int
    n_prompt: int = 0


@dataclass(slots=True)
class Outcome:
    """The result of a step for one extension: logits to choose from, or the choices themselves.

    logits: [n_logits, vocab], None inside a prompt; where a runner draws, only for who is told of
    them. chosen: what it drew at those rows, up to the first that differs from `proposals` (its own
    guesses, where it drafted itself).
    probability: of the end of the caller's turn after the last row, for staged words. route: what
    a head reads there, where there is one.
    """

    logits: Tensor | None = None
    chosen: list[int] | None = None
    proposals: list[int] = field(default_factory=list)
    probability: float = 0.0
    route: RouteSigns | None = None


@dataclass(slots=True)
class Extension:
    """Extend `sequence` by its next `n_known` pending tokens, then by `proposals`.

    n_logits: how many of its last rows need logits: 0 inside a prompt, else 1 + proposals.
    draw: the reply's, None where only logits are wanted; index: of the first token to be drawn;
        grammar: what binds it. A runner may draw the tokens itself.
    is_staged: only the probability of the end of turn is wanted, of one row.
    """

    sequence: Sequence
    n_known: int
    proposals: list[int] = field(default_factory=list)
    n_logits: int = 1
    draw: Draw | None = None
    index: int = 0
    grammar: "Grammar | None" = None
    is_staged: bool = False

    @property
    def n_rows(self) -> int:
        return self.n_known + len(self.proposals)

    @property
    def tokens(self) -> list[int]:
        """Return the tokens of its rows."""
        first = self.sequence.n_resident
        return self.sequence.tokens[first : first + self.n_known] + self.proposals


class Runner:
    """A decoder and the KV pool it works on."""

    layers = "torch"

    def __init__(self, decoder: Decoder, pool: KvPool, end_ids: tuple[int, ...] = ()) -> None:
        """end_ids: tokens that end the caller's turn or sentence; none where none is staged."""
        self.decoder, self.pool, self._end_ids = decoder, pool, end_ids

    @torch.inference_mode()
    def step(
        self, extensions: Items[Extension], interrupted: Interrupted | None = None
    ) -> list[Outcome]:
        """Run the extensions; an outcome each.

        Raises: Abandoned where `interrupted` says so. Nothing has changed then.
        """
        states = self.states(extensions, interrupted)
        outcomes = [Outcome(proposals=extension.proposals) for extension in extensions]
        if states is None:
            return outcomes
        # A head reads the states: staged words then need no logits.
        head, read = self.decoder.end_head, list[tuple[Extension, Outcome, Tensor]]()
        rows_of = states.split([extension.n_logits for extension in extensions])
        route = self.decoder.route_head
        for extension, outcome, rows in zip(extensions, outcomes, rows_of, strict=True):
            if route is not None and extension.is_staged and len(rows):
                outcome.route = RouteSigns(*route(rows)[0].tolist())
            if head is not None and extension.is_staged and len(rows):
                outcome.probability = float(head(rows))
            elif len(rows):
                read.append((extension, outcome, rows))
        if read:
            logits = self.logits(torch.cat([rows for _, _, rows in read]))
            for extension, outcome, rows in read:
                outcome.logits, logits = logits[: len(rows)], logits[len(rows) :]
                if extension.is_staged and self._end_ids:
                    outcome.probability = float(probability(outcome.logits, self._end_ids))
        return outcomes

    @torch.inference_mode()
    def run(self, extensions: Items[Extension]) -> Tensor | None:
        """Compute the KV of all rows; return the wanted logits [sum of n_logits, vocab]."""
        states = self.states(extensions)
        return None if states is None else self.logits(states)

    def guess(self, sequence: Sequence, n_tokens: int) -> list[int] | None:
        """Extend by what is pending and greedily by `n_tokens` more, whose last stays pending.

        None where only whoever asks can do so, token by token. Raises: OutOfMemory.
        """
        return None

    def logits(self, states: Tensor) -> Tensor:
        """[rows, vocab] of `states`."""
        return self.decoder.logits(states)

    @torch.inference_mode()
    def states(
        self, extensions: Items[Extension], interrupted: Interrupted | None = None
    ) -> Tensor | None:
        """Compute the KV of all rows; returns the wanted states [sum of n_logits, hidden] in order.

        The blocks must be reserved before. The caller advances `n_resident`. Raises: Abandoned.
        """
        tokens: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        parts = []
        for extension in extensions:
            sequence, first = extension.sequence, extension.sequence.n_resident
            tokens += extension.tokens
            positions += range(first, first + extension.n_rows)
            wanted += range(len(tokens) - extension.n_logits, len(tokens))
            parts.append((first, extension.n_rows, sequence.table))
        decoder, device = self.decoder, self.decoder.device
        group = decoder.config.n_heads // decoder.config.n_kv_heads
        plan = plan_step(
            parts, windows=decoder.windows, group=group, dtype=decoder.dtype, device=device
        )
        if decoder.adapters is not None:
            slots = [e.sequence.slot for e in extensions for _ in range(e.n_rows)]
            has_any = max(slots) >= 0
            decoder.adapters.rows.slots = torch.tensor(slots, device=device) if has_any else None
        ids, at = torch.tensor(tokens, device=device), torch.tensor(positions, device=device)
        of_wanted = torch.tensor(wanted, device=device) if wanted else None
        return decoder.forward(ids, at, plan, self.pool, of_wanted, interrupted)
