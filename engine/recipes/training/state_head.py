"""A head of two layers over a model's hidden states, and its training: for all recipes of heads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, gelu


@dataclass(frozen=True, slots=True)
class HeadTraining:
    """n_inner: neurons between the layers. dropout: of the states and of these neurons."""

    n_inner: int
    n_epochs: int
    batch: int
    learning_rate: float
    weight_decay: float
    dropout: float


class StateHead(nn.Module):
    """n_outer logits of a state, on states of zero mean and unit variance."""

    def __init__(
        self, mean: Tensor, deviation: Tensor, n_inner: int, n_outer: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.mean, self.deviation = mean, deviation
        self.inner, self.outer = nn.Linear(len(mean), n_inner), nn.Linear(n_inner, n_outer)
        self.drop = nn.Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        """Logits [n, n_outer] of states [n, hidden]."""
        x = self.drop((states.float() - self.mean) / self.deviation)
        logits: Tensor = self.outer(self.drop(gelu(self.inner(x))))
        return logits

    def tensors(self) -> dict[str, Tensor]:
        """Return what the engine reads: mean and variance are folded into the first layer, in 16
        bits.
        """
        weight = (self.inner.weight.detach() / self.deviation).half()
        return {
            "inner.weight": weight,
            "inner.bias": self.inner.bias.detach() - weight.float() @ self.mean,
            "outer.weight": self.outer.weight.detach().clone(),
            "outer.bias": self.outer.bias.detach().clone(),
        }


def trained(
    learned: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor],
    how: HeadTraining,
    seed: int,
    on_epoch: Callable[[int, float], None] = lambda epoch, loss: None,
) -> StateHead:
    """The head of the epoch with the least loss on what is held out.

    learned, held_out: states [n, hidden] and labels [n, n_outer] of 0 or 1. on_epoch: is told the
    number of each epoch, from 1 on, and that loss.
    """
    torch.manual_seed(seed)
    states, labels = learned
    known = states.float()
    head = StateHead(known.mean(0), known.std(0) + 1e-6, how.n_inner, labels.shape[1], how.dropout)
    optimizer = torch.optim.AdamW(
        head.parameters(), how.learning_rate, weight_decay=how.weight_decay
    )
    n_steps = how.n_epochs * -(-len(known) // how.batch)
    fall = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / n_steps)
    best, least = head, float("inf")
    for epoch in range(1, how.n_epochs + 1):
        head.train()
        for places in torch.randperm(len(known)).split(how.batch):
            loss = binary_cross_entropy_with_logits(head(known[places]), labels[places])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            fall.step()
        head.eval()
        with torch.no_grad():
            held_loss = float(binary_cross_entropy_with_logits(head(held_out[0]), held_out[1]))
        on_epoch(epoch, held_loss)
        if held_loss < least:
            best, least = deepcopy(head), held_loss
    return best


def show(line: str) -> None:
    """Progress, where somebody looks."""
    if sys.stderr.isatty():
        print(f"\r{line:<70}", end="", file=sys.stderr, flush=True)
