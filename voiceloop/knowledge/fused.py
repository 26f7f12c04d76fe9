"""Several retrievers as one: all are asked at once, and what they find is fused by rank.

A source that is late or fails takes nothing from the others: what they have found is passed on as
soon as it is there.

Source of the ranking: Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion outperforms Condorcet
and individual Rank Learning Methods", SIGIR 2009, which also found RANK_OFFSET.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TypeVar

from voiceloop.errors import VoiceLoopError
from voiceloop.knowledge.index import Hit
from voiceloop.knowledge.retriever import Hits, Retriever

log = logging.getLogger(__name__)

RANK_OFFSET = 60
T = TypeVar("T", bound=Hashable)


class FusedRetriever:
    """`Retriever` over others, each with a deadline of its own; closed with it."""

    def __init__(self, retrievers: Sequence[Retriever]) -> None:
        self.retrievers = tuple(retrievers)

    @property
    def is_local(self) -> bool:
        return any(one.is_local for one in self.retrievers)

    def is_telling(self, word: str) -> bool:
        return any(one.is_telling(word) for one in self.retrievers)

    async def search(
        self, words: Sequence[str], n_most: int, so_far: Callable[[Hits], None] = lambda _: None
    ) -> Hits:
        """As `Retriever`; so_far: each time that one has answered. Raises: what the first raised,
        where the others found nothing: nobody may say then that no document tells.
        """
        searches = [asyncio.ensure_future(one.search(words, n_most)) for one in self.retrievers]
        pending = set(searches)
        try:
            while pending:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                if pending and (found := _fused(searches, n_most)):
                    so_far(found)
        finally:
            for search in pending:
                search.cancel()
        failures = [error for one in searches if (error := one.exception()) is not None]
        found = _fused(searches, n_most)
        if failures and not found:
            raise failures[0]
        for failure in failures:
            if not isinstance(failure, VoiceLoopError):
                raise failure  # a bug
            log.warning("one source of passages failed (%s)", failure.wire_code)
        return found

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in self.retrievers))


def _fused(searches: Sequence[asyncio.Future[Hits]], n_most: int) -> Hits:
    """Return what those have found that are done, in the order of the sources."""
    answers = (one.result() for one in searches if one.done() and one.exception() is None)
    # A passage's number counts within its own source.
    rankings = [[replace(hit.passage, number=0) for hit in answer] for answer in answers]
    found = fuse(rankings)[:n_most]
    return tuple(Hit(passage, -float(rank)) for rank, passage in enumerate(found))


def fuse(rankings: Sequence[Sequence[T]]) -> list[T]:
    """All that any ranking holds, best first; equals in the order in which they were met.

    rankings: each best first, without repetition.
    """
    scores: dict[T, float] = {}
    for ranking in rankings:
        for rank, found in enumerate(ranking, start=1):
            scores[found] = scores.get(found, 0.0) + 1.0 / (RANK_OFFSET + rank)
    return sorted(scores, key=lambda found: -scores[found])
