"""The training loop of an adapter: the agent's data in another model's chat format, AdamW.

Owns the state of a run: the adapter, its running average, the optimizer, its place in the data. It
saves and exports every few minutes, and goes on when started again. `train_adapter` is its command.
"""

from __future__ import annotations

import csv
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from engine.load.adapter import fingerprint

from ..model.adapted_model import AdaptedModel
from ..model.base_model import load_base
from ..model.chatml import CHATML_TEMPLATE
from ..model.checkpoint import load_checkpoint, save_checkpoint
from ..model.lora import exported, read_adapter, save_adapter
from .adapter_data import ADAPTER_MIXTURE, AdapterData
from .family import Family, in_rows, row_of

WARMUP_STEPS = 30
DECAY_SHARE = 0.4  # of the run, over which the rate falls to zero
# Of a row: a CPU multiplies no faster with more, a GPU has some 4 GB of activations by then.
ROW_TOKENS = {"cpu": 1024, "cuda": 8192}
LOGITS_AT_ONCE = 128  # rows of the vocabulary's size in fp32: 25 MB, which a CPU's cache holds


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """The options of the command line."""

    base: Path
    out: Path
    data: Path | None = None
    start: Path | None = None  # an exported adapter to go on from
    device: str = "cpu"
    n_tokens: int = 3_000_000
    minutes: float | None = None  # the run ends, and its rate falls, by the clock instead
    step_tokens: int = 2048  # at least, of whole families
    learning_rate: float = 1e-3
    average_steps: int = 20  # what is exported: a running average of the adapter
    shard_families: int = 100
    checkpoint_minutes: float = 4.0
    threads: int = 2
    seed: int = 1


class AdapterTrainer:
    """A run that can be stopped and resumed at any checkpoint."""

    def __init__(self, options: AdapterOptions) -> None:
        self.options, self.device = options, torch.device(options.device)
        torch.manual_seed(options.seed)
        torch.set_num_threads(options.threads)
        options.out.mkdir(parents=True, exist_ok=True)
        base, tokenizer = load_base(options.base)
        self.data = AdapterData(options.data, tokenizer)
        self.base = fingerprint(base.model.norm.weight)
        self.model = AdaptedModel(base)
        if options.start is not None:
            read_adapter(options.start, self.model.adapters)
        self.model.to(self.device)
        self.parameters = list(self.model.parameters())
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self.optimizer = torch.optim.AdamW(
            self.parameters, options.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        self.step = self.n_seen = self.n_learned = self.shard = self.place = 0
        self.seconds = 0.0
        self.is_stopping = False
        if self._checkpoint.exists():
            self._resume()

    @property
    def _checkpoint(self) -> Path:
        return self.options.out / "adapter.pt"

    def _resume(self) -> None:
        state = load_checkpoint(self._checkpoint)
        with torch.no_grad():
            for parameter, stored in zip(self.parameters, state["adapter"], strict=True):
                parameter.copy_(stored)
        self.average = [tensor.to(self.device) for tensor in state["average"]]
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.n_seen, self.n_learned = state["step"], state["n_seen"], state["n_learned"]
        self.shard, self.place = state["shard"], state["place"]
        self.seconds = state["seconds"]

    def save(self) -> None:
        """Write the checkpoint and the averaged adapter."""
        save_checkpoint(
            self._checkpoint,
            {
                "adapter": [parameter.detach() for parameter in self.parameters],
                "average": self.average,
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "n_seen": self.n_seen,
                "n_learned": self.n_learned,
                "shard": self.shard,
                "place": self.place,
                "seconds": self.seconds,
            },
        )
        weights = exported(self.model.adapters, self.average)
        save_adapter(self.options.out / "adapter", weights, CHATML_TEMPLATE, self.base)

    def stop(self) -> None:
        """Make `run` save after the step in progress and return."""
        self.is_stopping = True

    def run(self) -> None:
        """Train until the run is over or `stop`; then save."""
        started = time.monotonic() - self.seconds
        saved_at = self.seconds
        with (self.options.out / "loss.csv").open("a", newline="") as log:
            writer = csv.writer(log)
            while not self._is_over():
                shard = self._read_shard()
                while self.place < len(shard) and not self._is_over():
                    loss, agent_loss = self._update(self._next_batch(shard))
                    self.seconds = time.monotonic() - started
                    rate = self.n_seen / self.seconds
                    writer.writerow(
                        (self.step, self.n_seen, self.n_learned, f"{self.seconds:.0f}")
                        + (f"{loss:.4f}", f"{agent_loss:.4f}")
                    )
                    log.flush()
                    print(
                        f"\rstep {self.step}, {self.n_seen} tokens, {self.n_learned} of the "
                        f"agent's, loss {loss:.3f}, agent {agent_loss:.3f}, {rate:.0f} tokens/s ",
                        end="", flush=True,
                    )  # fmt: skip
                    if self.seconds - saved_at > self.options.checkpoint_minutes * 60:
                        self.save()
                        saved_at = self.seconds
                if self.place >= len(shard):
                    self.shard, self.place = self.shard + 1, 0
        self.save()

    @property
    def progress(self) -> float:
        """The share of the run that is over."""
        if self.options.minutes is not None:
            return self.seconds / (60 * self.options.minutes)
        return self.n_seen / self.options.n_tokens

    def _is_over(self) -> bool:
        return self.is_stopping or self.progress >= 1

    def _read_shard(self) -> list[Family]:
        """The conversations that are due."""
        seed = f"adapter/{self.options.seed}/{self.shard}"
        return self.data.shard(seed, self.options.shard_families, ADAPTER_MIXTURE)

    def _next_batch(self, shard: list[Family]) -> list[Family]:
        batch: list[Family] = []
        n_tokens = 0
        while n_tokens < self.options.step_tokens and self.place < len(shard):
            batch.append(shard[self.place])
            n_tokens += batch[-1].n_tokens
            self.place += 1
        return batch

    def _update(self, batch: list[Family]) -> tuple[float, float]:
        """One step; returns the weighted loss and that of the agent's words."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.learning_rate * self._rate_scale()
        self.model.merge()
        total_weight = sum(family.weight for family in batch)
        loss, agent_loss, n_agent = 0.0, 0.0, 0
        for families in in_rows(batch, ROW_TOKENS[self.device.type]):
            row_loss, row_agent, row_n = self._backward(families, total_weight)
            loss, agent_loss = loss + row_loss, agent_loss + row_agent
            n_agent += row_n
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        share = max(1 / (self.step + 1), 1 / self.options.average_steps)
        with torch.no_grad():
            torch._foreach_lerp_(self.average, self.parameters, share)
        self.step += 1
        self.n_seen += sum(family.n_tokens for family in batch)
        self.n_learned += n_agent
        return loss / total_weight, agent_loss / max(1, n_agent)

    def _rate_scale(self) -> float:
        """Warm up by steps, hold, then fall to zero over the last part of the run."""
        left = (1 - self.progress) / DECAY_SHARE
        return max(0.0, min(1.0, (self.step + 1) / WARMUP_STEPS, left))

    def _backward(self, families: list[Family], total_weight: float) -> tuple[float, float, int]:
        """Add a row's gradients of the loss over `total_weight`.

        Returns the row's summed loss, the agent's own and of how many tokens that is.
        """
        row = row_of(families, self.device)
        hidden = self.model(row.tokens, row.positions, row.segments)
        d_hidden = torch.zeros_like(hidden)
        loss, agent_loss, n_agent = 0.0, 0.0, 0
        # The head by parts: its gradient goes to the hidden states alone.
        for at in range(0, len(row.sources), LOGITS_AT_ONCE):
            part = slice(at, at + LOGITS_AT_ONCE)
            sources, weights = row.sources[part], row.weights[part]
            states = hidden.detach()[sources].requires_grad_()
            losses = F.cross_entropy(
                self.model.logits(states).float(), row.targets[part], reduction="none"
            )
            weighted = (losses * weights).sum()
            (d_states,) = torch.autograd.grad(weighted / total_weight, states)
            d_hidden[sources] += d_states
            agent = weights >= 1.0
            loss += float(weighted.detach())
            agent_loss += float(losses.detach()[agent].sum())
            n_agent += int(agent.sum())
        hidden.backward(d_hidden)
        return loss, agent_loss, n_agent
