"""Builds the training shards, in the training process or ahead of it in worker processes.

Writing a shard takes seconds of Python; an accelerator would wait for it most of the time. Workers
build the next shards meanwhile. Either way a shard is a function of its seed alone.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

from tokenizers import Tokenizer

from ..conversations.dialogues import data_directory
from ..conversations.misheard import Misheard
from ..model.chat_format import ChatEncoder
from .corpus import Corpus, Rows, build_rows

Mixture = dict[str, int]
Shard = TypeVar("Shard")
_worker: tuple[Corpus, ChatEncoder] | None = None  # of this process, when it is a worker


def load_corpus(data: Path | None, heard: Path | None) -> Corpus:
    return Corpus(data_directory(data), misheard=Misheard.read(heard) if heard else None)


def start_rows(data: Path | None, heard: Path | None, tokenizer: Path) -> None:
    global _worker
    _worker = load_corpus(data, heard), ChatEncoder(Tokenizer.from_file(str(tokenizer)))


def rows_of(seed: str, n_conversations: int, mixture: Mixture) -> Rows:
    assert _worker is not None
    return build_rows(*_worker, seed, n_conversations, mixture)


class ShardsAhead(Generic[Shard]):
    """Shards by number, built `n_workers` ahead.

    build: of a seed, a number of conversations and a mixture; start: prepares a worker's process.
    Both are functions of a module. seed_of: the seed of a shard's number.
    """

    def __init__(
        self,
        build: Callable[[str, int, Mixture], Shard],
        start: Callable[..., None],
        start_arguments: tuple[Any, ...],
        seed_of: Callable[[int], str],
        n_conversations: int,
        n_workers: int,
    ) -> None:
        # A forked copy of a process with threads may hang.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(n_workers, context, start, start_arguments)
        self._build = build
        self._seed_of, self._n_conversations = seed_of, n_conversations
        self._n_ahead = n_workers
        self._waiting: dict[int, tuple[Mixture, Future[Shard]]] = {}

    def get(self, shard: int, mixture: Mixture) -> Shard:
        """The shard; those after it are begun with the same mixture."""
        for number in range(shard, shard + 1 + self._n_ahead):
            if number not in self._waiting or self._waiting[number][0] != mixture:
                seed = self._seed_of(number)
                future = self._pool.submit(self._build, seed, self._n_conversations, mixture)
                self._waiting[number] = mixture, future
        for number in [number for number in self._waiting if number < shard]:
            del self._waiting[number]
        return self._waiting.pop(shard)[1].result()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
