"""The training loop: shards in, Muon for matrices and AdamW for the rest, checkpoints out.

Owns the state of a run (model, optimizers, an average of the weights, its place in the data), its
growth in depth, and the loss plot. `train_agent` is its command.
"""

from __future__ import annotations

import csv
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from ..conversations.dialogues import data_directory
from ..model.agent_model import SIZES, AgentModel, document_mask
from ..model.chat_format import ChatEncoder
from ..model.checkpoint import export_model, load_checkpoint, save_checkpoint
from ..model.decoding import load_agent
from ..model.induction import N_INSERTED, insert_matching_layers, insert_silent_layers
from .corpus import DRILLS, MIXTURE, Corpus, Rows, build_rows, tokenizer_from
from .train_options import TrainOptions, learning_rate_scale

# What inserted layers write at first, against the residual stream: the loss hardly moves.
WRITE_GAIN, COPY_GAIN = 0.07, 0.2


class Trainer:
    """A run that can be stopped and resumed at any checkpoint."""

    def __init__(self, options: TrainOptions) -> None:
        self.options = options
        torch.manual_seed(options.seed)
        torch.set_num_threads(1)
        chosen = options.device
        if chosen == "auto":
            chosen = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(chosen)
        options.out.mkdir(parents=True, exist_ok=True)
        self.corpus = Corpus(data_directory(options.data))
        self.tokenizer = self._load_tokenizer()
        self.encoder = ChatEncoder(self.tokenizer)
        self.pool = ThreadPoolExecutor(options.threads if self.device.type == "cpu" else 1)
        self._build(SIZES[options.size].n_layers - N_INSERTED * len(options.grow_at))
        self._start_from(options.start)
        self.step = self.n_seen = self.shard = self.row = self.warm_from = 0
        self.full_depth = SIZES[options.size].n_layers
        self.stopping = False
        self.resume()

    def _build(self, n_layers: int) -> None:
        """Make model, average and optimizers for a depth."""
        options = self.options
        size = replace(SIZES[options.size], n_layers=n_layers)
        self.config = replace(size, vocab_size=self.tokenizer.get_vocab_size())
        self.model = AgentModel(self.config).to(self.device)
        self.parameters = list(self.model.parameters())
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        matrices = [p for n, p in self.model.named_parameters() if p.ndim == 2 and "embed" not in n]
        embedding = [self.model.model.embed_tokens.weight]
        norms = [p for p in self.model.parameters() if p.ndim == 1]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                matrices,
                lr=options.muon_lr,
                momentum=0.95,
                weight_decay=options.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(
                embedding, lr=options.embedding_lr, betas=(0.9, 0.95), weight_decay=0
            ),
            torch.optim.AdamW(norms, lr=options.norm_lr, betas=(0.9, 0.95), weight_decay=0),
        ]

    def _start_from(self, folder: Path | None) -> None:
        """Take the weights of an exported model; optimizers and the average begin anew."""
        if folder is None:
            return
        start, _ = load_agent(folder)
        self.model.load_state_dict(start.float().state_dict())
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def is_time_to_grow(self) -> bool:
        """Whether the next two layers are due."""
        n_missing = (self.full_depth - self.config.n_layers) // N_INSERTED
        return n_missing > 0 and self.n_seen >= self.options.grow_at[-n_missing]

    def grow(self, rows: Rows) -> None:
        """Insert two layers: first those that match several tokens, later silent copies.

        The scales of the first are measured on `rows`.
        """
        torch.manual_seed(self.options.seed)
        if self.full_depth - self.config.n_layers == N_INSERTED * len(self.options.grow_at):
            tokens = torch.from_numpy(rows.tokens[:8])
            documents = torch.from_numpy(rows.documents[:8])
            grown = insert_matching_layers(
                self.model.cpu(), tokens, documents, WRITE_GAIN, COPY_GAIN
            ).state_dict()
        else:
            grown = insert_silent_layers(self.model.cpu()).state_dict()
        self._build(self.config.n_layers + N_INSERTED)
        self.model.load_state_dict(grown)
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.warm_from = self.step

    def _load_tokenizer(self) -> Tokenizer:
        path = self.options.out / "tokenizer.json"
        options = self.options
        if options.start is not None:
            Tokenizer.from_file(str(options.start / "tokenizer.json")).save(str(path))
        elif not path.exists():
            tokenizer_from(
                self.corpus, options.vocab_size, options.seed, options.tokenizer_conversations
            ).save(str(path))
        return Tokenizer.from_file(str(path))

    @property
    def checkpoint_path(self) -> Path:
        return self.options.out / f"{self.options.size}.pt"

    def resume(self) -> None:
        """Continue from the checkpoint in `out`, if there is one."""
        if not self.checkpoint_path.exists():
            return
        state = load_checkpoint(self.checkpoint_path)
        n_layers = 1 + max(int(name.split(".")[2]) for name in state["model"] if ".layers." in name)
        if n_layers != self.config.n_layers:
            self._build(n_layers)
        self.model.load_state_dict(state["model"])
        self.average = {name: t.to(self.device) for name, t in state["average"].items()}
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.n_seen = state["step"], state["n_seen"]
        self.shard, self.row = state["shard"], state["row"]
        self.warm_from = state["warm_from"]

    def save(self) -> None:
        save_checkpoint(
            self.checkpoint_path,
            {
                "model": self.model.state_dict(),
                "average": self.average,
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "step": self.step,
                "n_seen": self.n_seen,
                "shard": self.shard,
                "row": self.row,
                "warm_from": self.warm_from,
            },
        )

    def loss_of(self, rows: Rows, at: slice) -> tuple[Tensor, float, float]:
        """Summed weighted loss of some rows; the loss and the count of the agent's own words."""

        def tensor(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array[at]).to(self.device)

        tokens, documents = tensor(rows.tokens), tensor(rows.documents)
        weights = tensor(rows.target_weights)
        keep = (weights > 0).flatten()
        with torch.autocast(self.device.type, torch.bfloat16):
            hidden = self.model(tokens, tensor(rows.positions), document_mask(documents))
            hidden = hidden[:, :-1].reshape(-1, hidden.shape[-1])[keep]
            logits = self.model.logits(hidden).float()
        losses = F.cross_entropy(logits, tokens[:, 1:].flatten()[keep], reduction="none")
        kept = weights.flatten()[keep]
        agent = kept >= 1.0
        return (losses * kept).sum(), float(losses.detach()[agent].sum()), float(agent.sum())

    def _part(self, rows: Rows, at: slice) -> tuple[tuple[Tensor, ...], float, float, float]:
        """Gradients of a few rows. On a CPU each part has one core to itself."""
        if self.device.type == "cpu":
            torch.set_num_threads(1)
        loss, agent_loss, n_agent = self.loss_of(rows, at)
        gradients = torch.autograd.grad(loss, self.parameters)
        return gradients, float(loss.detach()), agent_loss, n_agent

    def update(self, rows: Rows, at: slice) -> tuple[float, float]:
        """One step on the rows `at`; returns the weighted loss and that of the agent's words.

        Rows are worked off in parts by one thread a core. Unlike one operation split over all
        cores this hardly slows down when another process holds one of them for a while.
        """
        options = self.options
        scale = learning_rate_scale(self.n_seen, self.step - self.warm_from, options)
        rates = (options.muon_lr, options.embedding_lr, options.norm_lr)
        for optimizer, rate in zip(self.optimizers, rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * options.rate * scale
        stop = min(at.stop, len(rows))
        size = options.rows_per_part if self.device.type == "cpu" else options.rows_per_step
        parts = [slice(first, min(first + size, stop)) for first in range(at.start, stop, size)]
        total_weight = float(rows.target_weights[at].sum())
        loss = agent_loss = n_agent = 0.0
        for gradients, part_loss, part_agent, part_n in self.pool.map(
            lambda part: self._part(rows, part), parts
        ):
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                scaled = gradient / total_weight
                parameter.grad = scaled if parameter.grad is None else parameter.grad.add_(scaled)
            loss, agent_loss = loss + part_loss, agent_loss + part_agent
            n_agent += part_n
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        share = max(1.0 / (self.step + 1), 1.0 / self.options.average_steps)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                self.average[name].lerp_(parameter, share)
        self.step += 1
        self.n_seen += int((rows.documents[at] >= 0).sum())
        return loss / total_weight, agent_loss / max(1.0, n_agent)

    def shard_rows(self, mixture: dict[str, int]) -> Rows:
        """The shard that is due."""
        return build_rows(
            self.corpus,
            self.encoder,
            f"{self.options.seed}/{self.shard}",
            self.options.shard_conversations,
            mixture,
        )

    def stop(self) -> None:
        """Make `run` save a checkpoint after the step in progress and return."""
        self.stopping = True

    def is_over(self) -> bool:
        return self.n_seen >= self.options.n_tokens

    def run(self) -> None:
        """Train until `n_tokens` were seen; then save, plot and export."""
        options = self.options
        log_path = options.out / f"{options.size}_loss.csv"
        saved_at, started, seen_before = time.monotonic(), time.monotonic(), self.n_seen
        with log_path.open("a", newline="") as log:
            writer = csv.writer(log)
            while not self.is_over():
                rows = self.shard_rows(DRILLS if self.n_seen < options.drill_until else MIXTURE)
                while self.row < len(rows) and not self.is_over():
                    if self.is_time_to_grow():
                        self.grow(rows)
                    at = slice(self.row, self.row + options.rows_per_step)
                    loss, agent_loss = self.update(rows, at)
                    self.row = at.stop
                    writer.writerow((self.step, self.n_seen, f"{loss:.4f}", f"{agent_loss:.4f}"))
                    if self.step % 5 == 0:
                        log.flush()
                        rate = (self.n_seen - seen_before) / (time.monotonic() - started)
                        self._show(loss, agent_loss, rate)
                    if self.stopping or (
                        time.monotonic() - saved_at > options.checkpoint_minutes * 60
                    ):
                        self.save()
                        saved_at = time.monotonic()
                    if self.stopping:
                        return
                if self.row >= len(rows):
                    self.shard, self.row = self.shard + 1, 0
        self.save()
        plot_loss(log_path)
        self.export(options.out / options.size)

    def _show(self, loss: float, agent_loss: float, tokens_per_s: float) -> None:
        total = self.options.n_tokens
        bar = "#" * int(30 * self.n_seen / total)
        minutes = (total - self.n_seen) / max(1.0, tokens_per_s) / 60
        print(
            f"\r[{bar:<30}] step {self.step} {self.n_seen / 1e6:.2f}M/{total / 1e6:.0f}M tokens, "
            f"loss {loss:.3f}, agent {agent_loss:.3f}, {tokens_per_s:.0f} tokens/s, "
            f"{minutes:.0f} min left ",
            end="",
            flush=True,
        )

    def export(self, folder: Path) -> None:
        export_model(folder, self.config, self.average, self.tokenizer)


def plot_loss(log_path: Path) -> None:
    """Draw the loss beside its CSV; without matplotlib there is no picture."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    table: Any = np.loadtxt(log_path, delimiter=",", ndmin=2)
    figure, axes = pyplot.subplots(figsize=(8, 4))
    window = max(1, min(50, len(table) // 10))
    kernel = np.ones(window) / window
    for column, label in ((2, "all, weighted"), (3, "the agent's words")):
        smooth = np.convolve(table[:, column], kernel, mode="valid")
        axes.plot(table[len(table) - len(smooth) :, 1] / 1e6, smooth, label=label)
    axes.set(xlabel="million tokens", ylabel="nats per token")
    axes.legend()
    figure.tight_layout()
    figure.savefig(log_path.with_suffix(".png"), dpi=120)
    pyplot.close(figure)
