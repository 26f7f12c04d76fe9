"""Passages from services: what they are asked, what of their answers counts, who may fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.passage_service import PassageService
from tests.scripted_retriever import ScriptedRetriever
from voiceloop.errors import BackendError, BackendTimeout, ConfigError
from voiceloop.knowledge.fused import FusedRetriever
from voiceloop.knowledge.index import Hit
from voiceloop.knowledge.sources import KnowledgeSource, check_sources, open_retriever

FILMS = {"text": "Films are lent for one week.", "path": "loans.md", "heading": "Films"}
BOOKS = {"text": "Books are lent for four weeks.", "path": "loans.md", "heading": "Books"}
IN_TIME_MS = 30_000  # a call's 120 ms are too few for a socket on a machine under load
WORDS = ("how", "long", "can", "i", "keep", "a", "film")


def texts(hits: tuple[Hit, ...]) -> list[str]:
    return [hit.passage.text for hit in hits]


def service_at(url: str) -> KnowledgeSource:
    return KnowledgeSource(url)


async def found(
    source: KnowledgeSource, service_ms: float = IN_TIME_MS, **environment: str
) -> tuple[Hit, ...]:
    async with open_retriever([source], "en", environment, service_ms) as retriever:
        assert retriever is not None
        assert retriever.is_telling("film") and not retriever.is_telling("can")
        return await retriever.search(WORDS, 4)


async def test_a_service_is_asked_in_the_callers_words_and_its_order_stands() -> None:
    service = PassageService({"/search": {"passages": [FILMS, {"text": "Ask at the desk."}]}})
    async with service.running():
        source = KnowledgeSource(f"{service.url}/search", headers={"key": "${KEY}"})
        hits = await found(source, KEY="s3cret")
    assert texts(hits) == [FILMS["text"], "Ask at the desk."]
    assert (hits[0].passage.path, hits[0].passage.heading) == ("loans.md", "Films")
    ((path, body, head),) = service.asked
    assert (path, body) == ("/search", {"query": "how long can i keep a film", "k": 4})
    assert "key: s3cret" in head


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"passages": [{"heading": "no text"}]}, 200),
        ([1, 2], 200),
        ({"passages": []}, 503),
        ({"passages": [{"text": "x" * 300_000}]}, 200),
    ],
)
async def test_an_answer_that_is_none_is_an_error_of_the_service(answer: Any, status: int) -> None:
    service = PassageService({"/": answer}, status=status)
    async with service.running():
        with pytest.raises(BackendError):
            await found(service_at(f"{service.url}/"))


async def test_more_and_longer_passages_than_were_asked_for_are_cut() -> None:
    service = PassageService({"/": {"passages": [{"text": "y" * 9000}] * 9}})
    async with service.running():
        hits = await found(service_at(f"{service.url}/"))
    assert len(hits) == 4 and all(len(text) == 4000 for text in texts(hits))


async def test_a_service_that_is_late_or_away_is_no_answer() -> None:
    service = PassageService({"/": {"passages": []}}, takes_s=5.0)
    async with service.running():
        with pytest.raises(BackendTimeout):
            await found(service_at(f"{service.url}/"), 60.0)
    with pytest.raises(BackendError):
        await found(service_at("http://127.0.0.1:9/"))


async def test_a_folder_and_a_service_are_fused_and_neither_fails_the_other(tmp_path: Path) -> None:
    (tmp_path / "loans.md").write_text("# Films\nA film is lent for one week.\n")
    service = PassageService({"/": {"passages": [BOOKS]}})
    async with service.running():
        sources = [KnowledgeSource(str(tmp_path)), service_at(f"{service.url}/")]
        async with open_retriever(sources, "en", {}, IN_TIME_MS) as retriever:
            assert retriever is not None
            both = texts(await retriever.search(("film",), 4))
            assert both == ["A film is lent for one week.", BOOKS["text"]]
            service.status = 500
            assert texts(await retriever.search(("film",), 4)) == both[:1]
            with pytest.raises(BackendError):  # what was not searched may have told
                await retriever.search(("parking",), 4)


async def test_where_all_sources_fail_the_search_does() -> None:
    failing = ScriptedRetriever(error=BackendError("expected passages, found none"))
    with pytest.raises(BackendError):
        await FusedRetriever([failing, failing]).search(("film",), 4)
    bug = ScriptedRetriever(error=KeyError("x"))
    with pytest.raises(KeyError):
        await FusedRetriever([ScriptedRetriever(), bug]).search(("film",), 4)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (KnowledgeSource("http://a/", headers={"k": 1}), "knowledge[0].headers.k"),
    ],
)
def test_what_a_source_lacks_is_told_at_the_start(source: KnowledgeSource, told: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        check_sources([source])
    assert told in wrong.value.message


async def test_an_address_that_is_none_and_a_variable_that_is_not_set_are_told() -> None:
    for url in ("shop", "${NOWHERE}"):
        with pytest.raises(ConfigError):
            await found(KnowledgeSource(url))
