"""A retriever that finds what it is told to, as fast as it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from voiceloop.knowledge.index import Hit
from voiceloop.knowledge.passages import Passage
from voiceloop.knowledge.retriever import Hits

NOT_TELLING = ("my", "the", "hello", "there")


class ScriptedRetriever:
    """Finds one passage, the words it was asked with, after `takes_ms`; or fails."""

    def __init__(
        self, takes_ms: float = 5.0, error: Exception | None = None, *, is_local: bool = True
    ) -> None:
        self.is_local = is_local
        self.takes_ms = takes_ms
        self.error = error
        self.asked: list[str] = []
        self.n_cancelled = 0

    def is_telling(self, word: str) -> bool:
        return word not in NOT_TELLING

    async def search(
        self, words: Sequence[str], n_most: int, so_far: Callable[[Hits], None] = lambda _: None
    ) -> Hits:
        self.asked.append(" ".join(words))
        try:
            await asyncio.sleep(self.takes_ms / 1000.0)
        except asyncio.CancelledError:
            self.n_cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return (Hit(Passage(0, "shop/a.md", "Shoes", " ".join(words)), 1.0),)

    async def close(self) -> None: ...
