"""Folders as a retriever: read off the event loop, searched in turns, and never piled up on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from voiceloop.errors import ConfigError, Overloaded
from voiceloop.knowledge import retriever
from voiceloop.knowledge.index import Hit, KnowledgeIndex
from voiceloop.knowledge.passages import Passage
from voiceloop.knowledge.retriever import FolderRetriever


class SlowIndex(KnowledgeIndex):
    """Its searches wait until they are let go."""

    def __init__(self) -> None:
        super().__init__([Passage(0, "a.md", "", "boots")])
        self.may_go_on = threading.Event()
        self.n_begun = 0

    def search(self, question: str | Sequence[str], n_most: int = 4) -> list[Hit]:
        self.n_begun += 1
        assert self.may_go_on.wait(10)
        return super().search(question, n_most)


async def test_a_folder_that_is_not_there_is_told_when_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a folder"):
        await FolderRetriever.open([tmp_path / "nowhere"], "en")


async def test_searches_beyond_the_bound_are_refused_until_others_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retriever, "MAX_WAITING", 2)
    index = SlowIndex()
    found = FolderRetriever(index)
    waiting = [asyncio.create_task(found.search(("boots",), 1)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="at most 2 searches waiting, found 2"):
        await found.search(("boots",), 1)
    index.may_go_on.set()
    assert [len(hits) for hits in await asyncio.gather(*waiting)] == [1, 1]
    assert len(await found.search(("boots",), 1)) == 1
    await found.close()


async def test_a_search_that_nobody_waits_for_any_more_is_not_begun() -> None:
    index = SlowIndex()
    found = FolderRetriever(index)
    first, second = (asyncio.create_task(found.search(("boots",), 1)) for _ in range(2))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    index.may_go_on.set()
    assert len(await first) == 1
    await found.close()
    assert index.n_begun == 1
