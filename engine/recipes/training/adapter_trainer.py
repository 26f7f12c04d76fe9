"""The training loop of an adapter: the agent's data in another model's chat format, AdamW.

Owns the state of a run: the adapter, its running average, the optimizer, its place in the data. It
saves and exports every few minutes, and goes on when started again. `train_adapter` is its command.
"""

from __future__ import annotations

import csv
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ..model.base_model import load_base
from ..model.chatml import CHATML_TEMPLATE
from ..model.checkpoint import load_checkpoint, save_checkpoint
from ..model.lora import adapt, read_adapter, save_adapter
from .adapter_data import ADAPTER_MIXTURE, AdapterData, Encoded, shard_of, start_data
from .shards import ShardsAhead

WARMUP_STEPS = 30
DECAY_SHARE = 0.3  # of the tokens, over which the rate falls to zero
PART_TOKENS = 32_768  # that a GPU works on at once, padding included: some 10 GB of activations


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """What the command line sets."""

    base: Path
    out: Path
    data: Path | None = None
    start: Path | None = None  # an exported adapter to go on from
    device: str = "cpu"
    n_tokens: int = 3_000_000
    step_tokens: int = 1024  # at least, of whole conversations
    learning_rate: float = 1e-3
    average_steps: int = 40  # what is exported: a running average of the adapter
    shard_conversations: int = 300
    shard_workers: int = 0  # processes that build shards ahead; with a GPU, one a spare core
    checkpoint_minutes: float = 4.0
    threads: int = 2
    seed: int = 1


class AdapterTrainer:
    """A run that can be stopped and resumed at any checkpoint."""

    def __init__(self, options: AdapterOptions) -> None:
        self.options, self.device = options, torch.device(options.device)
        torch.manual_seed(options.seed)
        torch.set_num_threads(1)  # each conversation of a step has one core to itself
        options.out.mkdir(parents=True, exist_ok=True)
        self.model, tokenizer = load_base(options.base)
        self.data = AdapterData(options.data, tokenizer)
        self.adapter = adapt(self.model)
        if options.start is not None:
            read_adapter(options.start, self.adapter)
        self.model.to(self.device)
        self.average = {name: p.detach().clone() for name, p in self.adapter.items()}
        self.optimizer = torch.optim.AdamW(
            self.adapter.values(), options.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        self.shards_ahead = self._start_workers(tokenizer.to_str())
        self.pool = ThreadPoolExecutor(options.threads if self.device.type == "cpu" else 1)
        self.step = self.n_seen = self.shard = self.place = 0
        self.is_stopping = False
        if self._checkpoint.exists():
            self._resume()

    @property
    def _checkpoint(self) -> Path:
        return self.options.out / "adapter.pt"

    def _start_workers(self, tokenizer: str) -> ShardsAhead[list[Encoded]] | None:
        options = self.options
        if not options.shard_workers:
            return None
        return ShardsAhead(
            shard_of,
            start_data,
            (options.data, tokenizer),
            self._shard_seed,
            options.shard_conversations,
            options.shard_workers,
        )

    def _shard_seed(self, number: int) -> str:
        return f"adapter/{self.options.seed}/{number}"

    def _resume(self) -> None:
        state = load_checkpoint(self._checkpoint)
        with torch.no_grad():
            for name, parameter in self.adapter.items():
                parameter.copy_(state["adapter"][name])
        self.average = {name: tensor.to(self.device) for name, tensor in state["average"].items()}
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.n_seen = state["step"], state["n_seen"]
        self.shard, self.place = state["shard"], state["place"]

    def save(self) -> None:
        """Write the checkpoint and the averaged adapter."""
        save_checkpoint(
            self._checkpoint,
            {
                "adapter": {name: p.detach() for name, p in self.adapter.items()},
                "average": self.average,
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "n_seen": self.n_seen,
                "shard": self.shard,
                "place": self.place,
            },
        )
        save_adapter(self.options.out / "adapter", self.average, CHATML_TEMPLATE)

    def stop(self) -> None:
        """Make `run` save after the step in progress and return."""
        self.is_stopping = True

    def run(self) -> None:
        """Train until `n_tokens` were seen or `stop`; then save."""
        saved_at = started = time.monotonic()
        seen_before = self.n_seen
        with (self.options.out / "loss.csv").open("a", newline="") as log:
            writer = csv.writer(log)
            while not self._is_over():
                shard = self._read_shard()
                while self.place < len(shard) and not self._is_over():
                    loss, agent_loss = self._update(self._next_batch(shard))
                    seconds = time.monotonic() - started
                    rate = (self.n_seen - seen_before) / seconds
                    writer.writerow((self.step, self.n_seen, f"{loss:.4f}", f"{agent_loss:.4f}"))
                    log.flush()
                    print(
                        f"\rstep {self.step}, {self.n_seen} tokens, loss {loss:.3f}, agent "
                        f"{agent_loss:.3f}, {rate:.0f} tokens/s ", end="", flush=True,
                    )  # fmt: skip
                    if time.monotonic() - saved_at > self.options.checkpoint_minutes * 60:
                        self.save()
                        saved_at = time.monotonic()
                if self.place >= len(shard):
                    self.shard, self.place = self.shard + 1, 0
        if self.shards_ahead is not None:
            self.shards_ahead.close()
        self.save()

    def _is_over(self) -> bool:
        return self.is_stopping or self.n_seen >= self.options.n_tokens

    def _read_shard(self) -> list[Encoded]:
        """The conversations that are due."""
        if self.shards_ahead is not None:
            return self.shards_ahead.get(self.shard, ADAPTER_MIXTURE)
        seed, n_conversations = self._shard_seed(self.shard), self.options.shard_conversations
        return self.data.shard(seed, n_conversations, ADAPTER_MIXTURE)

    def _next_batch(self, shard: list[Encoded]) -> list[Encoded]:
        batch: list[Encoded] = []
        n_tokens = 0
        while n_tokens < self.options.step_tokens and self.place < len(shard):
            batch.append(shard[self.place])
            n_tokens += len(batch[-1][0])
            self.place += 1
        return batch

    def _parts(self, batch: list[Encoded]) -> list[list[Encoded]]:
        """What is worked on at once, the longest first.

        On a CPU a conversation by itself: a packed row of 1,024 tokens takes a sixth longer.
        """
        in_order = sorted(batch, key=lambda one: -len(one[0]))
        if self.device.type == "cpu":
            return [[one] for one in in_order]
        parts: list[list[Encoded]] = []
        for one in in_order:
            if not parts or (len(parts[-1]) + 1) * len(parts[-1][0][0]) > PART_TOKENS:
                parts.append([])
            parts[-1].append(one)
        return parts

    def _update(self, batch: list[Encoded]) -> tuple[float, float]:
        """One step; returns the weighted loss and that of the agent's words."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.learning_rate * self._rate_scale()
        total_weight = sum(sum(weights[1:]) for _, weights in batch)
        parameters = list(self.adapter.values())
        loss, agent_loss, n_agent = 0.0, 0.0, 0
        for gradients, part_loss, part_agent, part_n in self.pool.map(
            self._gradients, self._parts(batch)
        ):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                scaled = gradient / total_weight
                parameter.grad = scaled if parameter.grad is None else parameter.grad.add_(scaled)
            loss, agent_loss = loss + part_loss, agent_loss + part_agent
            n_agent += part_n
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        share = max(1 / (self.step + 1), 1 / self.options.average_steps)
        with torch.no_grad():
            for name, parameter in self.adapter.items():
                self.average[name].lerp_(parameter, share)
        self.step += 1
        self.n_seen += sum(len(tokens) for tokens, _ in batch)
        return loss / total_weight, agent_loss / max(1, n_agent)

    def _rate_scale(self) -> float:
        """Warm up by steps, hold, then fall to zero over the last tokens."""
        n_total = self.options.n_tokens
        left = (n_total - self.n_seen) / (DECAY_SHARE * n_total)
        return max(0.0, min(1.0, (self.step + 1) / WARMUP_STEPS, left))

    def _gradients(self, part: list[Encoded]) -> tuple[tuple[Tensor, ...], float, float, int]:
        """Gradients of the summed loss of some conversations; loss and count of agent's words."""
        if self.device.type == "cpu":
            torch.set_num_threads(1)
        tokens, weights = (tensor.to(self.device) for tensor in padded(part))
        positions = torch.arange(tokens.shape[1], device=self.device)[None].expand_as(tokens)
        targets, kept = tokens[:, 1:], weights[:, 1:] > 0
        with torch.autocast(self.device.type, torch.bfloat16):
            hidden = self.model(tokens, positions, None)
            logits = self.model.logits(hidden[:, :-1][kept]).float()
        losses = F.cross_entropy(logits, targets[kept], reduction="none")
        kept_weights = weights[:, 1:][kept]
        agent = kept_weights >= 1.0
        loss = (losses * kept_weights).sum()
        gradients = torch.autograd.grad(loss, list(self.adapter.values()))
        agent_loss = float(losses.detach()[agent].sum())
        return gradients, float(loss.detach()), agent_loss, int(agent.sum())


def padded(part: list[Encoded]) -> tuple[Tensor, Tensor]:
    """Tokens and weights [conversations, longest]; what is padded comes last and weighs nothing."""
    longest = max(len(tokens) for tokens, _ in part)
    tokens = torch.zeros(len(part), longest, dtype=torch.long)
    weights = torch.zeros(len(part), longest)
    for row, (ids, weight) in enumerate(part):
        tokens[row, : len(ids)] = torch.tensor(ids)
        weights[row, : len(ids)] = torch.tensor(weight)
    return tokens, weights
