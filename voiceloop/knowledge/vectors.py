"""Passages of a folder by the vector of what is asked: found though no word of theirs was said.

Owns the two makers of vectors (a table of word vectors in a folder, a service of
``/v1/embeddings``), what is kept of them on disk by the hash of the text, and the search. The
folder is searched by its words too (`index.py`), and `fused.py` makes one ranking of both: what
fails here, or is late, takes nothing from that. A folder's vectors are made beside the calls, again
after a while where that fails; until they are there nothing is found by them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from voiceloop.errors import (
    BackendError,
    BackendTimeout,
    ConfigError,
    Overloaded,
    VoiceLoopError,
    error_of,
)
from voiceloop.knowledge.index import FUNCTION_WORDS, Hit
from voiceloop.knowledge.passages import Passage
from voiceloop.knowledge.retriever import MAX_WAITING, Hits
from voiceloop.knowledge.services import LEAST_LETTERS, Embeddings, Service, read

log = logging.getLogger(__name__)

Vectors = NDArray[np.float32]

TABLE, TOKENIZER = "model.safetensors", "tokenizer.json"
# Chosen: ten times the largest table of word vectors that model2vec publishes.
MAX_TABLE_BYTES = 1024**3
MAX_TOKENS = 512  # of one text: a passage of 60 words has some 100
# Of a folder's vectors in memory: 50,000 passages of 1,024 numbers are 200 MB.
MAX_BYTES = 256 * 1024 * 1024
BATCH = 16  # texts of one request, whose answer is bounded
BATCH_S = 30.0  # for it, while a folder's vectors are made: nobody waits
# After a failure it is tried again, each time after twice as long, up to the longest. Chosen: a
# service that starts beside this one is there after the first, one that is repaired at noon by one.
FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 600.0
MAX_KEPT = 500_000  # vectors on disk: ten folders of the largest kind; the oldest go first
MOST_NUMBERS = 8192  # of one vector


class Embedder(Protocol):
    """Makes vectors."""

    is_local: bool

    async def embed(self, texts: Sequence[str], within_s: float) -> Vectors:
        """One unit vector for each text [n, n_numbers]. Raises: BackendError, where late too."""

    async def close(self) -> None:
        """Idempotent."""


class StaticEmbeddings:
    """A table of word vectors in a folder, as model2vec writes it; a text is the mean of its own.

    ``model.safetensors`` holds ``embeddings`` [n_rows, n_numbers], and may hold ``weights`` and
    ``mapping`` [n_tokens], the weight and the row of each token. Reads the files; blocking.

    Source: model2vec, MIT, https://github.com/MinishLab/model2vec (the files and the mean).

    Raises: ConfigError: a file is missing or is none of these, or a package to read it.
    """

    is_local = True

    def __init__(self, folder: Path) -> None:
        try:
            from safetensors import SafetensorError
            from safetensors.numpy import load_file
            from tokenizers import Tokenizer
        except ImportError as error:
            wanted = "the packages safetensors and tokenizers (pip install 'voiceloop[embedded]')"
            raise _wrong(wanted, f"no {error.name}") from None
        for name in (TABLE, TOKENIZER):
            if not (folder / name).is_file():
                raise _wrong(f"{TABLE} and {TOKENIZER} in {folder}", f"no {name}")
        if (size := (folder / TABLE).stat().st_size) > MAX_TABLE_BYTES:
            raise _wrong(f"at most {MAX_TABLE_BYTES} bytes in {folder / TABLE}", str(size))
        try:
            tensors = load_file(folder / TABLE)
            self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
            raise _wrong(f"word vectors in {folder}", str(error)[:200]) from None
        except Exception as error:  # tokenizers raises no class of its own
            raise _wrong(f"a tokenizer in {folder / TOKENIZER}", str(error)[:200]) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._read(tensors, folder)

    def _read(self, tensors: Mapping[str, NDArray[Any]], folder: Path) -> None:
        table, n_tokens = tensors.get("embeddings"), self._tokenizer.get_vocab_size()
        if table is None or table.ndim != 2 or not table.size:
            raise _wrong(f"a table named embeddings in {folder / TABLE}", ", ".join(tensors))
        self._table = table.astype(np.float32)
        self._weights = tensors.get("weights", np.ones(n_tokens)).astype(np.float32)
        self._row_of = tensors.get("mapping", np.arange(n_tokens)).astype(np.int64)
        has_rows = len(self._row_of) >= n_tokens and 0 <= self._row_of.min()
        if not has_rows or self._row_of.max() >= len(table) or len(self._weights) < n_tokens:
            wanted = f"a row and a weight for each of {n_tokens} tokens in {folder / TABLE}"
            raise _wrong(wanted, f"{len(table)} rows, {len(self._weights)} weights")
        if not np.isfinite(self._table).all() or not np.isfinite(self._weights).all():
            raise _wrong(f"finite numbers in {folder / TABLE}", "others")
        unknown = getattr(self._tokenizer.model, "unk_token", None)
        self._unknown_id = self._tokenizer.token_to_id(unknown) if unknown else None

    async def embed(self, texts: Sequence[str], within_s: float) -> Vectors:
        return await asyncio.to_thread(self.vectors, texts)

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Of a text without a known token: zeros, which are like nothing."""
        found = np.zeros((len(texts), self._table.shape[1]), np.float32)
        for row, told in enumerate(
            self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ):
            ids = [one for one in told.ids[:MAX_TOKENS] if one != self._unknown_id]
            if ids:
                weights = self._weights[ids][:, None]
                found[row] = (self._table[self._row_of[ids]] * weights).mean(axis=0)
        return unit(found)

    async def close(self) -> None:
        pass


class ServiceEmbeddings:
    """Those of any server of ``/v1/embeddings``."""

    is_local = False

    def __init__(self, url: str, model: str, service: Service) -> None:
        self.url, self.model, self._service = url, model, service

    async def embed(self, texts: Sequence[str], within_s: float) -> Vectors:
        """Raises: BackendError."""
        asked = {"model": self.model, "input": list(texts)}
        try:
            async with asyncio.timeout(within_s):
                body = await self._service.post(self.url, asked)
        except TimeoutError:
            raise BackendTimeout(f"expected vectors in {within_s:g} s, found none") from None
        told: Embeddings = read(body, Embeddings)
        vectors = [one.embedding for one in told.data]
        n_numbers = len(vectors[0]) if vectors else 0
        is_even = all(len(vector) == n_numbers for vector in vectors)
        if len(vectors) != len(texts) or not is_even or not 1 <= n_numbers <= MOST_NUMBERS:
            raise BackendError(f"expected {len(texts)} vectors of one length, found others")
        found = np.array(vectors, np.float32)
        if not np.isfinite(found).all():
            raise BackendError("expected finite numbers in a vector, found others")
        return unit(found)

    async def close(self) -> None:
        await self._service.close()


def unit(vectors: Vectors) -> Vectors:
    """Each [n, n_numbers] at length 1; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    shortened = vectors / np.where(lengths > 0.0, lengths, 1.0)
    found: Vectors = shortened.astype(np.float32)
    return found


class KeptVectors:
    """Vectors on disk by the text they are of. Blocking. What cannot be kept is made again.

    identity: of the model that makes them. A name is all that is known of a service's.
    """

    def __init__(self, file: Path, identity: str) -> None:
        self._file, self._identity = file, identity

    def find(self, texts: Sequence[str]) -> dict[str, Vectors]:
        """Those that are there, by text."""
        keys = {self._key(text): text for text in texts}
        found: dict[str, Vectors] = {}
        try:
            with closing(self._open()) as kept:
                for key, text in keys.items():
                    rows = kept.execute("SELECT numbers FROM vector WHERE key = ?", (key,))
                    for (numbers,) in rows:
                        found[text] = np.frombuffer(numbers, np.float32)
        except (sqlite3.Error, OSError, ValueError) as error:
            log.warning("knowledge: expected kept vectors in %s, found %s", self._file, error)
            return {}
        return found

    def keep(self, texts: Sequence[str], vectors: Vectors) -> None:
        """In the place of those that are there of the same texts."""
        rows = [
            (self._key(text), vector.tobytes()) for text, vector in zip(texts, vectors, strict=True)
        ]
        try:
            with closing(self._open()) as kept, kept:
                kept.executemany("INSERT OR REPLACE INTO vector(key, numbers) VALUES (?, ?)", rows)
                kept.execute(
                    "DELETE FROM vector WHERE rowid <= (SELECT max(rowid) FROM vector) - ?",
                    (MAX_KEPT,),
                )
        except (sqlite3.Error, OSError) as error:
            log.warning("knowledge: expected to keep vectors in %s, found %s", self._file, error)

    def _open(self) -> sqlite3.Connection:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        kept = sqlite3.connect(self._file)
        kept.execute("CREATE TABLE IF NOT EXISTS vector(key BLOB UNIQUE, numbers BLOB)")
        return kept

    def _key(self, text: str) -> bytes:
        return hashlib.sha256(f"{self._identity}\0{text}".encode()).digest()


class VectorRetriever:
    """`Retriever` of one folder's passages. kept: None where its vectors cost nothing to make.

    least_score: the cosine below which a passage is about something else. deadline_ms: of one
    search.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        embedder: Embedder,
        kept: KeptVectors | None,
        *,
        language: str,
        least_score: float,
        deadline_ms: float,
    ) -> None:
        self._passages = tuple(passages)
        self._embedder = embedder
        self._kept = kept
        self._function_words = FUNCTION_WORDS.get(language.lower().split("-")[0], frozenset())
        self._least_score = least_score
        self._deadline_s = deadline_ms / 1000.0
        self._vectors: Vectors | None = None  # [n_passages, n_numbers], once they are there
        self._thread = ThreadPoolExecutor(1, "vectors")
        self._n_waiting = 0
        self._has_kept = False  # some of them come from disk
        self.building = asyncio.create_task(self._build(), name="vectors of a folder")

    @property
    def is_local(self) -> bool:
        return self._embedder.is_local

    def is_telling(self, word: str) -> bool:
        return len(word) >= LEAST_LETTERS and word.lower() not in self._function_words

    async def search(
        self, words: Sequence[str], n_most: int, so_far: Callable[[Hits], None] = lambda _: None
    ) -> Hits:
        """As `Retriever`; all at once. Raises: BackendError, Overloaded."""
        if (vectors := self._vectors) is None:
            return ()
        if self._n_waiting >= MAX_WAITING:
            raise Overloaded(f"expected at most {MAX_WAITING} searches waiting, found more")
        self._n_waiting += 1
        try:
            async with asyncio.timeout(self._deadline_s):
                asked = await self._embedder.embed([" ".join(words)], self._deadline_s)
                if asked.shape[1] != vectors.shape[1]:
                    self._make_anew()
                    raise BackendError(
                        f"expected a vector of {vectors.shape[1]} numbers, found {asked.shape[1]}"
                    )
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(
                    self._thread, self._nearest, vectors, asked[0], n_most
                )
        except TimeoutError:
            raise BackendTimeout(
                f"expected passages in {1000 * self._deadline_s:.0f} ms, found none"
            ) from None
        finally:
            self._n_waiting -= 1

    def _nearest(self, vectors: Vectors, asked: Vectors, n_most: int) -> Hits:
        scores = vectors @ asked
        likely = np.flatnonzero(scores >= self._least_score)
        best = likely[np.argsort(-scores[likely], kind="stable")[:n_most]]
        return tuple(Hit(self._passages[place], float(scores[place])) for place in best)

    def _make_anew(self) -> None:
        """What was kept is of another model than the one that answers now."""
        if self._has_kept and self.building.done():
            self._vectors = None
            self.building = asyncio.create_task(
                self._build(uses_kept=False), name="vectors of a folder"
            )

    async def _build(self, *, uses_kept: bool = True) -> None:
        """All passages' vectors, those that are kept first; tried again until they are there."""
        texts = [f"{passage.heading} {passage.text}".strip() for passage in self._passages]
        known: dict[str, Vectors] = {}
        if uses_kept and self._kept is not None:
            known = await asyncio.to_thread(self._kept.find, texts)
        self._has_kept = bool(known)
        retry_s = FIRST_RETRY_S
        while texts and self._vectors is None:
            try:
                self._vectors = await self._complete(texts, known)
            except ConfigError as error:
                self._tell(sum(text not in known for text in texts), error, "from now on")
                return
            except Exception as error:  # a bug costs a while, not all vectors until the next start
                n_missing = sum(text not in known for text in texts)
                self._tell(n_missing, error_of(error), f"for {retry_s:g} s")
                await asyncio.sleep(retry_s)
                retry_s = min(2.0 * retry_s, LONGEST_RETRY_S)

    def _tell(self, n_missing: int, error: VoiceLoopError, until: str) -> None:
        log.warning(
            "knowledge: expected vectors of %d passages, found none for %d (%s): they are searched "
            "by their words alone %s",
            len(self._passages), n_missing, error.message, until,
        )  # fmt: skip

    async def _complete(self, texts: Sequence[str], known: dict[str, Vectors]) -> Vectors:
        """The vector of each text [n_texts, n_numbers]; `known` holds what has been made so far.

        Raises: ConfigError: they are too many. BackendError: one cannot be made; or they differ in
            length, as those of two models do, and none is known any more.
        """
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        for start in range(0, len(missing), BATCH):
            batch = missing[start : start + BATCH]
            made = await self._embedder.embed(batch, BATCH_S)
            _check_size(len(texts), made.shape[1])
            known |= dict(zip(batch, made, strict=True))
            self._check_lengths(known, len(made[0]), len(next(iter(known.values()))))
            if self._kept is not None:
                await asyncio.to_thread(self._kept.keep, batch, made)
        self._check_lengths(known, *map(len, known.values()))
        _check_size(len(texts), len(known[texts[0]]))
        return np.stack([known[text] for text in texts])

    def _check_lengths(self, known: dict[str, Vectors], *lengths: int) -> None:
        if len(set(lengths)) > 1:
            known.clear()
            self._has_kept = False
            raise BackendError(f"expected vectors of one length, found {sorted(set(lengths))}")

    async def close(self) -> None:
        self.building.cancel()
        await asyncio.gather(self.building, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown, wait=True, cancel_futures=True)
        await self._embedder.close()


def _check_size(n_vectors: int, n_numbers: int) -> None:
    """Raises: ConfigError."""
    if 4 * n_vectors * n_numbers > MAX_BYTES:
        raise _wrong(f"at most {MAX_BYTES} bytes", f"{n_vectors} vectors of {n_numbers} numbers")


def _wrong(wanted: str, found: str) -> ConfigError:
    return ConfigError(f"knowledge: embeddings: expected {wanted}, found {found}")
