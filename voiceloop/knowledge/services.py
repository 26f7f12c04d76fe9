"""Passages found by a service: any retriever behind a URL.

Owns the requests and how much of an answer counts. What comes back is text from outside: it is
bounded here, and reads as notes to the model, never as instructions (`placement.py`). A service
that is late or away costs the turn its passages and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import httpx
import msgspec

from voiceloop.errors import BackendError, BackendTimeout
from voiceloop.knowledge.index import FUNCTION_WORDS, Hit
from voiceloop.knowledge.passages import Passage
from voiceloop.knowledge.retriever import Hits
from voiceloop.log_form import named
from voiceloop.trust import trusted

CONNECT_S = 2.0  # as of tools by `url`
MAX_BODY_BYTES = 256 * 1024  # some 1,000 times what a turn is given of passages
MAX_PASSAGE_CHARS = 4000
MAX_NAME_CHARS = 200  # of a path, a heading
LEAST_LETTERS = 3  # of a word that is worth a request


class FoundPassage(msgspec.Struct):
    """A passage as a service tells it; all but its text may be left out."""

    text: str
    path: str = ""
    heading: str = ""


class Found(msgspec.Struct):
    """An answer: the best passage first."""

    passages: list[FoundPassage]


class UrlRetriever:
    """Any retriever: it is posted ``{"query", "k"}`` and answers ``{"passages": [...]}``.

    Each passage has a ``text``, and may have a ``path`` and a ``heading``; the best comes first.
    headers: sent along. deadline_ms: of one search.
    """

    is_local = False

    def __init__(
        self, url: str, headers: Mapping[str, str], deadline_ms: float, language: str
    ) -> None:
        self._url = url
        self._deadline_s = deadline_ms / 1000.0
        self._language = language
        self._client = httpx.AsyncClient(
            verify=trusted(),
            headers={**headers, "accept-encoding": "identity"},
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            follow_redirects=False,
        )

    def is_telling(self, word: str) -> bool:
        known = FUNCTION_WORDS.get(self._language.split("-")[0], frozenset())
        return len(word) >= LEAST_LETTERS and word.lower() not in known

    async def search(
        self, words: Sequence[str], n_most: int, so_far: Callable[[Hits], None] = lambda _: None
    ) -> Hits:
        """As `Retriever`; all at once. Raises: BackendError, also where it is late."""
        try:
            async with asyncio.timeout(self._deadline_s):
                body = await self._ask(" ".join(words), n_most)
        except TimeoutError:
            most_ms = 1000 * self._deadline_s
            raise BackendTimeout(f"expected passages in {most_ms:.0f} ms, found none") from None
        try:
            found = msgspec.json.decode(body, type=Found)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise BackendError(f"expected passages as JSON, found: {error}") from None
        return tuple(
            Hit(_passage(number, one), -float(number))
            for number, one in enumerate(found.passages[:n_most])
        )

    async def _ask(self, query: str, n_most: int) -> bytes:
        """The body of the answer. Raises: BackendError."""
        where = httpx.URL(self._url).netloc.decode()  # with its port, and without a password
        asked = {"query": query, "k": n_most}
        try:
            async with self._client.stream("POST", self._url, json=asked) as response:
                body = bytearray()
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > MAX_BODY_BYTES:
                        raise BackendError(
                            f"{where}: expected at most {MAX_BODY_BYTES} bytes, found more"
                        )
        except httpx.HTTPError as error:
            raise BackendError(f"{where}: expected passages, found {named(error)}") from error
        if not response.is_success:
            raise BackendError(f"{where}: expected passages, found status {response.status_code}")
        return bytes(body)

    async def close(self) -> None:
        await self._client.aclose()


def _passage(number: int, found: FoundPassage) -> Passage:
    path, heading = found.path[:MAX_NAME_CHARS], found.heading[:MAX_NAME_CHARS]
    return Passage(number, path, heading, found.text[:MAX_PASSAGE_CHARS])
