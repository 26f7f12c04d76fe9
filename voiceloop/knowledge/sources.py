"""What an agent file names to look things up in, and the retriever that is made of it.

Owns `KnowledgeSource`, one `[[knowledge]]` of an agent file, and what each of its kinds needs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voiceloop.config_reader import from_environment
from voiceloop.errors import ConfigError
from voiceloop.knowledge.fused import FusedRetriever
from voiceloop.knowledge.retriever import FolderRetriever, Retriever, passages_in

if TYPE_CHECKING:  # httpx costs a start without it 0.2 s
    from voiceloop.knowledge.services import Service, UrlRetriever
    from voiceloop.knowledge.vectors import Embedder, VectorRetriever

log = logging.getLogger(__name__)

MAX_SOURCES = 16
# Of one search: one is begun every 150 ms, and what is later than the pause is of no use.
MOST_DEADLINE_MS = 150
NUMBER_BYTES = 25  # a number in JSON has up to 24 characters, and a comma
VECTORS_FILE = "vectors.sqlite"  # in $VOICELOOP_CACHE, else the user's cache folder


@dataclass(frozen=True, slots=True)
class KnowledgeSource:
    """One `[[knowledge]]` of an agent file: a folder of documents, or a service that searches.

    ``url``: of the service (`UrlRetriever`), with these ``headers``; both may name variables of the
    environment as ``${NAME}``.

    Beside ``folder``: ``embeddings`` is a folder with a table of word vectors, or the address of a
    ``/v1/embeddings`` that is sent ``embeddings_headers`` and asked for ``embedding_model``. The
    passages are then searched by their vectors too; those whose cosine is below ``least_score`` do
    not count.
    """

    folder: Path | None = None
    url: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    embeddings: str | None = None
    embeddings_headers: Mapping[str, Any] = field(default_factory=dict)
    embedding_model: str = ""
    least_score: float = 0.0
    deadline_ms: int = 120


def check_sources(sources: Sequence[KnowledgeSource]) -> None:
    """Raises: ConfigError, which names the key, what was expected and what was found."""
    if len(sources) > MAX_SOURCES:
        raise _wrong("knowledge", f"at most {MAX_SOURCES} of them", str(len(sources)))
    for index, source in enumerate(sources):
        where = f"knowledge[{index}]"
        if (source.folder is None) == (source.url is None):
            found = "neither" if source.url is None else "both"
            raise _wrong(where, "folder or url", found)
        has_embeddings = source.embeddings is not None
        if source.url is not None and has_embeddings:
            raise _wrong(f"{where}.embeddings", "them beside a folder", "them beside a url")
        if source.folder is not None and has_embeddings and not 0.0 < source.least_score <= 1.0:
            wanted = "above 0 to 1 beside the embeddings of a folder"
            raise _wrong(f"{where}.least_score", wanted, f"{source.least_score:g}")
        if source.least_score and not has_embeddings:
            raise _wrong(f"{where}.least_score", "it beside embeddings", "none of these")
        is_kept = source.folder is not None and is_address(source.embeddings or "")
        if (
            is_kept and not source.embedding_model
        ):  # another's, kept on disk, would be taken for its
            raise _wrong(f"{where}.embedding_model", "it beside an address and a folder", "none")
        if source.embedding_model and not has_embeddings:
            raise _wrong(f"{where}.embedding_model", "it beside embeddings", "none of these")
        if source.embeddings_headers and source.embeddings is None:
            raise _wrong(f"{where}.embeddings_headers", "them beside embeddings", "none of these")
        for key in ("headers", "embeddings_headers"):
            for name, value in getattr(source, key).items():
                if not isinstance(value, str):  # and its value is not shown: it may be a secret
                    raise _wrong(f"{where}.{key}.{name}", "a string", type(value).__name__)
        if not 1 <= source.deadline_ms <= MOST_DEADLINE_MS:
            wanted = f"1 to {MOST_DEADLINE_MS}"
            raise _wrong(f"{where}.deadline_ms", wanted, str(source.deadline_ms))


@asynccontextmanager
async def open_retriever(
    sources: Sequence[KnowledgeSource], language: str, environment: Mapping[str, str]
) -> AsyncIterator[Retriever | None]:
    """What finds passages in an agent's documents; None where it has none.

    All folders are one index, each service is asked for itself, and what they find is fused; so is
    what is found by the vectors of a folder that has embeddings.

    Raises: ConfigError: as `FolderRetriever.open` and `StaticEmbeddings`; a variable that a source
        names is not set.
    """
    if not sources:
        yield None
        return
    retrievers: list[Retriever] = [
        _service(source, language, environment) for source in sources if source.url is not None
    ]
    if folders := [source.folder for source in sources if source.folder is not None]:
        folder = await FolderRetriever.open(folders, language)
        log.info("knowledge: %d passages", folder.n_passages)
        retrievers.insert(0, folder)
    for source in sources:
        if source.folder is not None and source.embeddings is not None:
            retrievers.append(await _by_vectors(source, source.folder, language, environment))
    retriever = retrievers[0] if len(retrievers) == 1 else FusedRetriever(retrievers)
    try:
        yield retriever
    finally:
        await retriever.close()


async def _by_vectors(
    source: KnowledgeSource, folder: Path, language: str, environment: Mapping[str, str]
) -> VectorRetriever:
    """Raises: ConfigError."""
    from voiceloop.knowledge import vectors

    kept = None
    embedder = await embedder_of(source, environment)
    if isinstance(embedder, vectors.ServiceEmbeddings):
        identity = f"{embedder.url} {embedder.model}"
        kept = vectors.KeptVectors(_cache_folder(environment) / VECTORS_FILE, identity)
    return vectors.VectorRetriever(
        await asyncio.to_thread(passages_in, folder),
        embedder,
        kept,
        language=language,
        least_score=source.least_score,
        deadline_ms=source.deadline_ms,
    )


async def embedder_of(source: KnowledgeSource, environment: Mapping[str, str]) -> Embedder:
    """What makes the vectors of a folder that has embeddings. Raises: ConfigError."""
    from voiceloop.knowledge import vectors

    known = source.embeddings or ""
    if not is_address(known):
        return await asyncio.to_thread(vectors.StaticEmbeddings, Path(known))
    url = _address(known, environment, "knowledge.embeddings")
    n_most_bytes = NUMBER_BYTES * vectors.BATCH * vectors.MOST_NUMBERS
    service = _asked_with(source.embeddings_headers, source, environment, n_most_bytes)
    return vectors.ServiceEmbeddings(url, source.embedding_model, service)


def is_address(embeddings: str) -> bool:
    """Whether it names a service, which may come from the environment whole; else a folder."""
    return embeddings.startswith(("http://", "https://", "${"))


def _cache_folder(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(environment.get("VOICELOOP_CACHE") or f"{base}/voiceloop").expanduser()


def _asked_with(
    headers: Mapping[str, Any],
    source: KnowledgeSource,
    environment: Mapping[str, str],
    n_most_bytes: int | None = None,
) -> Service:
    """Raises: ConfigError."""
    from voiceloop.knowledge.services import MAX_BODY_BYTES, Service

    known = {
        name: from_environment(str(value), environment, "knowledge")
        for name, value in headers.items()
    }
    return Service(known, source.deadline_ms, n_most_bytes or MAX_BODY_BYTES)


def _service(
    source: KnowledgeSource, language: str, environment: Mapping[str, str]
) -> UrlRetriever:
    """Raises: ConfigError."""
    from voiceloop.knowledge.services import UrlRetriever

    url = _address(source.url, environment, "knowledge.url")
    return UrlRetriever(url, _asked_with(source.headers, source, environment), language)


def _address(text: str | None, environment: Mapping[str, str], where: str) -> str:
    import httpx

    found = from_environment(text or "", environment, where)
    try:
        is_address = httpx.URL(found).scheme in ("http", "https") and bool(httpx.URL(found).host)
    except httpx.InvalidURL:
        is_address = False
    if not is_address:
        raise _wrong(where, "http:// or https:// and a host", repr(text))
    return found


def _wrong(where: str, wanted: str, found: str) -> ConfigError:
    return ConfigError(f"{where}: expected {wanted}, found {found}")
