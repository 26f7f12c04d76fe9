"""Owns the operator's prefix: instructions and tools, read before anybody calls.

On a CPU their keys and values are kept on disk across restarts; a GPU computes them as fast as a
file is read. A file is named by a digest of all that its numbers depend on, and of its tokens; what
is not what it should be is passed over.
"""

import hashlib
import json
import logging
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Thread

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .branch import Branch
from .engine import Engine
from .kept_files import SUFFIX, KeptFiles, code_files, digest, model_files
from .kv_cache import BlockStore, KvPool
from .own_files import cache_folder
from .prefix_tree import PUBLIC
from .types import BLOCK_TOKENS, EngineConfig, Event, RequestError, Staged

log = logging.getLogger(__name__)


def identity(model: Path, config: EngineConfig, layers: str) -> str:
    """A digest of what the KV of given tokens depends on.

    Weights, tokenizer, template and adapter by the content of their files, the formats, what runs
    the layers (`layers`, and the engine's own code), and the machine it runs on. Reads all weights.
    """
    facts = [
        torch.__version__, torch.backends.cpu.get_cpu_capability(), layers, config.dtype,
        config.quant, config.kv_format, config.context_length,
        digest(model_files(config.adapter_dir) if config.adapter_dir is not None else []),
        digest(model_files(model)), digest(code_files()),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


class PrefixFiles:
    """The prefixes of one engine in a folder that others may share, within a number of bytes."""

    @classmethod
    def of(cls, model: Path, engine: Engine, n_most_bytes: int) -> "PrefixFiles | None":
        """Open the files of a loaded engine in the user's cache; None where none are to be kept."""
        layers, config = engine.runner.layers, engine.config
        if not n_most_bytes or config.device != "cpu":
            return None
        folder = cache_folder("prefixes")
        return cls(folder, n_most_bytes, lambda: identity(model, config, layers))

    def __init__(self, folder: Path, n_most_bytes: int, identify: Callable[[], str]) -> None:
        """identify: the engine's `identity`, asked for once, by the first who reads or writes."""
        self.folder, self.n_most_bytes = folder, n_most_bytes
        self._files, self._identity = KeptFiles(folder, n_most_bytes), cache(identify)

    def path(self, tokens: list[int]) -> Path:
        return self.folder / f"{self._identity()[:20]}-{_hash_of(tokens)[:20]}{SUFFIX}"

    def read(self, tokens: list[int], pool: KvPool) -> BlockStore | None:
        """The blocks of exactly these tokens; None where there is no sound file of them."""
        try:
            with self._files.opened(self.path(tokens).name) as found:
                return self._read(found, tokens, pool)
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, ValueError, RuntimeError) as error:
            log.warning("a file of the operator's prefix in %s is passed over: %s",
                        self.folder, error)  # fmt: skip
            return None

    def _read(self, path: Path, tokens: list[int], pool: KvPool) -> BlockStore:
        """Raises: OSError, SafetensorError, ValueError, RuntimeError: it is something else."""
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            codes, scales = file.get_tensor("codes"), file.get_tensor("scales")
        if metadata != self._facts(tokens, codes, scales):
            raise ValueError("expected the numbers it was written with, found others")
        like = pool.store(1)
        return BlockStore(_from_bytes(codes, like.codes), _from_bytes(scales, like.scales))

    def write(self, tokens: list[int], blocks: BlockStore) -> None:
        """Keep the blocks of these tokens; the longest unused files make room."""
        codes, scales = _as_bytes(blocks.codes), _as_bytes(blocks.scales)
        parts = {"codes": codes, "scales": scales}
        self._files.keep(self.path(tokens).name, parts, self._facts(tokens, codes, scales))

    def _facts(self, tokens: list[int], codes: Tensor, scales: Tensor) -> dict[str, str]:
        sums = [zlib.crc32(memoryview(part.contiguous().numpy())) for part in (codes, scales)]
        return {"engine": self._identity(), "tokens": _hash_of(tokens), "checksum": str(sums)}


def _hash_of(tokens: list[int]) -> str:
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()


def _as_bytes(blocks: Tensor) -> Tensor:
    """[blocks, bytes of each]: formats that files do not know are bytes as well."""
    return blocks.contiguous().view(torch.uint8).view(len(blocks), -1)


def _from_bytes(blocks: Tensor, like: Tensor) -> Tensor:
    """The inverse. like: one block. Raises: RuntimeError where these are no such blocks."""
    shape = len(blocks), *like.shape[1:]
    return blocks.view(like.dtype).view(shape) if like.numel() else like.expand(shape)


class PublicPrefix:
    """The operator's instructions and tools, shared by all tenants of one engine."""

    def __init__(
        self, engine: Engine, branch_id: str, tokens: list[int], files: PrefixFiles | None = None
    ) -> None:
        """tokens: of the prefix; whole blocks of them are shared. files: None keeps nothing.

        What is computed comes as an event of the engine's branch `branch_id`: see `observe`.
        """
        self._n_blocks = len(tokens) // BLOCK_TOKENS
        self.tokens = tokens[: self._n_blocks * BLOCK_TOKENS]
        self.branch_id, self._engine, self._files = branch_id, engine, files
        self._branch: Branch | None = None
        self.writing: Thread | None = None
        if files is not None and self._n_blocks * engine.pool.block_bytes > files.n_most_bytes:
            self._files = None
        if not self._n_blocks or not engine.tree.is_sharing:
            return
        engine.tree.public = self.tokens
        kept = None if self._files is None else self._files.read(self.tokens, engine.pool)
        if kept is None:
            self._compute()
        elif engine.tree.can_evict(self._n_blocks - engine.pool.n_free):  # else callers need it
            self._place(kept)

    def is_of(self, tokens: list[int]) -> bool:
        """Whether it is the prefix of these."""
        return self.tokens == tokens[: len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS]

    def _compute(self) -> None:
        """As the words of callers are staged."""
        try:
            self._branch = self._engine.branch(self.branch_id, self.tokens, PUBLIC)
            self._branch.stage(self.tokens[-1:])  # its event says that all before it is resident
        except RequestError as error:
            log.warning("the operator's instructions are not computed ahead: %s", error)
            self.close()

    def _place(self, blocks: BlockStore) -> None:
        pool, own = self._engine.pool, list[int]()
        try:
            for place in range(self._n_blocks):
                own.append(pool.allocate(own[-1] if own else None))
                pool.restore(blocks, place, own[-1])
            self._engine.tree.publish(self.tokens, own, PUBLIC)
        finally:
            pool.release(own)

    def observe(self, event: Event) -> None:
        """An event of its branch: what is resident is copied, and written by a thread."""
        if not isinstance(event, Staged) or self._branch is None:
            return
        if (files := self._files) is not None:
            pool, table = self._engine.pool, self._branch.sequence.table
            blocks = pool.store(self._n_blocks)
            for place in range(self._n_blocks):
                pool.save(table[place], blocks, place)
            self.writing = Thread(
                target=files.write, args=(self.tokens, blocks), daemon=True, name="prefix"
            )
            self.writing.start()
        self.close()

    def close(self) -> None:
        """Idempotent. What is in the tree stays there."""
        branch, self._branch = self._branch, None
        if branch is not None:
            branch.close()
