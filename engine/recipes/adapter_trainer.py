"""The training loop of an adapter: the agent's data in another model's chat format, AdamW.

Owns the state of a run: the adapter, its running average, the optimizer, its place in the data. A
run has no end of its own: it saves and exports every few minutes, and goes on when started again.
`train_adapter` is its command.
"""

from __future__ import annotations

import csv
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from .base_model import load_base
from .chat_format import ChatEncoder
from .chatml import CHATML_FORMAT, CHATML_TEMPLATE
from .checkpoint import load_checkpoint, save_checkpoint
from .corpus import Corpus
from .dialogues import data_directory
from .lora import adapt, save_adapter

Encoded = tuple[list[int], list[float]]  # tokens, and the weight of predicting each

# Conversations per thousand. What a general model cannot know comes first: facts of the prompt,
# calls in our notation and the use of their results, orders, bookings, refusals. It need not learn
# to copy, so there are no drills.
ADAPTER_MIXTURE = {
    "calls": 460,
    "facts": 150,
    "desk": 130,
    "tally": 15,
    "sgd": 60,
    "star": 60,
    "tm4": 50,
    "webq": 45,
    "open": 30,
}
MAX_TOKENS = 768  # of a conversation; one in fifty is longer
# Its words are read for the end of the turn, and learned a little for that.
USER_WEIGHT = 0.1
WARMUP_STEPS = 30


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """What the command line sets."""

    base: Path
    out: Path
    data: Path | None = None
    n_tokens: int = 3_000_000
    step_tokens: int = 1024  # at least, of whole conversations
    learning_rate: float = 1e-3
    average_steps: int = 40  # what is exported: a running average of the adapter
    shard_conversations: int = 300
    checkpoint_minutes: float = 4.0
    threads: int = 2
    seed: int = 1


class AdapterTrainer:
    """A run that can be stopped and resumed at any checkpoint."""

    def __init__(self, options: AdapterOptions) -> None:
        self.options = options
        torch.manual_seed(options.seed)
        torch.set_num_threads(1)  # each row of a step has one core to itself
        options.out.mkdir(parents=True, exist_ok=True)
        self.corpus = Corpus(data_directory(options.data))
        self.model, tokenizer = load_base(options.base)
        self.encoder = ChatEncoder(tokenizer, CHATML_FORMAT, USER_WEIGHT)
        self.adapter = adapt(self.model)
        self.average = {name: p.detach().clone() for name, p in self.adapter.items()}
        self.optimizer = torch.optim.AdamW(
            self.adapter.values(), options.learning_rate, betas=(0.9, 0.99), weight_decay=0.0
        )
        self.pool = ThreadPoolExecutor(options.threads)
        self.step = self.n_seen = self.shard = self.place = 0
        self.is_stopping = False
        if self._checkpoint.exists():
            self._resume()

    @property
    def _checkpoint(self) -> Path:
        return self.options.out / "adapter.pt"

    def _resume(self) -> None:
        state = load_checkpoint(self._checkpoint)
        with torch.no_grad():
            for name, parameter in self.adapter.items():
                parameter.copy_(state["adapter"][name])
        self.average = state["average"]
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
                    batch = self._next_batch(shard)
                    loss, agent_loss = self._update(batch)
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
        self.save()

    def _is_over(self) -> bool:
        return self.is_stopping or self.n_seen >= self.options.n_tokens

    def _read_shard(self) -> list[Encoded]:
        """The conversations that are due: a function of the seed and the shard's number."""
        rng = random.Random(f"adapter/{self.options.seed}/{self.shard}")
        drawn = self.corpus.conversations(rng, self.options.shard_conversations, ADAPTER_MIXTURE)
        return [
            (tokens[:MAX_TOKENS], weights[:MAX_TOKENS])
            for tokens, weights in self.encoder.encode_batch(list(drawn))
        ]

    def _next_batch(self, shard: list[Encoded]) -> list[Encoded]:
        batch: list[Encoded] = []
        n_tokens = 0
        while n_tokens < self.options.step_tokens and self.place < len(shard):
            batch.append(shard[self.place])
            n_tokens += len(batch[-1][0])
            self.place += 1
        return sorted(batch, key=lambda one: -len(one[0]))  # the longest first: even threads

    def _update(self, batch: list[Encoded]) -> tuple[float, float]:
        """One step; returns the weighted loss and that of the agent's words."""
        for group in self.optimizer.param_groups:
            warm = min(1.0, (self.step + 1) / WARMUP_STEPS)
            group["lr"] = self.options.learning_rate * warm
        total_weight = sum(sum(weights[1:]) for _, weights in batch)
        parameters = list(self.adapter.values())
        loss, agent_loss, n_agent = 0.0, 0.0, 0
        for gradients, part_loss, part_agent, part_n in self.pool.map(self._gradients, batch):
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

    def _gradients(self, one: Encoded) -> tuple[tuple[Tensor, ...], float, float, int]:
        """Of a conversation: gradients of its summed loss; loss and count of the agent's words.

        A conversation by itself: attention over a packed row costs three times as much.
        """
        torch.set_num_threads(1)
        tokens, weights = torch.tensor([one[0]]), torch.tensor(one[1])[1:]
        kept = weights > 0
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.model(tokens, torch.arange(tokens.shape[1])[None], None)
            logits = self.model.logits(hidden[0, :-1][kept]).float()
        losses = F.cross_entropy(logits, tokens[0, 1:][kept], reduction="none")
        weights = weights[kept]
        agent = weights >= 1.0
        loss = (losses * weights).sum()
        gradients = torch.autograd.grad(loss, list(self.adapter.values()))
        return (
            gradients,
            float(loss.detach()),
            float(losses.detach()[agent].sum()),
            int(agent.sum()),
        )
