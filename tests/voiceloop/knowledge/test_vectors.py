"""A folder searched by vectors: from a table of word vectors, from a service, kept on disk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.passage_service import PassageService
from voiceloop.agent_file import load_agent
from voiceloop.errors import BackendError, ConfigError
from voiceloop.knowledge import vectors
from voiceloop.knowledge.fused import FusedRetriever
from voiceloop.knowledge.passages import Passage
from voiceloop.knowledge.sources import KnowledgeSource, check_sources, open_retriever
from voiceloop.knowledge.vectors import (
    KeptVectors,
    StaticEmbeddings,
    VectorRetriever,
    Vectors,
    unit,
)

# What each word is about: films and movies, dogs and pets, nothing.
MEANS = {"[UNK]": (9, 9), "movies": (1, 0), "films": (0.9, 0.1), "dogs": (0, 1), "pets": (0.1, 0.9),
         "week": (0.1, 0.1)}  # fmt: skip
FOLDER = {"loans.md": "# Films\nFilms one week.\n", "house.md": "# Dogs\nDogs stay outside.\n"}


def write_table(folder: Path, **changed: Any) -> Path:
    """A table of word vectors as model2vec writes it."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(MEANS)}, "[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    tensors = {"embeddings": np.array(list(MEANS.values()), np.float32), **changed}
    save_file({k: v for k, v in tensors.items() if v is not None}, folder / "model.safetensors")
    return folder


def write_folder(folder: Path) -> Path:
    folder.mkdir()
    for name, text in FOLDER.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@asynccontextmanager
async def opened(source: KnowledgeSource, cache: Path) -> AsyncIterator[FusedRetriever]:
    """The folder's retriever, when its vectors are there or cannot be."""
    check_sources([source])
    patient = replace(source, deadline_ms=30_000)  # no test here is about a service that is late
    async with open_retriever([patient], "en", {"VOICELOOP_CACHE": str(cache)}) as retriever:
        assert isinstance(retriever, FusedRetriever)
        for one in retriever.retrievers:
            if isinstance(one, VectorRetriever):
                await one.building
        yield retriever


async def texts(retriever: FusedRetriever, *words: str) -> list[str]:
    return [hit.passage.text for hit in await retriever.search(words, 4)]


async def test_a_passage_is_found_by_what_it_means_though_none_of_its_words_was_said(
    tmp_path: Path,
) -> None:
    source = KnowledgeSource(
        folder=write_folder(tmp_path / "book"),
        embeddings=str(write_table(tmp_path / "table")),
        least_score=0.9,
    )
    async with opened(source, tmp_path) as retriever:
        assert await texts(retriever, "movies") == ["Films one week."]
        assert await texts(retriever, "pets") == ["Dogs stay outside."]
        assert await texts(retriever, "unheard") == []  # no word is known: like nothing
        assert await texts(retriever, "outside") == ["Dogs stay outside."]  # by its words
        assert retriever.is_local
    assert not (tmp_path / "vectors.sqlite").exists()  # they cost nothing to make


async def test_weights_and_rows_of_tokens_count(tmp_path: Path) -> None:
    n = len(MEANS)
    swapped = np.array([0, 3, 3, 1, 1, 5])
    table = StaticEmbeddings(write_table(tmp_path / "a", mapping=swapped))
    assert table.vectors(["movies"])[0] == pytest.approx([0.0, 1.0])
    weights = np.ones(n, np.float32)
    weights[1] = 0.0
    table = StaticEmbeddings(write_table(tmp_path / "b", weights=weights))
    assert table.vectors(["movies dogs"])[0] == pytest.approx([0.0, 1.0])
    assert table.vectors(["movies", "", "what"]).tolist() == [[0.0, 0.0]] * 3


@pytest.mark.parametrize(
    "changed",
    [
        {"embeddings": None, "other": np.zeros((2, 2), np.float32)},
        {"embeddings": np.zeros(6, np.float32)},
        {"embeddings": np.full((6, 2), np.nan, np.float32)},
        {"embeddings": np.zeros((3, 2), np.float32)},
        {"mapping": np.array([0, 1, 2, 3, 4, 99])},
        {"mapping": np.array([-1, 1, 2, 3, 4, 5])},
        {"weights": np.ones(2, np.float32)},
    ],
)
def test_a_table_that_is_none_is_told_at_the_start(tmp_path: Path, changed: Any) -> None:
    with pytest.raises(ConfigError, match="knowledge: embeddings: expected"):
        StaticEmbeddings(write_table(tmp_path / "table", **changed))


def test_files_that_are_missing_or_broken_are_told_at_the_start(tmp_path: Path) -> None:
    folder = write_table(tmp_path / "table")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="a tokenizer"):
        StaticEmbeddings(folder)
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ConfigError, match="word vectors"):
        StaticEmbeddings(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        StaticEmbeddings(folder)


class VectorService(PassageService):
    """``/v1/embeddings`` of the same meanings."""

    def __init__(self) -> None:
        super().__init__({"/v1/embeddings": None})

    @property
    def answers(self) -> dict[str, Any]:
        asked = self.asked[-1][1]["input"] if self.asked else []
        return {"/v1/embeddings": {"data": [{"embedding": meaning(text)} for text in asked]}}

    @answers.setter
    def answers(self, answers: dict[str, Any]) -> None:
        pass

    @property
    def inputs(self) -> list[list[str]]:
        return [body["input"] for _, body, _ in self.asked]


def meaning(text: str) -> list[float]:
    known = [MEANS[word] for word in text.lower().strip(".").split() if word in MEANS]
    return [float(sum(one[axis] for one in known)) for axis in (0, 1)]


async def test_a_service_s_vectors_are_made_once_and_kept_on_disk(tmp_path: Path) -> None:
    folder, service = write_folder(tmp_path / "book"), VectorService()
    async with service.running():
        source = KnowledgeSource(
            folder=folder, embeddings=f"{service.url}/v1/embeddings", embedding_model="m",
            least_score=0.9,
        )  # fmt: skip
        async with opened(source, tmp_path) as retriever:
            assert await texts(retriever, "movies") == ["Films one week."]
        assert [len(texts) for texts in service.inputs] == [2, 1]  # the passages, the question
        assert service.asked[0][1]["model"] == "m"
        service.asked.clear()
        async with opened(source, tmp_path) as retriever:
            assert await texts(retriever, "pets") == ["Dogs stay outside."]
        assert service.inputs == [["pets"]]
        service.asked.clear()
        (folder / "house.md").write_text("# Pets\nPets stay outside.\n", encoding="utf-8")
        async with opened(source, tmp_path):
            assert service.inputs == [["Pets Pets stay outside."]]  # what is new alone


async def test_a_service_that_fails_costs_the_vectors_and_nothing_else(tmp_path: Path) -> None:
    service = VectorService()
    async with service.running():
        source = KnowledgeSource(
            folder=write_folder(tmp_path / "book"),
            embeddings=f"{service.url}/v1/embeddings",
            embedding_model="m",
            least_score=0.9,
        )
        service.status = 500
        async with open_retriever([source], "en", {"VOICELOOP_CACHE": str(tmp_path)}) as retriever:
            assert isinstance(retriever, FusedRetriever)
            assert await texts(retriever, "films") == ["Films one week."]
            assert await texts(retriever, "movies") == []
        service.status = 200
        async with opened(source, tmp_path) as retriever:
            assert await texts(retriever, "movies") == ["Films one week."]
            service.status = 500
            assert await texts(retriever, "films") == ["Films one week."]


async def test_a_cache_that_cannot_be_read_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "vectors.sqlite").write_bytes(b"no database" * 100)
    kept = KeptVectors(tmp_path / "vectors.sqlite", "m")
    assert kept.find(["a"]) == {}
    kept.keep(["a"], unit(np.ones((1, 2), np.float32)))
    assert KeptVectors(tmp_path / "vectors.sqlite" / "below", "m").find(["a"]) == {}


def test_vectors_of_two_models_are_kept_apart(tmp_path: Path) -> None:
    kept = KeptVectors(tmp_path / "vectors.sqlite", "m")
    kept.keep(["a", "b"], np.eye(2, dtype=np.float32))
    assert KeptVectors(tmp_path / "vectors.sqlite", "other").find(["a"]) == {}
    assert {text: v.tolist() for text, v in kept.find(["b", "c"]).items()} == {"b": [0.0, 1.0]}


class Model:
    """Makes vectors of so many numbers, after so many failures."""

    is_local = False

    def __init__(self, n_numbers: int = 2, *failures: Exception) -> None:
        self.n_numbers, self.failures = n_numbers, list(failures)
        self.asked: list[str] = []

    async def embed(self, texts: Sequence[str], within_s: float) -> Vectors:
        self.asked += texts
        if self.failures:
            raise self.failures.pop(0)
        return unit(np.ones((len(texts), self.n_numbers), np.float32))

    async def close(self) -> None:
        pass


TWO = [Passage(n, "a.md", "", text) for n, text in enumerate(("Films one week.", "No dogs."))]


@asynccontextmanager
async def by(model: Model, kept: KeptVectors | None = None) -> AsyncIterator[VectorRetriever]:
    retriever = VectorRetriever(TWO, model, kept, language="en", least_score=0.1, deadline_ms=1000)
    try:
        yield retriever
    finally:
        await retriever.close()


async def test_vectors_that_could_not_be_made_are_made_later_and_every_failure_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(vectors, "FIRST_RETRY_S", 0.001)
    failures = [BackendError("expected an answer, found 500"), KeyError("a bug")]
    async with by(Model(2, *failures)) as retriever:
        await retriever.building
        assert len(await retriever.search(["films"], 4)) == 2
    told = [one.getMessage() for one in caplog.records if "words alone" in one.message]
    assert len(told) == 2 and "found 500" in told[0] and "for 0.001 s" in told[0]


async def test_vectors_that_are_too_many_are_told_after_the_first_request_and_not_made_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(vectors, "MAX_BYTES", 15)
    monkeypatch.setattr(vectors, "BATCH", 1)
    model, kept = Model(), KeptVectors(tmp_path / "vectors.sqlite", "m")
    async with by(model, kept) as retriever:
        await retriever.building
        assert await retriever.search(["films"], 4) == ()
    assert len(model.asked) == 1 and kept.find([one.text for one in TWO]) == {}
    assert "at most 15 bytes" in caplog.text


@pytest.mark.parametrize("n_kept", [1, 2])
async def test_kept_vectors_of_another_model_are_found_out_and_made_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, n_kept: int
) -> None:
    monkeypatch.setattr(vectors, "FIRST_RETRY_S", 0.001)
    kept = KeptVectors(tmp_path / "vectors.sqlite", "m")
    said = [one.text for one in TWO]
    kept.keep(said[:n_kept], np.eye(3, dtype=np.float32)[:n_kept])
    async with by(Model(), kept) as retriever:
        await retriever.building
        if n_kept == 2:  # which only a question tells
            with pytest.raises(BackendError, match="expected a vector of 3 numbers, found 2"):
                await retriever.search(["films"], 4)
            await retriever.building
        assert len(await retriever.search(["films"], 4)) == 2
    assert [len(vector) for vector in kept.find(said).values()] == [2, 2]


class Odd:
    """Makes vectors of another length for questions than for passages."""

    is_local = True

    async def embed(self, texts: Sequence[str], within_s: float) -> Vectors:
        return np.ones((len(texts), 3 if texts == ["films"] else 2), np.float32)

    async def close(self) -> None:
        pass


async def test_vectors_that_cannot_be_compared_are_an_error_of_who_made_them() -> None:
    passages = [Passage(0, "a.md", "", "Films one week.")]
    retriever = VectorRetriever(
        passages, Odd(), None, language="en", least_score=0.1, deadline_ms=100
    )
    await retriever.building
    with pytest.raises(BackendError, match="expected a vector of 2 numbers, found 3"):
        await retriever.search(["films"], 4)
    await retriever.close()
    await retriever.close()


def test_a_folder_of_word_vectors_begins_where_the_agent_file_lies(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    tables = [
        'folder = "a"\nembeddings = "table"',
        'folder = "b"\nembeddings = "http://c/v1/e"\nembedding_model = "m"',
    ]
    named = "".join(f"[[knowledge]]\n{table}\nleast_score = 0.5\n" for table in tables)
    file.write_text(named, encoding="utf-8")
    first, second = load_agent(file).knowledge
    assert (first.folder, first.embeddings) == (tmp_path / "a", str(tmp_path / "table"))
    assert (second.folder, second.embeddings) == (tmp_path / "b", "http://c/v1/e")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"embeddings": "http://a/v1/embeddings"}, "least_score: expected above 0 to 1"),
        ({"embeddings": "http://a/v1/embeddings", "least_score": 0.4}, "embedding_model: expected"),
        ({"embeddings": "table", "least_score": 1.5}, "least_score"),
        ({"embeddings": "table", "least_score": 0.4, "deadline_ms": 0}, "deadline_ms"),
        ({"embedding_model": "m"}, "embedding_model: expected it beside embeddings"),
    ],
)
def test_what_a_folder_s_embeddings_lack_is_told_at_the_start(
    changed: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as wrong:
        check_sources([KnowledgeSource(folder=Path("."), **changed)])
    assert told in wrong.value.message
