"""The sources that an agent file names, and the retriever that is made of them.

Owns `KnowledgeSource`, one `[[knowledge]]` of an agent file, and what each of its kinds needs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from voiceloop.config_reader import from_environment, key
from voiceloop.errors import ConfigError
from voiceloop.knowledge.fused import FusedRetriever
from voiceloop.knowledge.retriever import FolderRetriever, Retriever

if TYPE_CHECKING:  # httpx costs a start without it 0.2 s
    from voiceloop.knowledge.services import UrlRetriever

log = logging.getLogger(__name__)

MAX_SOURCES = 16
ADDRESS = r"(?s)(https?://|\$\{).*"  # all of it may come from the environment
# Of one search by a service: one is begun every 150 ms, and what is later than the pause is of no
# use.
SERVICE_MS = 120.0


@dataclass(frozen=True, slots=True)
class KnowledgeSource:
    """One `[[knowledge]]` of an agent file: a folder of documents, or a service that searches."""

    source: str = key(
        ...,
        "A folder of Markdown, text and CSV files (`.md`, `.txt`, `.csv`, UTF-8). Or the "
        "address of a service that searches "
        "([KNOWLEDGE.md](KNOWLEDGE.md#a-service-that-searches)). A folder is read once at the"
        " start: up to 10,000 files, 4 MiB each, 64 MiB and 50,000 passages in all, without "
        "hidden files and links out of it. In an address `${NAME}` stands for a variable of "
        "the environment. The server asks all sources at once and merges their results by "
        "rank. If a service takes longer than 120 ms, the turn goes without its passages, but"
        " keeps those of other sources.",
        pattern=r"(?s).*\S.*",
        wanted="a folder or an address",
        not_path=ADDRESS,
    )
    headers: Mapping[str, Any] = key(
        {}, 'Sent along to a service, as `authorization = "Bearer ${SEARCH_KEY}"`.', secret=True
    )

    @property
    def folder(self) -> Path | None:
        return None if self.url is not None else Path(self.source)

    @property
    def url(self) -> str | None:
        return self.source if re.fullmatch(ADDRESS, self.source) else None


def check_sources(sources: Sequence[KnowledgeSource]) -> None:
    """Raises: ConfigError, which names the key, what was expected and what was found."""
    if len(sources) > MAX_SOURCES:
        raise _wrong("knowledge", f"at most {MAX_SOURCES} of them", str(len(sources)))
    for index, source in enumerate(sources):
        where = f"knowledge[{index}]"
        for name, value in source.headers.items():
            if not isinstance(value, str):  # and its value is not shown: it may be a secret
                raise _wrong(f"{where}.headers.{name}", "a string", type(value).__name__)


@asynccontextmanager
async def open_retriever(
    sources: Sequence[KnowledgeSource],
    language: str,
    environment: Mapping[str, str],
    service_ms: float = SERVICE_MS,
) -> AsyncIterator[Retriever | None]:
    """Yield what finds passages in an agent's documents; None where it has none.

    All folders are one index, each service is asked for itself, and what they find is fused.
    service_ms: how long one search by a service may take.

    Raises: ConfigError: as `FolderRetriever.open`; a variable that a source names is not set.
    """
    if not sources:
        yield None
        return
    retrievers: list[Retriever] = [
        _service(source, language, environment, service_ms)
        for source in sources
        if source.url is not None
    ]
    if folders := [source.folder for source in sources if source.folder is not None]:
        folder = await FolderRetriever.open(folders, language)
        log.info("knowledge: %d passages", folder.n_passages)
        retrievers.insert(0, folder)
    retriever = retrievers[0] if len(retrievers) == 1 else FusedRetriever(retrievers)
    try:
        yield retriever
    finally:
        await retriever.close()


def _service(
    source: KnowledgeSource, language: str, environment: Mapping[str, str], deadline_ms: float
) -> UrlRetriever:
    """Raises: ConfigError."""
    import httpx

    from voiceloop.knowledge.services import UrlRetriever

    url = from_environment(source.url or "", environment, "knowledge.source")
    try:
        is_address = httpx.URL(url).scheme in ("http", "https") and bool(httpx.URL(url).host)
    except httpx.InvalidURL:
        is_address = False
    if not is_address:
        raise _wrong("knowledge.source", "http:// or https:// and a host", repr(source.url))
    headers = {
        name: from_environment(str(value), environment, "knowledge")
        for name, value in source.headers.items()
    }
    return UrlRetriever(url, headers, deadline_ms, language)


def _wrong(where: str, wanted: str, found: str) -> ConfigError:
    return ConfigError(f"{where}: expected {wanted}, found {found}")
