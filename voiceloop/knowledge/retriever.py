"""The search for passages off the event loop: the contract, and folders as one.

Owns `Retriever`, which a call asks, and the thread that the index of a server's folders is searched
in. How long an answer is waited for is the affair of who asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from voiceloop.errors import Overloaded
from voiceloop.knowledge.documents import read_folder
from voiceloop.knowledge.index import Hit, KnowledgeIndex
from voiceloop.knowledge.passages import Passage, passages_of

# At a millisecond each these take less than two thirds of the 150 ms between two of one caller.
MAX_WAITING = 100


Hits = tuple[Hit, ...]


class Retriever(Protocol):
    """Passages by words. Its searches may be cancelled at any time."""

    @property
    def is_local(self) -> bool:
        """Whether some of it is searched here, without a network: in about a millisecond."""

    def is_telling(self, word: str) -> bool:
        """Whether a search for this word could tell passages apart; must return at once."""

    async def search(
        self, words: Sequence[str], n_most: int, so_far: Callable[[Hits], None] = lambda _: None
    ) -> Hits:
        """The best passages, best first; none is an answer too.

        so_far: is told what is there before all is, for who cannot wait.

        Raises:
            Overloaded: too many searches wait already.
            BackendError: a service that does the search failed.
        """

    async def close(self) -> None:
        """Idempotent."""


class FolderRetriever:
    """The folders of one agent in one index. `open` reads them; searches take turns."""

    is_local = True

    def __init__(self, index: KnowledgeIndex) -> None:
        self._index = index
        self._thread = ThreadPoolExecutor(1, "knowledge")
        self._n_waiting = 0

    @classmethod
    async def open(cls, folders: Sequence[Path], language: str) -> FolderRetriever:
        """Read and index all folders, in a thread.

        Raises: ConfigError: as `read_folder`, `passages_of` and `KnowledgeIndex`.
        """

        def build() -> KnowledgeIndex:
            return KnowledgeIndex(passages_in(*folders), language)

        return cls(await asyncio.to_thread(build))

    @property
    def n_passages(self) -> int:
        return len(self._index.passages)

    def is_telling(self, word: str) -> bool:
        return self._index.is_telling(word)

    async def search(
        self, words: Sequence[str], n_most: int, so_far: Callable[[Hits], None] = lambda _: None
    ) -> Hits:
        """As `Retriever`; all at once. One that nobody waits for any more is not begun."""
        if self._n_waiting >= MAX_WAITING:
            raise Overloaded(
                f"expected at most {MAX_WAITING} searches waiting, found {self._n_waiting}"
            )
        self._n_waiting += 1
        searching = self._thread.submit(self._index.find, tuple(words), n_most)
        # Counted until the thread is done with it: a cancelled wait leaves a search that runs.
        loop = asyncio.get_running_loop()
        searching.add_done_callback(lambda _: _tell(loop, self._count_done))
        return await asyncio.wrap_future(searching)

    def _count_done(self) -> None:
        self._n_waiting -= 1

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown, wait=True, cancel_futures=True)
        self._index.close()


def passages_in(*folders: Path) -> tuple[Passage, ...]:
    """All passages of these folders. Blocking. Raises: ConfigError: as `read_folder`."""
    documents = [
        replace(document, path=f"{folder.name}/{document.path}")
        for folder in folders
        for document in read_folder(folder)
    ]
    return tuple(passages_of(documents))


def _tell(loop: asyncio.AbstractEventLoop, done: Callable[[], None]) -> None:
    """Call `done` on the loop, from whichever thread; not where the loop has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(done)
