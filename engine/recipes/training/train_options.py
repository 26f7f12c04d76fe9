"""The options of a training run, and its schedule of learning rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

SHARD_CONVERSATIONS = 6000


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The options of the command line."""

    data: Path | None
    out: Path
    size: str = "target"
    device: str = "auto"
    n_tokens: int = 24_000_000
    rows_per_step: int = 8
    rows_per_part: int = 2
    muon_lr: float = 3e-3
    embedding_lr: float = 5e-3
    norm_lr: float = 1e-3
    weight_decay: float = 0.02
    warmup_steps: int = 60
    decay_share: float = 0.3
    start: Path | None = None  # an exported model that a fresh run goes on from
    rate: float = 1.0  # share of the three learning rates
    average_steps: int = 200  # what is exported: a running average of the weights
    drill_until: int = 0  # tokens that are drills alone, in the beginning
    grow_at: tuple[int, ...] = ()  # tokens after each of which two layers are inserted
    seed: int = 1
    threads: int = 2
    checkpoint_minutes: float = 5.0
    shard_conversations: int = SHARD_CONVERSATIONS
    vocab_size: int = 4096
    tokenizer_conversations: int = 8000


def short_run(options: TrainOptions) -> TrainOptions:
    """The options of a run that goes on from a model.

    It has hundreds of steps, not thousands: it warms up, averages and draws its data in less.
    """
    return replace(
        options,
        warmup_steps=20,
        average_steps=60,
        shard_conversations=1500,
        drill_until=0,
        grow_at=(),
    )


def learning_rate_scale(n_seen: int, step: int, options: TrainOptions) -> float:
    """Warm up by steps, hold, then fall linearly to zero in the last `decay_share` of tokens."""
    n_total = options.n_tokens
    warm = min(1.0, (step + 1) / options.warmup_steps)
    by_tokens = (n_total - n_seen) / max(1.0, n_total * options.decay_share)
    return warm * max(0.0, min(1.0, by_tokens))
