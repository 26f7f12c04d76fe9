"""Several retrievers as one: all are asked at once, and what they find is fused by rank.

Owns that one which is late or fails takes nothing from the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from voiceloop.errors import VoiceLoopError
from voiceloop.knowledge.fusion import fuse
from voiceloop.knowledge.index import Hit
from voiceloop.knowledge.passages import Passage
from voiceloop.knowledge.retriever import Retriever

log = logging.getLogger(__name__)


class FusedRetriever:
    """`Retriever` over others, each with a deadline of its own; closed with it."""

    def __init__(self, retrievers: Sequence[Retriever]) -> None:
        self._retrievers = tuple(retrievers)

    def is_telling(self, word: str) -> bool:
        return any(one.is_telling(word) for one in self._retrievers)

    async def search(self, words: Sequence[str], n_most: int) -> tuple[Hit, ...]:
        """As `Retriever`. Raises: what the first raised, where all did."""
        searches = (one.search(words, n_most) for one in self._retrievers)
        answers = await asyncio.gather(*searches, return_exceptions=True)
        rankings: list[list[Passage]] = []
        failures: list[BaseException] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                failures.append(answer)
            else:
                # A passage's number counts within its own source.
                rankings.append([replace(hit.passage, number=0) for hit in answer])
        if not rankings:
            raise failures[0]
        for failure in failures:
            if not isinstance(failure, VoiceLoopError):
                raise failure  # a bug, or the task was cancelled
            log.warning("one source of passages failed (%s)", failure.wire_code)
        found = fuse(rankings)[:n_most]
        return tuple(Hit(passage, -float(rank)) for rank, passage in enumerate(found))

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in self._retrievers))
