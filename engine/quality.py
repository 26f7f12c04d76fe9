"""Owns the comparison of a format of weights or KV with bf16 of the same checkpoint, as served.

Each format is loaded by the same code and run by the layers of this device, on what bf16 itself
answers greedily. Likeliest tokens and divergence tell whether it still is the model. Which texts,
and what follows from it, is for who asks: `voiceloop models gate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .engine import Engine
from .runner import Extension
from .sequence import borrowed
from .types import EngineConfig, SamplingParams

WINDOW_TOKENS = 1024  # a text is read in pieces of this many, each from an empty context
REPLY_TOKENS = 32  # at most, of an own reply: the first clauses, which a caller hears soonest
TOGETHER = 16  # replies that are generated in the same steps
KV_TOKENS = 16384  # for those, of a thousand tokens each
BRIEFLY = SamplingParams(max_tokens=REPLY_TOKENS)
LOGIT_ROWS = 128  # at a time: of 152,000 words these are 78 MB


@dataclass(frozen=True, slots=True)
class Quality:
    """The quality of one format against bf16 on one text."""

    n_tokens: int
    perplexity: float
    perplexity_change: float  # relative to bf16's
    kl_nats: float  # mean over positions, bf16 to this format
    top1_agreement: float  # with bf16


@dataclass(frozen=True, slots=True)
class Bound:
    """Upper bound of the divergence, lower bound of the agreement; both against bf16."""

    kl_nats: float
    top1_agreement: float


# The bar of every format of weights and KV; voiceloop/models/gates.toml and CONFIG.md say the same.
# One place in 167 where another token is the likeliest, and those are near ties: of the embedded
# agent's places fp32 and bf16 part in one of 500.
BOUND = Bound(kl_nats=0.01, top1_agreement=0.994)


@dataclass(frozen=True, slots=True)
class Format:
    """weights: as `EngineConfig.quant`, kv: as its `kv_format`."""

    weights: str | None = None
    kv: str = "plain"
    dtype: str = "bf16"

    @property
    def name(self) -> str:
        weights = self.weights or self.dtype
        return weights if self.kv == "plain" else f"{weights}, KV {self.kv}"

    def config(self, base: EngineConfig) -> EngineConfig:
        return replace(base, quant=self.weights, kv_format=self.kv, dtype=self.dtype)


BF16, FP32 = Format(), Format(dtype="fp32")


def log_probabilities(engine: Engine, tokens: Tokens[int]) -> Tensor:
    """Return the log probability of every next token after every prefix of `tokens`: fp32 [n,
    vocab].
    """
    with borrowed(engine.pool, engine.tree, list(tokens)) as sequence:
        logits = engine.runner.run([Extension(sequence, len(tokens), n_logits=len(tokens))])
    assert logits is not None
    return logits.float().log_softmax(-1)


@dataclass(frozen=True, slots=True)
class Passage:
    """A text to read, and which of its tokens count: bool [len(tokens)]."""

    tokens: list[int]
    counts: Tensor


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of a passage: its tokens, the places that count, and what follows there."""

    tokens: tuple[int, ...]
    kept: Tensor  # bool [len(tokens)]
    targets: Tensor  # int64 [kept]


def windows_of(passages: Iterable[Passage]) -> list[Window]:
    """The places of all passages that count, in windows."""
    found = []
    for one in passages:
        for start in range(0, len(one.tokens) - 1, WINDOW_TOKENS):
            window = one.tokens[start : start + WINDOW_TOKENS + 1]
            kept = one.counts[start + 1 : start + len(window)]
            if kept.any():
                targets = torch.tensor(window[1:])[kept]
                found.append(Window(tuple(window[:-1]), kept, targets))
    return found


def read(engine: Engine, windows: Tokens[Window]) -> Iterator[tuple[Tensor, Tensor]]:
    """Log probabilities fp32 [rows, vocab] at the places that count, and what follows [rows].

    What stands before the next such place is read as a prompt is, in chunks of `step_tokens`.
    """
    for window in windows:
        n_before = 0
        with borrowed(engine.pool, engine.tree, list(window.tokens)) as sequence:
            while sequence.n_pending:
                kept = window.kept[sequence.n_resident :]
                if not kept.any():
                    break
                if n := min(int(kept.int().argmax()), engine.config.step_tokens):
                    engine.runner.run([Extension(sequence, n)])
                    sequence.n_resident += n
                    continue
                n = min(LOGIT_ROWS, sequence.n_pending)
                logits = engine.runner.run([Extension(sequence, n, n_logits=n)])
                assert logits is not None
                sequence.n_resident += n
                rows = logits[kept[:n]].float().log_softmax(-1)
                yield rows, window.targets[n_before : n_before + len(rows)]
                n_before += len(rows)


class Reference:
    """The predictions of bf16 at every place, kept in a file: two large models are never here at
    once.
    """

    def __init__(self, engine: Engine, passages: Iterable[Passage], folder: Path) -> None:
        """folder: for a file of 4 bytes a place and word."""
        self.windows = windows_of(passages)
        n_places = sum(len(window.targets) for window in self.windows)
        shape = (n_places, engine.vocab_size)
        self._kept = np.memmap(folder / "reference", np.float32, "w+", shape=shape)
        nats, place = 0.0, 0
        for rows, targets in read(engine, self.windows):
            self._kept[place : place + len(rows)] = rows.numpy()
            nats -= float(rows.gather(1, targets[:, None]).double().sum())
            place += len(rows)
        self.n_places = n_places
        self.perplexity = float(np.exp(nats / n_places))

    def compare(self, engine: Engine) -> Quality:
        """An engine of the same checkpoint, in another format."""
        nats, kl, n_agreed, place = 0.0, 0.0, 0, 0
        for found, targets in read(engine, self.windows):
            wanted = torch.from_numpy(self._kept[place : place + len(found)])
            place += len(found)
            nats -= float(found.gather(1, targets[:, None]).double().sum())
            kl += float((wanted.exp() * (wanted - found)).double().sum())
            n_agreed += int((wanted.argmax(-1) == found.argmax(-1)).sum())
        perplexity = float(np.exp(nats / self.n_places))
        return Quality(
            n_tokens=self.n_places,
            perplexity=perplexity,
            perplexity_change=perplexity / self.perplexity - 1,
            kl_nats=kl / self.n_places,
            top1_agreement=n_agreed / self.n_places,
        )


def spoken(engine: Engine, prompts: Tokens[list[int]]) -> list[Passage]:
    """Return what a model answers to each prompt itself, greedily; its answers alone count."""
    passages = []
    for prompt, reply in zip(prompts, answers(engine, prompts), strict=True):
        counts = torch.zeros(len(prompt) + len(reply), dtype=torch.bool)
        counts[len(prompt) :] = True
        passages.append(Passage(prompt + reply, counts))
    return passages


def answers(
    engine: Engine, prompts: Tokens[list[int]], params: SamplingParams = BRIEFLY
) -> list[list[int]]:
    """Greedy replies to all of them, some at once."""
    if len(prompts) > TOGETHER:
        rest = answers(engine, prompts[TOGETHER:], params)
        return answers(engine, prompts[:TOGETHER], params) + rest
    branches = [engine.branch(f"answer{i}") for i in range(len(prompts))]
    for branch, prompt in zip(branches, prompts, strict=True):
        branch.commit(prompt, params)
    while engine.has_work():
        engine.step()
    replies = []
    for branch, prompt in zip(branches, prompts, strict=True):
        replies.append(branch.sequence.tokens[len(prompt) :])
        branch.close()
    return replies
