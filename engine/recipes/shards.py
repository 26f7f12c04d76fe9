"""Builds the training shards, in the training process or ahead of it in worker processes.

Writing a shard takes seconds of Python; an accelerator would wait for it most of the time. Workers
build the next shards meanwhile. Either way a shard is a function of its seed alone.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

from tokenizers import Tokenizer

from .chat_format import ChatEncoder
from .corpus import Corpus, Rows, build_rows
from .dialogues import data_directory
from .misheard import Misheard

Mixture = dict[str, int]
_worker: tuple[Corpus, ChatEncoder] | None = None  # of this process, when it is a worker


def load_corpus(data: Path | None, heard: Path | None) -> Corpus:
    return Corpus(data_directory(data), misheard=Misheard.read(heard) if heard else None)


def _start_worker(data: Path | None, heard: Path | None, tokenizer: Path) -> None:
    global _worker
    _worker = load_corpus(data, heard), ChatEncoder(Tokenizer.from_file(str(tokenizer)))


def _build(seed: str, n_conversations: int, mixture: Mixture) -> Rows:
    assert _worker is not None
    return build_rows(*_worker, seed, n_conversations, mixture)


class ShardsAhead:
    """Shards by number, built `n_workers` ahead.

    seed_of: the seed of a shard's number.
    """

    def __init__(
        self,
        data: Path | None,
        heard: Path | None,
        tokenizer: Path,
        seed_of: Callable[[int], str],
        n_conversations: int,
        n_workers: int,
    ) -> None:
        # A forked copy of a process with threads may hang.
        self._pool = ProcessPoolExecutor(
            n_workers,
            multiprocessing.get_context("spawn"),
            _start_worker,
            (data, heard, tokenizer),
        )
        self._seed_of, self._n_conversations = seed_of, n_conversations
        self._n_ahead = n_workers
        self._waiting: dict[int, tuple[Mixture, Future[Rows]]] = {}

    def get(self, shard: int, mixture: Mixture) -> Rows:
        """The shard; those after it are begun with the same mixture."""
        for number in range(shard, shard + 1 + self._n_ahead):
            if number not in self._waiting or self._waiting[number][0] != mixture:
                seed = self._seed_of(number)
                future = self._pool.submit(_build, seed, self._n_conversations, mixture)
                self._waiting[number] = mixture, future
        for number in [number for number in self._waiting if number < shard]:
            del self._waiting[number]
        return self._waiting.pop(shard)[1].result()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
